"""
The queue in PostgreSQL, for several processes at once: four threads that write, two that read.

This file opens and closes it. The stores are those of the embedded queue, in ``queue/sql``; ``connection.py``
is a transaction, ``pool.py`` has the threads, ``schema.py`` the tables, ``triggers.py`` the signals.

Everything that has returned is on the disk of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import psycopg
import structlog

from agent_core.ports import Clock
from gateway.queue.errors import StoreUnusable
from gateway.queue.memory_in_database import MemoryInDatabase
from gateway.queue.postgres import schema
from gateway.queue.postgres.account_state import AccountState
from gateway.queue.postgres.connection import connect, place_of
from gateway.queue.postgres.errors import may_not, refused
from gateway.queue.postgres.failover import Failover
from gateway.queue.postgres.histories.memory import PostgresMemory, PostgresSearch, journal_of
from gateway.queue.postgres.notifications import Notifications, tell_once
from gateway.queue.postgres.pool import Reading, Writing
from gateway.queue.postgres.restore_detection import begin, refuse_older
from gateway.queue.postgres.rights import without_rights
from gateway.queue.postgres.snapshots import NoSnapshots
from gateway.queue.rollback_guard import Extent, Gap, HighWaterMark
from gateway.queue.sql.base import Database, Journal
from gateway.queue.sql.calls_in_flight import CallsInFlight
from gateway.queue.sql.cluster import EVERYBODY
from gateway.queue.sql.engine import ALONE, NOTHING, Connection
from gateway.queue.sql.signals import Fact, Signals
from gateway.queue.state_key import StateKey
from gateway.queue.stores import Queue
from gateway.queue.wakeups import Wakeups

if TYPE_CHECKING:
    from gateway.queue.sql.shared_turns import SharedTurns

HOME = 1
"""The one home of a deployment."""
_WRITERS = 4
_READERS = 2
_NAMED = 3
_log = structlog.get_logger(__name__)


@runtime_checkable
class _Following(Protocol):
    """A clock that keeps the time of another one."""

    def follow(self, ask: Callable[[], float]) -> float:
        """See `gateway.system.clock.SystemClock.follow`."""
        ...


class PostgresQueue(Queue):
    """Made by `open`."""

    home = HOME
    writer: Writing
    _connect: Callable[[], psycopg.Connection]

    def account_state(self, key: StateKey) -> AccountState:
        """What accounts keep for themselves, in the same database; to be opened."""
        return AccountState(self.writer, key)

    def notifications(self) -> Notifications:
        """What the processes on this database tell each other; to be run."""
        return Notifications(self.writer.where, self._connect, self.home)

    def share_turns(self, channels: Collection[str]) -> SharedTurns:
        """From now on `turns` is what this gives: workers have a part in conversations of these channels."""
        from gateway.queue.sql.shared_turns import SharedTurns  # noqa: PLC0415 - only where there are workers

        self.turns = shared = SharedTurns(self.database, channels)
        return shared

    def calls_in_flight(self, holder: str, others: Callable[[], bool]) -> CallsInFlight:
        """The model calls in flight of all processes on this database, for the one of this name."""
        return CallsInFlight(self.database, holder, others)

    async def check_rights(self) -> None:
        """
        See that the role may do all that a daemon does. Nothing is changed.

        Raises:
            StoreUnusable: It may not.
            StoreUnavailable: Not now.
        """
        found = await self.database.reader.call("rights", without_rights)
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            named = ", ".join(found[:_NAMED])
            raise may_not(self.writer.where, f"it may not read, or not change, {named}{more}")

    async def tell_others(self, name: str = EVERYBODY) -> None:
        """
        Have every daemon on this database look for what was written for its accounts, or for what else a name
        stands for. It needs no lease. Raises `StoreUnavailable`.
        """
        await self.writer.call("tell", lambda db: tell_once(db, self.home, name), locks=NOTHING)

    async def begun(self, mark: HighWaterMark | None) -> Gap | None:
        """
        At the start of a daemon, which holds its lease: see that the database was not restored to an earlier
        moment. Gives what may have been answered by what a restore has lost.

        Raises:
            StoreUnusable: It may have been; a person has to say so first.
            StoreUnavailable: Not now.
        """
        where = self.writer.where
        restored = await self.database.writer.call("begin", lambda db: begin(db, where), locks=ALONE)
        extent = Extent.of(self.database.secret, *await self.maintenance.last_ids())
        refuse_older(where, mark, extent, restored)
        return None if restored is None else restored.gap

    def memory_in_database(self) -> MemoryInDatabase:
        """The histories and memory in the same database."""
        memory = PostgresMemory(self.database, self.home)
        return MemoryInDatabase(memory, PostgresSearch(self.database, self.home), memory.named_files)

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
        Connect to a database whose tables are there; nothing is changed.

        Args:
            url: Of libpq, ``postgresql://…``.
            clock: Where every time in the database comes from; one of a machine follows that of the server.
            zone: Where the days begin by which usage is kept; None is the zone of this machine.
            wakeups: Told after each commit what became true with it.
            home: Whose rows are seen and made.
            journal: Where lines of histories go; by default into their table.

        Raises:
            StoreUnavailable: Not now.
            StoreUnusable: Not without a person.
        """
        where, failover = place_of(url), Failover()

        def look() -> str:
            try:
                with connect(url) as db:
                    schema.check(db, where)
                    failover.check(db)
                    _server_clock(clock, db)
                    return schema.identity(db, where, home)
            except psycopg.Error as error:
                raise refused(error, where, "open") from error

        secret = await asyncio.to_thread(look)
        signals = None if wakeups is None else Signals(wakeups, lambda: clock.now().timestamp())

        def heard(facts: str) -> None:
            if signals is not None:
                signals.tell(_read(facts))

        def opened() -> psycopg.Connection:
            db = connect(url)
            try:
                schema.check(db, where)
                failover.check(db)
                found = schema.identity(db, where, home)
            except StoreUnusable as error:
                # It was usable when we began, and may be so again: somebody restores it at this moment.
                db.close()
                raise psycopg.OperationalError(str(error)) from error
            except BaseException:
                db.close()
                raise
            if found == secret:
                return db
            db.close()
            raise psycopg.OperationalError("another database is in its place")

        writer = Writing(
            "store-writer", where, opened, home=home, size=_WRITERS, look_only=False, heard=heard
        )
        reader = Reading("store-reader", where, opened, home=home, size=_READERS, look_only=True)
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
        queue._connect = opened
        return queue


