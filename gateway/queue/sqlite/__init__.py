"""The queue's one adapter: inbox, outbox, jobs and usage in ``gateway.db`` (SQLite)."""
