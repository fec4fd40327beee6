"""From a mailbox to the inbox: fetching, verification, what is accepted and as what."""
