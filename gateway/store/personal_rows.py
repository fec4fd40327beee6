"""Finds and erases a person's rows in either engine: the SQLite file or a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.store.opening import open_postgres, open_sqlite
from gateway.store.place import QueuePlace, ServerDatabase
from gateway.store.sql import erasure_statements
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.erasure_statements import PersonRows, count_repetitions
from gateway.store.sql.person_address import AddressChange, rename
from gateway.store.stores import Trouble


@contextmanager
def _transaction(
    place: QueuePlace, operation: str = "person", *, change: bool = False, compact: bool = False
) -> Iterator[ConnectionPort]:
    """Open a transaction; without ``change`` beside a daemon. ``compact`` leaves no deleted bytes."""
    if isinstance(place, Path):
        from gateway.store.sqlite.sqlite_restore import transaction as in_file  # noqa: PLC0415 - one of the two is loaded

        with open_sqlite(), in_file(place, operation, change=change, compact=compact) as file:
            yield file
        return
    with open_postgres():
        from gateway.store.postgres.postgres_erasure import transaction as on_server  # noqa: PLC0415 - as above

        with on_server(place, operation, change=change, compact=compact) as server:
            yield server


def person_rows(
    place: QueuePlace, addresses: Collection[str], sessions: Collection[str], turns: Collection[str]
) -> PersonRows:
    """Find a person's rows; nothing is changed. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with _transaction(place) as db:
        return erasure_statements.find(db, addresses, sessions, turns)


def read_text(place: QueuePlace, topic: str) -> str | None:
    """Do what `StateStore.read` does, beside a daemon. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with _transaction(place) as db:
        row = db.execute("SELECT value FROM state WHERE topic = ?", (topic,)).fetchone()
        return None if row is None else str(row[0])


def erase_rows(
    place: QueuePlace,
    addresses: Collection[str],
    sessions: Collection[str],
    turns: Collection[str],
    *,
    now: float,
) -> PersonRows:
    """Erase a person's rows and bytes; repeatable. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with _transaction(place, "forget", change=True, compact=True) as db:
        return erasure_statements.erase(db, addresses, sessions, turns, now=now)


def named_in_rows(place: QueuePlace, names: Collection[str]) -> frozenset[str]:
    """Return which texts occur in existing messages. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with _transaction(place) as db:
        return erasure_statements.named_files(db, names)


def repeated_in_rows(place: QueuePlace, repeats: Callable[[Any], bool], theirs: PersonRows) -> dict[str, int]:
    """Count texts per table that ``repeats`` matches, before `erase_rows`, without ``theirs``."""
    with _transaction(place, "forget") as db:
        return count_repetitions(db, repeats, theirs)


def table_problems(place: ServerDatabase) -> list[Trouble]:
    """Report problems in the tables of histories and memory. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with open_postgres():
        from gateway.store.postgres.histories.history_integrity import troubles  # noqa: PLC0415 - the default has no driver
        from gateway.store.postgres.histories.personal_lines import KeptTables  # noqa: PLC0415 - as above
        from gateway.store.postgres.postgres_queue import HOME  # noqa: PLC0415 - as above

        with KeptTables(place, HOME) as kept:
            return list(troubles(kept))


def rename_person(place: QueuePlace, change: AddressChange) -> int:
    """
    Give a person's rows to their new address, in one transaction; on a server histories and memory, too.
    Raises `StoreUnavailable`.
    """
    with _transaction(place, "person move", change=True) as db:
        if isinstance(place, ServerDatabase):
            from gateway.store.postgres.histories.personal_lines import rename_histories  # noqa: PLC0415 - the default has no driver
            from gateway.store.postgres.postgres_queue import HOME  # noqa: PLC0415 - as above

            rename_histories(db, HOME, change)
        return rename(db, change)
