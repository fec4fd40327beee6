"""
Opens and closes the embedded queue: one SQLite file, one thread that writes, one that reads. Each store is a
class of its own over the same `Database`, in its own file in ``store/sql``; the SQL is in files ending with
``_statements.py``. ``sqlite_connection.py`` has the threads, ``sqlite_schema.py`` the file. Objects are
converted to JSON and back on the event loop, so that the writing thread only writes. What survives what: with
``synchronous="full"`` everything that has returned survives a power cut, except for claims, ``sending``
marks, parked turns and cleared journal lines. Losing one of those is equivalent to an interruption before it,
and all of them survive a killed process.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Self

from agent_core.ports import Clock
from gateway.store.sql.engine import Database
from gateway.store.sql.signals import Signals
from gateway.store.sqlite import sqlite_schema
from gateway.store.sqlite.sqlite_connection import Reader, Synchronous, Writer
from gateway.store.sqlite.sqlite_errors import is_damage
from gateway.store.sqlite.sqlite_snapshot import SqliteSnapshots
from gateway.store.sqlite.watching import CommitWatch
from gateway.store.store_errors import StoreUnavailable
from gateway.store.stores import Queue
from gateway.store.wakeups import Wakeups


class SqliteQueue(Queue):
    """The embedded queue. Created by `open`."""

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Clock,
        synchronous: Synchronous = "full",
        busy_timeout_s: float = 5.0,
        zone: tzinfo | None = UTC,
        wakeups: Wakeups | None = None,
    ) -> Self:
        """
        Open or create the database, readable by its owner alone.

        Args:
            synchronous: ``full``: results survive a power cut. ``normal``: they survive a kill.
            busy_timeout_s: The wait for another program's lock.
            zone: The time zone of the days of usage; None: this machine's.
            wakeups: The signals fired after each commit.

        Raises:
            StoreUnavailable: Not now.
        StoreCorrupt, StoreTooNew, StoreMoved: A person must act first; the file was not changed.
        """
        file = Path(path)
        try:
            sqlite_schema.create_file(file)
        except OSError as error:
            raise StoreUnavailable(
                f"the database cannot be made: {error.strerror}", path=str(file), operation="open"
            ) from error
        identity: list[str] = []
        watch = None if wakeups is None else CommitWatch(Signals(wakeups, lambda: clock.now().timestamp()))

        def connect() -> sqlite_schema.EmbeddedConnection:
            db = sqlite_schema.open_writer(file, busy_timeout_s=busy_timeout_s)
            try:
                sqlite_schema.prepare(db, file)
                sqlite_schema.identify(db, file, identity)
                if watch is not None:
                    watch.install(db)
            except BaseException:
                db.close()
                raise
            return db

        writer = Writer(file, connect, synchronous=synchronous, watch=watch)
        try:
            await writer.call("open", lambda db: db.execute("SELECT COUNT(*) FROM positions").fetchone())
        except BaseException as error:
            await writer.aclose()
            if isinstance(error.__cause__, sqlite3.Error) and is_damage(error.__cause__):
                raise sqlite_schema.corrupt(file, error.__cause__) from error.__cause__
            raise
        reader = Reader(file, lambda: sqlite_schema.open_reader(file, busy_timeout_s=busy_timeout_s))
        return cls(Database(writer, reader, identity[0], clock, zone), SqliteSnapshots(writer))
