"""
Runs the calls of the event loop on threads with connections to PostgreSQL.

Each thread makes one transaction per call, without group commit: combined locks could deadlock two processes.
Every commit is synced, since a lost claim would give two processes the same fence. Conflicts are retried at
once, and a call whose connection is lost before the commit is repeated. During an outage connections are
tried with a growing pause. A cancelled caller's claim is undone, until the server accepts it.

A call whose connection is lost during the commit is in doubt, and goes through the queue again until the
server says what became of its transaction: it returns or is repeated. After a takeover ids are reused and the
outcome is unknowable: a claim is undone, and others get `StoreUnavailable`, as do callers (except claims,
which would meet themselves) after `NOTIFIED_WITHIN_S`. Recorded facts are lost, so all signals fire.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import psycopg
import structlog

from gateway.store.postgres.postgres_connection import TOO_MANY, Transaction, outcome_of, timeline_of
from gateway.store.postgres.postgres_errors import (
    is_conflict,
    is_connection_lost,
    is_unavailable,
    unavailable,
)
from gateway.store.sql.engine import NOTHING, CallLimit, ConnectionPort, Locks, lock_first
from gateway.store.sql.signals import waiting_facts
from gateway.store.store_errors import Fenced, LostTurn, StoreUnavailable

NOTIFIED_WITHIN_S = 60.0
RETRY_UNDO_S = 1.0
"""Between the tries of an undo that is refused: the disk of the server may stay full."""
_CHECK_EVERY_S = 0.05
_MAX_PAUSE_S = 5.0
_TRIES = 10
_LOCK_TIMEOUT = "55P03"
_ABOUT_LEASES = frozenset({"lease", "renew_lease", "release_lease", "show_machine", "hide_machine"})
_Result = TypeVar("_Result")
NotifyHandler = Callable[[str], object]
"""Called on the event loop with what the triggers of a committed transaction have recorded."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UncertainCommit:
    """The id of a transaction that may or may not have been committed, and the server's timeline."""

    number: str
    timeline: str


@dataclass(slots=True, eq=False)
class ServerCall:
    """One call: what to run, and its outcome."""

    name: str
    run: Callable[[ConnectionPort], Any]
    locks: Locks
    undo: Callable[[ConnectionPort, Any], object] | None
    future: asyncio.Future[Any] | None
    undoes: bool = False
    """The call undoes another one, and is repeated until the server accepts it."""
    abandoned: bool = False
    delivered: bool = False
    value: Any = None
    error: BaseException | None = None
    facts: str = ""
    doubt: UncertainCommit | None = None
    doubted_at: float | None = None
    told: bool = False

    @property
    def is_open(self) -> bool:
        """Return True if the call's outcome is unknown, or it is an undo, which nobody else would repeat."""
        refused = isinstance(self.error, StoreUnavailable) and not isinstance(self.error, Fenced)
        return self.doubt is not None or (self.undoes and refused)


