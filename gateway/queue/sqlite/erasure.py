"""
A person in ``gateway.db``: found while a daemon may be at work, and removed for good while none is.

Deleted rows leave their bytes in the file, in free pages and in the log beside it. So rows are overwritten
(``secure_delete``), the file is written anew (``VACUUM``) and the log is emptied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from gateway.queue.sql import erasure
from gateway.queue.sql.erasure import PersonRows
from gateway.queue.sql.repetitions import repeated
from gateway.queue.sqlite.errors import unavailable
from gateway.queue.sqlite.schema import EmbeddedConnection, identify, open_reader, open_writer, prepare

_BUSY_S = 5.0


@contextmanager
def _looking(path: Path, operation: str) -> Iterator[EmbeddedConnection]:
    """All that is looked up is of one moment."""
    try:
        with closing(open_reader(path, busy_timeout_s=_BUSY_S)) as db:
            db.execute("BEGIN")
            identify(db, path, [])
            yield db
    except sqlite3.Error as error:
        raise unavailable(error, path, operation) from error


@contextmanager
def _changing(path: Path, operation: str) -> Iterator[EmbeddedConnection]:
    """A transaction in which what is deleted is overwritten."""
    try:
        with closing(open_writer(path, busy_timeout_s=_BUSY_S)) as db:
            prepare(db, path)
            identify(db, path, [])
            db.execute("PRAGMA secure_delete = ON")
            db.execute("BEGIN IMMEDIATE")
            yield db
            if db.in_transaction:
                db.execute("COMMIT")
    except sqlite3.Error as error:
        raise unavailable(error, path, operation) from error


def person_rows(
    path: Path, addresses: Collection[str], sessions: Collection[str], turns: Collection[str]
) -> PersonRows:
    """Find a person's rows; nothing is changed, and a daemon may be at work. Raises `StoreUnavailable`."""
    with _looking(path, "person") as db:
        return erasure.find(db, addresses, sessions, turns)


def erase_rows(
    path: Path, addresses: Collection[str], sessions: Collection[str], turns: Collection[str], *, now: float
) -> PersonRows:
    """
    Remove a person's rows, and their bytes from the file. Nobody else may have it open.

    Raises:
        StoreUnavailable: It was not done, or not to the end; once more does it.
    """
    with _changing(path, "forget") as db:
        found = erasure.erase(db, addresses, sessions, turns, now=now)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return found


def named_in_rows(path: Path, names: Collection[str]) -> frozenset[str]:
    """
    Which of these texts stand in a message that is still there: files that are still needed. Raises
    `StoreUnavailable`.
    """
    with _looking(path, "person") as db:
        return erasure.named(db, names)


def repeated_in_rows(
    path: Path, blanked: Callable[[Any], Any], theirs: PersonRows, *, change: bool
) -> dict[str, int]:
    """
    How many texts of each table ``blanked`` changes, without ``theirs``; with ``change`` they are changed.
    Raises `StoreUnavailable`.
    """
    with (_changing if change else _looking)(path, "forget") as db:
        return repeated(db, blanked, theirs, change=change)
