"""
Opens the queue in PostgreSQL for finding a person while a daemon may be running, and for erasing them while
none is. Deleted rows leave their bytes in the server's files until that space is used again, and the server
has samples of them. So the tables are vacuumed and sampled again (``deleted_rows.py``). What the server keeps
elsewhere, its write-ahead log and its backups, cannot be reached from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from gateway.store.place import ServerDatabase
from gateway.store.postgres import postgres_schema
from gateway.store.postgres.deleted_rows import remove_leftovers
from gateway.store.postgres.postgres_connection import SCHEMA, Transaction, connect, place_of
from gateway.store.postgres.postgres_errors import open_error
from gateway.store.postgres.postgres_queue import HOME


@contextmanager
def transaction(at: ServerDatabase, operation: str, *, change: bool, compact: bool) -> Iterator[Transaction]:
    """Open a transaction, with ``compact`` then vacuum. Raises StoreUnavailable; repeatable."""
    where = place_of(at.url)
    try:
        db = connect(at.url)
    except psycopg.Error as error:
        raise open_error(error, where, operation) from error
    with db:
        try:
            postgres_schema.check(db, where)
            postgres_schema.identity(db, HOME)
            begun = Transaction(db, HOME, look_only=not change, needs=at.needs if change else None)
            yield begun
            begun.commit()
            if compact:
                named = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
                remove_leftovers(db, [table for (table,) in db.execute(named, (SCHEMA,)).fetchall()])
        except psycopg.Error as error:
            raise open_error(error, where, operation) from error