def _server_clock(clock: Clock, db: Connection | psycopg.Connection) -> float:
    """
    Not the time at which the transaction began: it may have waited for a lock since.

    The clock of the machine follows it.
    """

    def ask() -> float:
        found = db.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        assert found is not None
        return float(found[0])

    return clock.follow(ask) if isinstance(clock, _Following) else ask()


def _read(facts: str) -> Iterator[Fact]:
    """What the triggers have noted, each once: lines of JSON, in which no line feed stands."""
    unreadable = 0
    for line in dict.fromkeys(filter(None, facts.split("\n"))):
        try:
            yield json.loads(line)
        except ValueError:
            unreadable += 1
    if unreadable:
        _log.error("signal.unreadable", lines=unreadable)


def migrate(url: str, home: int = HOME) -> str:
    """
    Make the tables, or bring them up to date; returns what was done, in words.

    Raises:
        StoreUnavailable: Not now.
        StoreUnusable: Not without a person; nothing was changed.
    """
    where = place_of(url)
    try:
        with connect(url) as db:
            changed = schema.prepare(db, where, home)
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreUnusable(
            f"The role of {where} may not make tables there: {error.diag.message_primary}.", path=where
        ) from error
    except psycopg.Error as error:
        raise refused(error, where, "migrate") from error
    if not changed:
        return f"{where} has the tables of this version; there was nothing to do"
    return f"{where} has squidbot's tables now (schema {schema.VERSION})"