class ServerReach:
    """Decides when the next connection may be tried; shared by the threads of a pool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._not_before = 0.0
        self._why: psycopg.Error | None = None

    def retry_error(self) -> psycopg.Error | None:
        """Return why it is too early for another try; None if it is not."""
        with self._lock:
            return self._why if time.monotonic() < self._not_before else None

    def note_failure(self, why: psycopg.Error) -> None:
        """Record that the server could not be reached."""
        with self._lock:
            self._pause_s = min(max(0.1, 2 * self._pause_s), _MAX_PAUSE_S)
            self._not_before = time.monotonic() + self._pause_s * random.uniform(0.5, 1.0)
            self._why = why

    def note_success(self) -> None:
        """Record that the server was reached."""
        with self._lock:
            self._pause_s, self._not_before, self._why = 0.0, 0.0, None


class Pool:
    """
    Threads with one connection each.

    ``connect`` runs on a thread; ``look_only``: read-only, each call over one state; ``heard`` is called
    after each commit.
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
        heard: NotifyHandler | None = None,
    ) -> None:
        self.where = where
        self._connect = connect
        self.home = home
        self.look_only = look_only
        self._heard = heard
        self.reach = ServerReach()
        self._queue: queue.SimpleQueue[ServerCall | None] = queue.SimpleQueue()
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

    def connect(self) -> tuple[psycopg.Connection, str]:
        """Return a new connection, and the timeline of its server; called on a thread."""
        too_early = self.reach.retry_error()
        if too_early is not None:
            raise too_early.with_traceback(None)  # raised many times, it would accumulate all their frames
        try:
            db = self._connect()
            timeline = "" if self.look_only else timeline_of(db)
        except psycopg.Error as error:
            if is_unavailable(error):
                self.reach.note_failure(error)
            raise
        self.reach.note_success()
        return db, timeline

    def transaction(self, db: psycopg.Connection, name: str) -> Transaction:
        """Return a transaction for a call of this name."""
        # A lease must be renewable even while a recovery waits for a transaction that somebody has left open.
        of_lease = name in _ABOUT_LEASES
        needs = None if of_lease else self._needs
        return Transaction(db, self.home, look_only=self.look_only, needs=needs, meets_recovery=not of_lease)

    @property
    def stalled_s(self) -> float:
        """The time for which the server has not returned from the longest current call."""
        now = time.monotonic()
        return max((now - since for since in self._busy_since if since is not None), default=0.0)

    @property
    def failing(self) -> bool:
        """Return True if the server refused the newest call."""
        return self._failing

    async def aclose(self) -> None:
        """Finish the queued calls, close the connections, end the threads."""
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
        run: Callable[[ConnectionPort], _Result],
        locks: Locks,
        undo: Callable[[ConnectionPort, _Result], object] | None,
    ) -> _Result:
        await self._calls_under_way.enter(name)
        future: asyncio.Future[_Result] = self._loop.create_future()
        call = ServerCall(name, run, locks, undo, future)
        self._put(call)
        try:
            return await future
        except asyncio.CancelledError:
            call.abandoned = True
            if call.delivered:
                self._take_back(call)
            raise

    def _put(self, call: ServerCall) -> None:
        self._open += 1
        self._none_open.clear()
        self._queue.put(call)

    def _take_back(self, call: ServerCall) -> None:
        """Undo what has happened for a caller that is gone."""
        undo, value = call.undo, call.value
        if undo is not None and call.error is None:
            self._put(ServerCall(call.name, lambda db: undo(db, value), call.locks, None, None, undoes=True))

    # ── on the threads ──

    def _main(self, number: int) -> None:
        serving = _Serving(self)
        try:
            while (call := self._queue.get()) is not None:
                if not call.abandoned or call.doubt is not None:
                    self._busy_since[number] = time.monotonic()
                    serving.serve(call)
                    self._busy_since[number] = None
                else:
                    call.error = asyncio.CancelledError()
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._deliver, call)
        finally:
            serving.disconnect()

    # ── on the event loop ──

    def _deliver(self, call: ServerCall) -> None:
        if call.is_open and not self.closing:
            self._ask_again(call)
            return
        call.delivered = True
        try:
            if call.facts and self._heard is not None:
                # Before the result, so that the subscribers are notified before the caller goes on.
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

    def _ask_again(self, call: ServerCall) -> None:
        """Queue a call whose outcome is open again; its caller is told after a while that nobody knows."""
        now = self._loop.time()
        if call.doubt is not None and call.doubted_at is None:
            call.doubted_at = now
            _log.warning("queue.commit_in_doubt", operation=call.name, detail=str(call.error))
        if call.doubted_at is not None and now - call.doubted_at > NOTIFIED_WITHIN_S and call.undo is None:
            call.told = True
            self._give(call)
        self._loop.call_later(RETRY_UNDO_S if call.doubt is None else _CHECK_EVERY_S, self._queue.put, call)

    @staticmethod
    def _give(call: ServerCall) -> None:
        if call.future is None or call.future.done():
            return
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.value)

    def _note(self, call: ServerCall) -> None:
        """Log once when the server begins to refuse, and once when it recovers."""
        refused = isinstance(call.error, StoreUnavailable)
        if refused and not self._failing:
            _log.error("queue.failed", path=self.where, detail=str(call.error))
        elif self._failing and call.error is None:
            _log.info("queue.recovered", path=self.where)
        self._failing = refused or (self._failing and call.error is not None)


