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

import os
import sqlite3
from contextlib import closing
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Self
from urllib.parse import quote

import anyio.to_thread

from agent_core.files import sync
from agent_core.ports import Clock
from gateway.store.sql.engine import Database
from gateway.store.sql.signals import Signals
from gateway.store.sqlite import sqlite_schema
from gateway.store.sqlite.sqlite_connection import Reader, Synchronous, Writer
from gateway.store.sqlite.sqlite_errors import is_damage, unavailable
from gateway.store.sqlite.watching import CommitWatch
from gateway.store.store_errors import StoreUnavailable
from gateway.store.stores import Queue, Snapshot
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


class SqliteSnapshots:
    """Implements `gateway.store.stores.SnapshotStore`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def file(self) -> str:
        """See `SnapshotStore`."""
        return str(self._writer.path)

    async def snapshot(self, target: str, histories: str) -> Snapshot:
        """See `SnapshotStore`."""
        path = self._writer.path
        held: list[sqlite3.Connection] = []
        lengths: dict[str, int] = {}

        def stand_still(_: sqlite3.Connection) -> None:
            # It may run twice; then the result from the batch that was rolled back is no longer true.
            _let_go(held)
            lengths.clear()
            held.append(_reading(path))
            lengths.update(_sizes(Path(histories)))

        try:
            await self._writer.call("snapshot", stand_still)
            # anyio waits for the thread even if cancelled, so the connection closed below is not in use then.
            return await anyio.to_thread.run_sync(_copied, held[0], Path(target), lengths)
        except sqlite3.Error as error:
            raise unavailable(error, path, "snapshot") from error
        finally:
            _let_go(held)


def _let_go(held: list[sqlite3.Connection]) -> None:
    while held:
        held.pop().close()


def _reading(path: Path) -> sqlite3.Connection:
    """Open a connection that sees the last commit, and nothing later."""
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro",
        uri=True,
        isolation_level=None,
        timeout=5.0,
        check_same_thread=False,  # opened on the writing thread, used on another
    )
    try:
        db.execute("BEGIN")
        db.execute("SELECT COUNT(*) FROM meta").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _sizes(folder: Path) -> dict[str, int]:
    try:
        with os.scandir(folder) as found:
            return {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in found
                if entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False)
            }
    except FileNotFoundError:
        return {}


def _copied(source: sqlite3.Connection, target: Path, lengths: dict[str, int]) -> Snapshot:
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        (schema,) = copy.execute("PRAGMA user_version").fetchone()
        (secret,) = copy.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
        inbox, outbox = copy.execute(
            "SELECT COALESCE((SELECT MAX(id) FROM inbox), 0), COALESCE((SELECT MAX(id) FROM outbox), 0)"
        ).fetchone()
    sync(target)
    return Snapshot(schema, inbox, outbox, secret, lengths)
