"""
A person in the queue in PostgreSQL: found while a daemon may be at work, and removed while none is.

Deleted rows leave their bytes in the server's files until that space is used again, and the server has
samples of them; the tables are vacuumed, and sampled anew (``leftovers.py``).
What the server keeps beside them, its log of changes and its backups, is not reached from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from gateway.queue.place import ServerDatabase
from gateway.queue.postgres import schema
from gateway.queue.postgres.connection import SCHEMA, Transaction, connect, place_of
from gateway.queue.postgres.errors import refused
from gateway.queue.postgres.leftovers import remove_leftovers
from gateway.queue.postgres.store import HOME
from gateway.queue.sql import erasure
from gateway.queue.sql.erasure import PersonRows
from gateway.queue.sql.repetitions import repeated


@contextmanager
def _transaction(at: ServerDatabase, operation: str, *, look_only: bool) -> Iterator[Transaction]:
    where = place_of(at.url)
    try:
        db = connect(at.url)
    except psycopg.Error as error:
        raise refused(error, where, operation) from error
    with db:
        try:
            schema.check(db, where)
            schema.identity(db, where, HOME)
            transaction = Transaction(db, HOME, look_only=look_only, needs=None if look_only else at.needs)
            yield transaction
            transaction.commit()
            if not look_only:
                _clean(db)
        except psycopg.Error as error:
            raise refused(error, where, operation) from error


def _clean(db: psycopg.Connection[Any]) -> None:
    tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (SCHEMA,)).fetchall()
    remove_leftovers(db, [table for (table,) in tables])


def person_rows(
    at: ServerDatabase, addresses: Collection[str], sessions: Collection[str], turns: Collection[str]
) -> PersonRows:
    """Find a person's rows; nothing is changed, and a daemon may be at work. Raises `StoreUnavailable`."""
    with _transaction(at, "person", look_only=True) as db:
        return erasure.find(db, addresses, sessions, turns)


def erase_rows(
    at: ServerDatabase,
    addresses: Collection[str],
    sessions: Collection[str],
    turns: Collection[str],
    *,
    now: float,
) -> PersonRows:
    """
    Remove a person's rows.

    Raises:
        StoreUnavailable: It was not done, or nobody knows; once more does it.
    """
    with _transaction(at, "forget", look_only=False) as db:
        return erasure.erase(db, addresses, sessions, turns, now=now)


def named_in_rows(at: ServerDatabase, names: Collection[str]) -> frozenset[str]:
    """
    Which of these texts stand in a message that is still there: files that are still needed. Raises
    `StoreUnavailable`.
    """
    with _transaction(at, "person", look_only=True) as db:
        return erasure.named(db, names)


def repeated_in_rows(
    at: ServerDatabase, blanked: Callable[[Any], Any], theirs: PersonRows, *, change: bool
) -> dict[str, int]:
    """
    How many texts of each table ``blanked`` changes, without ``theirs``; with ``change`` they are changed.
    Raises `StoreUnavailable`.
    """
    with _transaction(at, "forget", look_only=not change) as db:
        return repeated(db, blanked, theirs, change=change)
