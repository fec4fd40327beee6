"""Moving old history into a conversation's summary: the policy, the calls, the worker."""
