"""One turn, from the claim of queued messages to the commit of its answer."""
