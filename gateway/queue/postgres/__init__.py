"""The queue in PostgreSQL: the same statements as in the embedded one, for several processes at once."""
