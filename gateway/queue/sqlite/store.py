"""
The embedded `WorkStore`: one SQLite file, one thread that writes, one that reads.

This file opens and closes it. The port's calls become transactions in ``inbox.py`` (the way in),
``outbox.py`` (the way out), ``state.py`` and ``maintenance.py`` (everything else), each over the SQL of
``inbox_sql.py``, ``outbox_sql.py``, ``maintenance_sql.py`` and ``leases.py``. The other ports have stores of
their own over the same `Database`: ``jobs.py``, ``usage.py`` and ``approvals.py``. ``connection.py`` has the
threads, ``schema.py`` is the file. Objects are turned into JSON and back on the event loop, so that the
writing thread only writes.

What survives what: with ``synchronous="full"`` everything that has returned survives a power cut, except for
claims, ``sending`` marks, parked turns and cleared journal lines. Losing one of those is the same as having
been interrupted before it, and all of them survive a killed process.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, tzinfo
from pathlib import Path
from types import TracebackType
from typing import Self

from agent_core.ports import Clock
from gateway.queue.ports import StoreUnavailable
from gateway.queue.sqlite import maintenance_sql, schema
from gateway.queue.sqlite.approvals import SqliteApprovalStore
from gateway.queue.sqlite.base import Database
from gateway.queue.sqlite.connection import Reader, Synchronous, Writer
from gateway.queue.sqlite.errors import is_damage
from gateway.queue.sqlite.inbox import InboxStore
from gateway.queue.sqlite.jobs import SqliteJobStore
from gateway.queue.sqlite.maintenance import Maintenance
from gateway.queue.sqlite.outbox import OutboxStore
from gateway.queue.sqlite.snapshot import SnapshotStore
from gateway.queue.sqlite.state import StateTable
from gateway.queue.sqlite.usage import SqliteUsageStore
from gateway.queue.sqlite.watching import Watch
from gateway.queue.wakeups import Wakeups

__all__ = ["SqliteWorkStore"]

_BUSY_TIMEOUT_S = 5.0


class SqliteWorkStore(InboxStore, OutboxStore, Maintenance, StateTable, SnapshotStore):
    """
    Implements `gateway.queue.ports.WorkStore`; the other stores over the same database are its `jobs`,
    `costs` and `approvals`. Made by `open`, ended by `aclose` or ``async with``.

    All calls come from the event loop on which it was opened.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.jobs = SqliteJobStore(database)
        self.costs = SqliteUsageStore(database)
        self.approvals = SqliteApprovalStore(database)

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Clock,
        synchronous: Synchronous = "full",
        busy_timeout_s: float = _BUSY_TIMEOUT_S,
        zone: tzinfo | None = UTC,
        wakeups: Wakeups | None = None,
    ) -> Self:
        """
        Open the database, or make it, readable for its owner alone.

        Args:
            path: The file; its folder must exist.
            clock: Where every time in the database comes from.
            synchronous: ``full``: what has returned survives a power cut. ``normal``: it survives a kill.
            busy_timeout_s: How long a lock of another program is waited for.
            zone: Where the days begin by which usage is kept; None is the zone of this machine.
            wakeups: Told after each commit what became true with it.

        Raises:
            StoreUnavailable: Not now.
            StoreCorrupt, StoreTooNew: Not without a person; the file was not changed.
        """
        file = Path(path)
        try:
            schema.create_file(file)
        except OSError as error:
            raise StoreUnavailable(
                f"the database cannot be made: {error.strerror}", path=str(file), operation="open"
            ) from error
        identity: list[str] = []
        watch = None if wakeups is None else Watch(wakeups, lambda: clock.now().timestamp())

        def connect() -> sqlite3.Connection:
            db = schema.open_writer(file, busy_timeout_s=busy_timeout_s)
            try:
                schema.prepare(db, file)
                schema.identify(db, identity)
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
                raise schema.corrupt(file, error.__cause__) from error.__cause__
            raise
        reader = Reader(file, lambda: schema.open_reader(file, busy_timeout_s=busy_timeout_s))
        return cls(Database(writer, reader, identity[0], clock, zone))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish what is queued and let go of the database."""
        await self._reader.aclose()
        await self._writer.aclose()

    async def last_ids(self) -> tuple[int, int]:
        """The highest ids of inbox and outbox."""
        return await self._reader.call("last_ids", maintenance_sql.last_ids)

    @property
    def identity(self) -> str:
        """The random text that tells this database from every other; a secret."""
        return self._secret

    @property
    def refusing(self) -> bool:
        """Whether the newest commit was refused by the disk."""
        return self._writer.failing

    @property
    def stalled_s(self) -> float:
        """For how long the disk has not come back from the work in hand; for liveness checks and metrics."""
        return max(self._writer.stalled_s, self._reader.stalled_s)
