"""Between channels and the queue: access, the way into the inbox, delivery, acknowledgements."""
