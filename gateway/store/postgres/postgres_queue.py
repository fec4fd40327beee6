"""
Opens and closes the queue in PostgreSQL, for several processes at once: four writer threads, two reader
threads. The stores are those of the embedded queue, in ``store/sql``; ``postgres_connection.py`` has the
transactions, ``pool.py`` the threads, ``postgres_schema.py`` the tables, ``triggers.py`` the signals.
Everything that has returned is on the disk of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, tzinfo
from functools import partial
from typing import Protocol, Self, runtime_checkable

import psycopg
import structlog

from agent_core.ports import Clock
from gateway.store.postgres import postgres_schema
from gateway.store.postgres.account_documents import AccountState
from gateway.store.postgres.histories.database_memory import PostgresMemory, PostgresSearch, journal_of
from gateway.store.postgres.pool import ReadCall, WriteCall
from gateway.store.postgres.postgres_connection import connect, place_of
from gateway.store.postgres.postgres_errors import missing_rights_error, open_error
from gateway.store.postgres.postgres_schema import tables_without_rights
from gateway.store.postgres.restore_detection import Failover, begin, note_server
from gateway.store.rollback_guard import Extent, Gap, HighWaterMark
from gateway.store.sql.engine import ALONE, NOTHING, ConnectionPort, Database, Journal
from gateway.store.sql.signals import Fact, Signals
from gateway.store.state_key import StateKey
from gateway.store.store_errors import StoreUnavailable, StoreUnusable
from gateway.store.stores import MemoryInDatabase, Queue, Snapshot
from gateway.store.wakeups import Wakeups

HOME = 1
"""The one home of a deployment."""
_NAMED = 3
_log = structlog.get_logger(__name__)


class NoSnapshots:
    """Implements `gateway.store.stores.SnapshotStore` by an error that says who makes copies."""

    def __init__(self, where: str) -> None:
        self._where = where

    @property
    def file(self) -> str:
        """The database, without a password."""
        return self._where

    async def snapshot(self, target: str, histories: str) -> Snapshot:
        """Raise StoreUnavailable always."""
        raise StoreUnavailable(
            f"The queue is in {self._where}: back it up with the tools of the server, such as pg_dump.",
            path=self._where,
            operation="snapshot",
        )


@runtime_checkable
class _Following(Protocol):
    """A clock that follows another one."""

    def follow(self, ask: Callable[[], float]) -> float: ...


class PostgresQueue(Queue):
    """The queue in PostgreSQL. Created by `open`."""

    home = HOME
    writer: WriteCall

    def account_state(self, key: StateKey) -> AccountState:
        """Return the state of accounts in the same database; the caller opens it."""
        return AccountState(self.writer, key)

    async def check_rights(self) -> None:
        """Check the role's rights, read-only. Raises StoreUnusable or StoreUnavailable."""
        found = await self.database.reader.call("rights", tables_without_rights)
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            named = ", ".join(found[:_NAMED])
            raise missing_rights_error(self.writer.where, f"it may not read, or not change, {named}{more}")

    async def check_restored(self, mark: HighWaterMark | None) -> Gap | None:
        """
        Check under the lease that the database was not restored to an earlier moment.

        Returns the gap of messages that the lost part may have answered, after an accepted restore. Raises
        StoreUnusable (a person must decide) or StoreUnavailable.
        """
        where = self.writer.where
        extent = Extent.from_counts(self.database.secret, *await self.maintenance.last_ids())
        restored = await self.database.writer.call(
            "begin", lambda db: begin(db, where, mark, extent), locks=ALONE
        )
        return None if restored is None else restored.gap

    async def note_server(self) -> None:
        """Record the server and its replication for the next start. Raises StoreUnavailable."""
        await self.database.writer.call("note_server", note_server, locks=NOTHING)

    def memory_in_database(self, *, vectors: bool = False) -> MemoryInDatabase:
        """Return the histories and memory in the same database."""
        memory = PostgresMemory(self.database, self.home)
        search = PostgresSearch(self.database, self.home, vectors=vectors)
        return MemoryInDatabase(memory, search, memory.named_files)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock,
        zone: tzinfo | None = UTC,
        wakeups: Wakeups | None = None,
        home: int = HOME,
        journal: Journal | None = None,
    ) -> Self:
        """
        Connect to a database that has the tables; nothing is changed.

        Args:
            clock: The source of every time in the database; a machine's clock follows the server's.
            zone: The time zone of the days of usage; None: this machine's.
            home: The home whose rows are seen and created.
            journal: Stores the lines of histories; by default in their table.

        Raises:
            StoreUnavailable: Not now.
            StoreUnusable: A person must act first.
        """
        server, where = _HomeOnServer(url, home), place_of(url)
        secret = await asyncio.to_thread(server.identify, clock)
        signals = None if wakeups is None else Signals(wakeups, lambda: clock.now().timestamp())

        def note_facts(facts: str) -> None:
            if signals is not None:
                signals.fire(_read(facts))

        def opened() -> psycopg.Connection:
            return server.connect(secret, works=writer.has_lease)

        writer = WriteCall(
            "store-writer", where, opened, home=home, size=4, look_only=False, heard=note_facts
        )
        reader = ReadCall("store-reader", where, opened, home=home, size=2, look_only=True)
        database = Database(
            writer,
            reader,
            secret,
            clock,
            zone,
            journal or journal_of(home),
            server_clock=partial(_server_clock, clock),
            fencing=writer,
        )
        queue = cls(database, NoSnapshots(where))
        queue.home, queue.writer = home, writer
        return queue