class _Serving:
    """Runs the calls of one thread, on a connection of its own."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._db: psycopg.Connection | None = None
        self._timeline = ""

    def disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error):
                db.close()

    def serve(self, call: ServerCall) -> None:
        try:
            if call.doubt is None or self._settle(call, call.doubt):
                call.error = None
                self._serve(call)
        except psycopg.Error as error:
            call.error = unavailable(error, self._pool.where, call.name)
            call.error.__cause__ = None if call.error is error else error
        except BaseException as error:  # noqa: BLE001 - the caller gets any error, and the thread survives
            call.error = error

    def _settle(self, call: ServerCall, doubt: UncertainCommit) -> bool:
        """Resolve a lost commit; return True if nothing has happened and the call is to be repeated."""
        db = self._connected()
        found = outcome_of(db, doubt.number) if self._timeline and self._timeline == doubt.timeline else ""
        if found == "in progress":
            return False
        if call.undoes and not found:
            found = "aborted"  # an undo is idempotent
        if found == "aborted" and not call.told:
            call.doubt, call.error = None, asyncio.CancelledError() if call.abandoned else None
            return not call.abandoned
        if not found and call.undo is not None:
            self._revert(db, call)
        call.facts = self._all_facts(db)
        call.doubt = None
        if found == "committed":
            call.error = None
        _log.info("queue.doubt_ended", operation=call.name, outcome=found or "unknown")
        return False

    def _revert(self, db: psycopg.Connection, call: ServerCall) -> None:
        assert call.undo is not None
        transaction = self._pool.transaction(db, call.name)
        try:
            lock_first(transaction, call.locks)
            call.undo(transaction, call.value)
        except (LostTurn, Fenced):  # it has not happened, or is already undone
            transaction.undo()
        else:
            transaction.commit()

    def _serve(self, call: ServerCall) -> None:
        tries, is_second = 0, False
        while True:
            db = self._connected()
            transaction = self._pool.transaction(db, call.name)
            committing = False
            try:
                lock_first(transaction, call.locks)
                call.value = call.run(transaction)
                told = all_facts(transaction) if call.doubted_at is not None else ""
                committing = not self._pool.look_only
                noted = transaction.commit()
            except BaseException as error:
                self._undo(transaction)
                if not isinstance(error, psycopg.Error):
                    raise
                if is_connection_lost(error):
                    self.disconnect()
                    if committing and transaction.number is not None:
                        call.doubt = UncertainCommit(transaction.number, self._timeline)
                    if committing or is_second:
                        raise
                    is_second = True
                elif is_conflict(error) and tries < _TRIES:
                    tries += 1
                    _log.info("queue.retried", operation=call.name, sqlstate=error.sqlstate, tries=tries)
                    lets_by = error.sqlstate == _LOCK_TIMEOUT
                    time.sleep(random.uniform(0.5, 1.0) if lets_by else random.uniform(0.0, 0.002 * 2**tries))
                else:
                    raise
            else:
                if noted == TOO_MANY:
                    assert transaction.number is not None
                    call.doubt = UncertainCommit(
                        transaction.number, self._timeline
                    )  # if the connection is lost now
                    noted = self._all_facts(db)
                    call.doubt = None
                call.facts = told + noted
                return

    def _all_facts(self, db: psycopg.Connection) -> str:
        look = Transaction(db, self._pool.home, look_only=True)
        try:
            facts = all_facts(look)
            look.commit()
        except psycopg.Error:
            self._undo(look)
            raise
        return facts

    def _connected(self) -> psycopg.Connection:
        if self._db is not None and not self._db.closed:
            return self._db
        self._db, self._timeline = self._pool.connect()
        return self._db

    def _undo(self, transaction: Transaction) -> None:
        try:
            transaction.undo()
        except psycopg.Error:
            self.disconnect()


def all_facts(db: ConnectionPort) -> str:
    """Return the facts of everything that waits, in the triggers' format."""
    return "".join(f"{json.dumps(fact)}\n" for fact in waiting_facts(db))


class WriteCall(Pool):
    """Implements `gateway.store.sql.engine.Writer` and `gateway.store.sql.engine.Fencing`."""

    def require_lease(self, name: str, holder: str, fence: int) -> None:
        """Require this lease for every later call, except those about leases."""
        self._needs = (name, holder, fence)

    @property
    def has_lease(self) -> bool:
        """Return True if calls require a lease."""
        return self._needs is not None

    async def idle(self) -> None:
        """Return when no call is in progress."""
        await self._none_open.wait()

    async def call(
        self,
        name: str,
        run: Callable[[ConnectionPort], _Result],
        *,
        locks: Locks,
        durable: bool = True,
        undo: Callable[[ConnectionPort, _Result], object] | None = None,
    ) -> _Result:
        """Run a function in a transaction, and return its result after the commit."""
        return await self._call(name, run, locks, undo)


class ReadCall(Pool):
    """Implements `gateway.store.sql.engine.Reader`."""

    async def call(self, name: str, run: Callable[[ConnectionPort], _Result], /) -> _Result:
        """Run a function that only reads."""
        return await self._call(name, run, NOTHING, None)
