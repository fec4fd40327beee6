"""The queue in PostgreSQL: the same SQL as in the embedded one, for several processes at once."""
