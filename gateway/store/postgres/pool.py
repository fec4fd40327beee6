"""
Runs the calls of the event loop on threads with connections to PostgreSQL.

Each thread makes one transaction per call, without group commit: combined locks could deadlock two processes.
Every commit is synced, since a lost claim would give two processes the same fence. Conflicts are retried at
once, and a call whose connection is lost before the commit is repeated. During an outage connections are
tried with a growing pause. A cancelled caller's claim is undone, until the server accepts it.

Of a call whose connection is lost during the commit nobody knows whether it has happened. Its caller gets
`StoreUnavailable`, and what callers repeat is recognised by its key or its claim. A claim is undone, as its
token is known, and all signals fire, as those of the commit are lost.
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

from gateway.store.postgres.postgres_connection import TOO_MANY, Transaction
from gateway.store.postgres.postgres_errors import (
    is_conflict,
    is_connection_lost,
    is_unavailable,
    unavailable,
)
from gateway.store.sql.engine import NOTHING, CallLimit, ConnectionPort, Locks, lock_first
from gateway.store.sql.signals import waiting_facts
from gateway.store.store_errors import Fenced, LostTurn, StoreUnavailable

RETRY_UNDO_S = 1.0
"""Between the tries of an undo that is refused: the disk of the server may stay full."""
_MAX_PAUSE_S = 5.0
_TRIES = 10
_LOCK_TIMEOUT = "55P03"
_ABOUT_LEASES = frozenset({"lease", "renew_lease", "release_lease", "show_machine", "hide_machine"})
_Result = TypeVar("_Result")
NotifyHandler = Callable[[str], object]
"""Called on the event loop with what the triggers of a committed transaction have recorded."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ServerCall:
    """One call: what to run, and its outcome."""

    name: str
    run: Callable[[ConnectionPort], Any]
    locks: Locks
    undo: Callable[[ConnectionPort, Any], object] | None
    future: asyncio.Future[Any] | None
    undoes: bool = False
    """The call undoes another one and fires all signals; it is repeated until the server accepts it."""
    abandoned: bool = False
    delivered: bool = False
    value: Any = None
    error: BaseException | None = None
    facts: str = ""
    signals_lost: bool = False

    @property
    def is_refused_undo(self) -> bool:
        """Return True for an undo that was refused, as nobody else would repeat it."""
        return self.undoes and isinstance(self.error, StoreUnavailable) and not isinstance(self.error, Fenced)


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

    def connect(self) -> psycopg.Connection:
        """Return a new connection; called on a thread."""
        too_early = self.reach.retry_error()
        if too_early is not None:
            raise too_early.with_traceback(None)  # raised many times, it would accumulate all their frames
        try:
            db = self._connect()
        except psycopg.Error as error:
            if is_unavailable(error):
                self.reach.note_failure(error)
            raise
        self.reach.note_success()
        return db

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
            if call.delivered and call.undo is not None and call.error is None:
                self._take_back(call)
            raise

    def _put(self, call: ServerCall) -> None:
        self._open += 1
        self._none_open.clear()
        self._queue.put(call)

    def _take_back(self, call: ServerCall) -> None:
        """Undo what has happened, or may have, for a caller that does not know of it; fire all signals."""
        undo, value = call.undo, call.value
        is_unknown = call.abandoned or call.error is not None

        def run(db: ConnectionPort) -> None:
            if undo is not None and is_unknown:
                with contextlib.suppress(LostTurn):  # it has not happened, or is already undone
                    undo(db, value)

        self._put(ServerCall(call.name, run, call.locks, None, None, undoes=True))

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
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._deliver, call)
        finally:
            serving.disconnect()

    # ── on the event loop ──

    def _deliver(self, call: ServerCall) -> None:
        if call.is_refused_undo and not self.closing:
            self._loop.call_later(RETRY_UNDO_S, self._queue.put, call)
            return
        call.delivered = True
        try:
            if call.facts and self._heard is not None:
                # Before the result, so that the subscribers are notified before the caller goes on.
                self._heard(call.facts)
        except Exception:  # noqa: BLE001 - the caller waits for its result
            _log.exception("signal.failed")
        self._note(call)
        if call.signals_lost or (call.abandoned and call.undo is not None and call.error is None):
            self._take_back(call)
        if call.future is not None:
            self._calls_under_way.leave()
            self._give(call)
        self._open -= 1
        if not self._open:
            self._none_open.set()

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

    def disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error):
                db.close()

    def serve(self, call: ServerCall) -> None:
        try:
            call.error, call.signals_lost = None, False
            self._serve(call)
        except psycopg.Error as error:
            call.error = unavailable(error, self._pool.where, call.name)
            call.error.__cause__ = None if call.error is error else error
        except BaseException as error:  # noqa: BLE001 - the caller gets any error, and the thread survives
            call.error = error

    def _serve(self, call: ServerCall) -> None:
        tries, is_second = 0, False
        while True:
            db = self._connected()
            transaction = self._pool.transaction(db, call.name)
            committing = False
            try:
                lock_first(transaction, call.locks)
                call.value = call.run(transaction)
                everything = all_facts(transaction) if call.undoes else ""
                committing = not self._pool.look_only
                noted = transaction.commit()
            except BaseException as error:
                self._undo(transaction)
                if not isinstance(error, psycopg.Error):
                    raise
                if is_connection_lost(error):
                    self.disconnect()
                    call.signals_lost = committing
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
                call.signals_lost = noted == TOO_MANY and not everything
                call.facts = everything or ("" if noted == TOO_MANY else noted)
                return

    def _connected(self) -> psycopg.Connection:
        if self._db is not None and not self._db.closed:
            return self._db
        self._db = self._pool.connect()
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