class _HomeOnServer:
    """Connects to the rows of one home, and to no other database in their place."""

    def __init__(self, url: str, home: int) -> None:
        self._url, self._where, self._home = url, place_of(url), home
        self._failover = Failover()

    def _identity(self, db: psycopg.Connection, *, works: bool) -> str:
        postgres_schema.check(db, self._where)
        self._failover.check(db, works=works)
        return postgres_schema.identity(db, self._home)

    def identify(self, clock: Clock) -> str:
        """Return the identity of the rows; ``clock`` follows the server's. Raises as `PostgresQueue.open`."""
        try:
            with connect(self._url) as db:
                secret = self._identity(db, works=False)
                _server_clock(clock, db)
                return secret
        except psycopg.Error as error:
            raise open_error(error, self._where, "open") from error

    def connect(self, secret: str, *, works: bool) -> psycopg.Connection:
        """Return a new connection; ``works``: of a daemon with the lease. Raises psycopg.OperationalError."""
        db = connect(self._url)
        try:
            found = self._identity(db, works=works)
        except StoreUnusable as error:
            # It was usable at the start, and may be so again: somebody is restoring it at this moment.
            db.close()
            raise psycopg.OperationalError(str(error)) from error
        except BaseException:
            db.close()
            raise
        if found == secret:
            return db
        db.close()
        raise psycopg.OperationalError("another database is in its place")


def _server_clock(clock: Clock, db: ConnectionPort | psycopg.Connection) -> float:
    """
    Return the server's current time, not the transaction's start: it may have waited for a lock since.

    The clock of the machine follows it.
    """

    def ask() -> float:
        found = db.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        assert found is not None
        return float(found[0])

    return clock.follow(ask) if isinstance(clock, _Following) else ask()


def _read(facts: str) -> Iterator[Fact]:
    """Parse what the triggers have recorded, each fact once: lines of JSON without line feeds."""
    unreadable = 0
    for line in dict.fromkeys(filter(None, facts.split("\n"))):
        try:
            yield json.loads(line)
        except ValueError:
            unreadable += 1
    if unreadable:
        _log.error("signal.unreadable", lines=unreadable)


def migrate(url: str, home: int = HOME) -> str:
    """Create the tables; return what was done. Raises StoreUnavailable, StoreUnusable."""
    where = place_of(url)
    try:
        with connect(url) as db:
            changed = postgres_schema.prepare(db, where, home)
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreUnusable(
            f"The role of {where} may not make tables there: {error.diag.message_primary}.", path=where
        ) from error
    except psycopg.Error as error:
        raise open_error(error, where, "migrate") from error
    if not changed:
        return f"{where} has the tables of this version; there was nothing to do"
    return f"{where} has squidbot's tables now (schema {postgres_schema.VERSION})"
