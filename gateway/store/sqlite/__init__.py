"""The embedded engine of the queue: one SQLite file, ``gateway.db``. The stores are in ``store/sql``."""
