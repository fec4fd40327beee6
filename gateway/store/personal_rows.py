"""Opens the rows of either engine, the SQLite file or a PostgreSQL database, to find or erase a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.store.opening import open_postgres, open_sqlite
from gateway.store.place import QueuePlace, ServerDatabase
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.person_address import AddressChange, rename
from gateway.store.stores import Trouble


@contextmanager
def personal_transaction(
    place: QueuePlace, operation: str = "person", *, change: bool = False, compact: bool = False
) -> Iterator[ConnectionPort]:
    """
    Open a transaction, without ``change`` beside a daemon; ``compact`` leaves no deleted bytes.

    Raises `StoreUnavailable`, `ConfigInvalid`; repeatable.
    """
    if isinstance(place, Path):
        from gateway.store.sqlite.sqlite_restore import transaction as in_file  # noqa: PLC0415 - one of the two is loaded

        with open_sqlite(), in_file(place, operation, change=change, compact=compact) as file:
            yield file
        return
    with open_postgres():
        from gateway.store.postgres.postgres_erasure import transaction as on_server  # noqa: PLC0415 - as above

        with on_server(place, operation, change=change, compact=compact) as server:
            yield server


def read_text(place: QueuePlace, topic: str) -> str | None:
    """Do what `StateStore.read` does, beside a daemon. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with personal_transaction(place) as db:
        row = db.execute("SELECT value FROM state WHERE topic = ?", (topic,)).fetchone()
        return None if row is None else str(row[0])


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
    with personal_transaction(place, "person move", change=True) as db:
        if isinstance(place, ServerDatabase):
            from gateway.store.postgres.histories.personal_lines import rename_histories  # noqa: PLC0415 - the default has no driver
            from gateway.store.postgres.postgres_queue import HOME  # noqa: PLC0415 - as above

            rename_histories(db, HOME, change)
        return rename(db, change)
