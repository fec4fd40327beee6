"""
The threads that make the calls of the event loop on connections to PostgreSQL.

Theory of operation. Calls are put into one queue; each thread takes one at a time and makes one transaction
of it. There is no group commit of ours: calls of several sessions in one transaction would take their locks
in the order of their arrival, and two processes would wait for each other. The server shares its syncs by
itself.

Every commit is synced, also of calls that would be content with less. A crash of the server leaves us alive:
had it lost a claim, the next claim would get the same fence, and two would own the turn.

A call that meets another one (a deadlock, a lock that was not to be had) is made again at once, a few times.
One whose connection is lost before its commit is made once more on a new one, because nothing of it has
happened. If it is lost in the commit, the server is asked what became of it (``unknown_commits.py``). While
the server is away connections are tried with a growing pause, and calls fail at once in between.

A claim whose caller was cancelled is undone when its result has come back to the event loop: nothing else
tells whether it has happened. The undoing is tried until the server takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import anyio
import psycopg
import structlog

from gateway.queue.errors import Fenced, StoreUnavailable
from gateway.queue.postgres.connection import TOO_MANY, Transaction, timeline_of
from gateway.queue.postgres.errors import in_each_others_way, is_unavailable, no_longer_connected, unavailable
from gateway.queue.postgres.unknown_commits import Call, Doubt, Doubts, Reach, all_facts
from gateway.queue.sql.call_limit import CallLimit
from gateway.queue.sql.engine import NOTHING, Connection, Locks, lock_first

_TRIES = 10
_LOCK_TIMEOUT = "55P03"
_ABOUT_LEASES = frozenset({"lease", "renew_lease", "release_lease", "tell"})
_Result = TypeVar("_Result")
Heard = Callable[[str], object]
"""Is told on the event loop what the triggers of a committed transaction have noted."""
_log = structlog.get_logger(__name__)


class Pool:
    """
    Threads with a connection each.

    Args:
        connect: Makes a connection; called on a thread.
        home: Whose rows are seen and made.
        look_only: Nothing may be changed, and a call sees one state.
        heard: Is told of each commit.
    """

    def __init__(
        self,
        name: str,
        where: str,
        connect: Callable[[], psycopg.Connection],
        *,
        home: int,
        size: int,
        look_only: bool,
        heard: Heard | None = None,
    ) -> None:
        self.where = where
        self._connect = connect
        self.home = home
        self.look_only = look_only
        self._heard = heard
        self.reach = Reach()
        self._doubts = Doubts(self)
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._calls_under_way = CallLimit(where)
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._failing = False
        self.closing = False
        self._needs: tuple[str, str, int] | None = None
        self._busy_since: list[float | None] = [None] * size
        self._threads = [
            threading.Thread(target=self._main, args=(number,), name=f"{name}-{number}", daemon=True)
            for number in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def connected(self) -> tuple[psycopg.Connection, str]:
        """A new connection, and the history of its server; called on a thread."""
        too_early = self.reach.look()
        if too_early is not None:
            raise too_early.with_traceback(None)  # it is raised many times, and would remember them all
        try:
            db = self._connect()
            timeline = "" if self.look_only else timeline_of(db)
        except psycopg.Error as error:
            if is_unavailable(error):
                self.reach.failed(error)
            raise
        self.reach.succeeded()
        return db, timeline

    def transaction(self, db: psycopg.Connection, name: str) -> Transaction:
        """For a call of this name."""
        # A lease is renewed also while a recovery waits for what somebody has left open.
        of_lease = name in _ABOUT_LEASES
        needs = None if of_lease else self._needs
        return Transaction(db, self.home, look_only=self.look_only, needs=needs, meets_recovery=not of_lease)

    @property
    def stalled_s(self) -> float:
        """For how long the server has not come back from the longest call in hand."""
        now = time.monotonic()
        return max((now - since for since in self._busy_since if since is not None), default=0.0)

    @property
    def failing(self) -> bool:
        """Whether the server said no to the newest call."""
        return self._failing

    async def aclose(self) -> None:
        """Finish what is queued, close the connections, end the threads."""
        self.closing = True
        self._calls_under_way.close()
        with anyio.CancelScope(shield=True):
            await self._none_open.wait()
            for _ in self._threads:
                self._queue.put(None)
            for thread in self._threads:
                await asyncio.to_thread(thread.join)

    async def _call(
        self,
        name: str,
        run: Callable[[Connection], _Result],
        locks: Locks,
        undo: Callable[[Connection, _Result], object] | None,
    ) -> _Result:
        await self._calls_under_way.enter(name)
        future: asyncio.Future[_Result] = self._loop.create_future()
        call = Call(name, run, locks, undo, future)
        self._put(call)
        try:
            return await future
        except asyncio.CancelledError:
            call.abandoned = True
            if call.delivered:
                self._take_back(call)
            raise

    def _put(self, call: Call) -> None:
        self._open += 1
        self._none_open.clear()
        self._queue.put(call)

    def _take_back(self, call: Call) -> None:
        """The caller is gone: what has happened is undone."""
        undo, value = call.undo, call.value
        if undo is not None and call.error is None:
            self._put(Call(call.name, lambda db: undo(db, value), call.locks, None, None, undoes=True))

    # ── on the threads ──

    def _main(self, number: int) -> None:
        serving = _Serving(self)
        try:
            while (call := self._queue.get()) is not None:
                if not call.abandoned:
                    self._busy_since[number] = time.monotonic()
                    serving.serve(call)
                    self._busy_since[number] = None
                else:
                    call.error = asyncio.CancelledError()
                if call.error is not None and (call.doubt is not None or _may_not_fail(call)):
                    self._doubts.add(call)
                else:
                    self.end(call)
        finally:
            serving.disconnect()

    def repeat(self, call: Call) -> None:
        """Nothing of a call has happened: make it again, unless its caller is gone."""
        call.error = call.doubt = None
        self._queue.put(call)

    def tell(self, call: Call) -> None:
        """Let the caller have an error, although it is not known yet what became of the call."""
        self._on_loop(self._give, call)

    def end(self, call: Call) -> None:
        """Give a call back to the event loop with whatever came of it."""
        self._on_loop(self._deliver, call)

    def _on_loop(self, function: Callable[[Call], object], call: Call) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, call)

    # ── on the event loop ──

    def _deliver(self, call: Call) -> None:
        call.delivered = True
        try:
            if call.facts and self._heard is not None:
                # Before the result, so that whoever hears of it has heard when the caller goes on.
                self._heard(call.facts)
        except Exception:  # noqa: BLE001 - the caller waits for its result
            _log.exception("signal.failed")
        self._note(call)
        if call.future is not None:
            self._calls_under_way.leave()
            if call.abandoned:
                self._take_back(call)
            self._give(call)
        self._open -= 1
        if not self._open:
            self._none_open.set()

    @staticmethod
    def _give(call: Call) -> None:
        if call.future is None or call.future.done():
            return
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.value)

    def _note(self, call: Call) -> None:
        """Say it once when the server begins to refuse, and when it has come back."""
        refused = isinstance(call.error, StoreUnavailable)
        if refused and not self._failing:
            _log.error("queue.failed", path=self.where, detail=str(call.error))
        elif self._failing and call.error is None:
            _log.info("queue.recovered", path=self.where)
        self._failing = refused or (self._failing and call.error is not None)


class _Serving:
    """What one thread does: calls, on a connection of its own."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._db: psycopg.Connection | None = None
        self._timeline = ""

    def disconnect(self) -> None:
        """Let go of the connection."""
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error):
                db.close()

    def serve(self, call: Call) -> None:
        """Make a transaction of a call."""
        try:
            self._serve(call)
        except psycopg.Error as error:
            call.error = unavailable(error, self._pool.where, call.name)
            call.error.__cause__ = None if call.error is error else error
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller is told and the thread lives
            call.error = error

    def _serve(self, call: Call) -> None:
        tries, is_second = 0, False
        while True:
            db = self._connected()
            transaction = self._pool.transaction(db, call.name)
            committing = False
            try:
                lock_first(transaction, call.locks)
                call.value = call.run(transaction)
                told = all_facts(transaction) if call.was_in_doubt else ""
                committing = not self._pool.look_only
                noted = transaction.commit()
            except BaseException as error:
                self._undo(transaction)
                if not isinstance(error, psycopg.Error):
                    raise
                if no_longer_connected(error):
                    self.disconnect()
                    if committing and transaction.number is not None:
                        call.doubt = Doubt(transaction.number, self._timeline)
                    if committing or is_second:
                        raise
                    is_second = True
                elif in_each_others_way(error) and tries < _TRIES:
                    tries += 1
                    _log.info("queue.retried", operation=call.name, sqlstate=error.sqlstate, tries=tries)
                    lets_by = error.sqlstate == _LOCK_TIMEOUT
                    time.sleep(random.uniform(0.5, 1.0) if lets_by else random.uniform(0.0, 0.002 * 2**tries))
                else:
                    raise
            else:
                call.facts = told + (self._everything(db, transaction, call) if noted == TOO_MANY else noted)
                return

    def _everything(self, db: psycopg.Connection, committed: Transaction, call: Call) -> str:
        """What waits; if the server does not say, that is found out with what became of the call."""
        look = Transaction(db, self._pool.home, look_only=True)
        try:
            facts = all_facts(look)
            look.commit()
        except psycopg.Error:
            self._undo(look)
            assert committed.number is not None
            call.doubt = Doubt(committed.number, self._timeline)
            raise
        return facts

    def _connected(self) -> psycopg.Connection:
        if self._db is not None and not self._db.closed:
            return self._db
        self._db, self._timeline = self._pool.connected()
        return self._db

    def _undo(self, transaction: Transaction) -> None:
        try:
            transaction.undo()
        except psycopg.Error:
            self.disconnect()


def _may_not_fail(call: Call) -> bool:
    """Whether it undoes something: nobody else would."""
    return (
        call.undoes
        and isinstance(call.error, StoreUnavailable)
        and not isinstance(call.error, Fenced)  # whoever has taken over does it
    )


class Writing(Pool):
    """Implements `gateway.queue.sql.engine.Writer` and `gateway.queue.sql.engine.Fencing`."""

    def work_under(self, name: str, holder: str, fence: int) -> None:
        """From now on each call needs this lease, but for those about leases."""
        self._needs = (name, holder, fence)

    async def idle(self) -> None:
        """Return when no call is under way."""
        await self._none_open.wait()

    async def call(
        self,
        name: str,
        run: Callable[[Connection], _Result],
        *,
        locks: Locks,
        durable: bool = True,
        undo: Callable[[Connection, _Result], object] | None = None,
    ) -> _Result:
        """Run something in a transaction, and return its result when that is committed."""
        return await self._call(name, run, locks, undo)


class Reading(Pool):
    """Implements `gateway.queue.sql.engine.Reader`."""

    async def call(self, name: str, run: Callable[[Connection], _Result], /) -> _Result:
        """Run something that only looks."""
        return await self._call(name, run, NOTHING, None)
