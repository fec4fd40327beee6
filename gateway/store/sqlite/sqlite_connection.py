"""
Runs calls from the event loop on threads that each own one SQLite connection. A thread takes at most `BATCH`
waiting calls, runs them as one transaction and returns all results together, sharing hand-over and fsync. If
a call fails, the batch is rolled back and each runs alone. Unsynced batches (claims, ``sending``) are covered
by the next sync. Begun calls have no time limit, as nobody could say if they happened; `stalled_s` reveals a
hanging disk. The writer checks that its files are in place, since removed ones still accept writes. A
reader's batch sees one state.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import structlog

from gateway.store.sql.engine import NOTHING, CallLimit, Locks
from gateway.store.sql.signals import Fact, waiting_facts
from gateway.store.sqlite.sqlite_errors import name_of, needs_reopening, unavailable
from gateway.store.sqlite.sqlite_schema import EmbeddedConnection
from gateway.store.sqlite.watching import CommitWatch
from gateway.store.store_errors import StoreUnavailable

BATCH = 256
RETRY_UNDO_S = 1.0

_Result = TypeVar("_Result")
Synchronous = Literal["full", "normal"]
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Call:
    """One call: what to run on the connection, and its outcome."""

    name: str
    run: Callable[[EmbeddedConnection], Any]
    durable: bool
    future: asyncio.Future[Any] | None
    abandoned: bool = False
    done: bool = False
    value: Any = None
    error: BaseException | None = None
    facts: Sequence[Fact] = ()
    is_late: bool = False
    at: float = field(default_factory=time.monotonic)

    def record_failure(self, error: BaseException) -> None:
        """Record that the call did not happen."""
        self.done, self.value, self.error = False, None, error


class Worker:
    """A thread with one connection; ``connect`` runs on it, at the start and for each replacement."""

    def __init__(self, name: str, path: Path, connect: Callable[[], EmbeddedConnection]) -> None:
        self.path = path
        self._connect = connect
        self._db: EmbeddedConnection | None = None
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._calls_under_way = CallLimit(str(path))
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        self._busy_since: float | None = None
        self._thread.start()

    @property
    def stalled_s(self) -> float:
        """The seconds that the thread has spent on the current batch; 0.0 when it waits for work."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    async def call(
        self,
        name: str,
        run: Callable[[EmbeddedConnection], _Result],
        *,
        locks: Locks = NOTHING,
        durable: bool = True,
        undo: Callable[[EmbeddedConnection, _Result], object] | None = None,
    ) -> _Result:
        """
        Run a function on the connection and return its result.

        Args:
            locks: Unused: one writer needs none.
            run: The function; on the writer it is a transaction of its own.
            durable: The commit must be on the disk on return; otherwise it need only survive the process.
            undo: Reverts the call if it has happened although the caller was cancelled.

        Raises:
            StoreUnavailable: The call has not happened.
        """
        await self._calls_under_way.enter(name)
        future: asyncio.Future[_Result] = self._loop.create_future()
        call = Call(name, run, durable, future)
        self._queue.put(call)
        try:
            return await future
        except asyncio.CancelledError:
            call.abandoned = True
            if undo is not None:
                self._queue.put(
                    Call(name, lambda db: undo(db, call.value) if call.done else None, durable, None)
                )
            raise

    async def aclose(self) -> None:
        """Finish the queued calls, close the connection, end the thread."""
        if not self._closing:
            self._closing = True
            self._calls_under_way.close()
            self._queue.put(None)
        with anyio.CancelScope(shield=True):
            await asyncio.shield(self._ended)
        self._thread.join()

    # ── on the thread ──
    def _main(self) -> None:
        try:
            while True:
                batch, last = self._take()
                self._busy_since = time.monotonic()
                calls = [call for call in batch if not call.abandoned]
                if calls:
                    self._serve_all(calls)
                self._busy_since = None
                self._call_on_loop(self._deliver, batch)
                if last:
                    return
        finally:
            self._disconnect()
            self._call_on_loop(self._ended.set_result, None)

    def _take(self) -> tuple[list[Call], bool]:
        batch: list[Call] = []
        call = self._queue.get()
        while call is not None:
            batch.append(call)
            if len(batch) == BATCH:
                return batch, False
            try:
                call = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _serve_all(self, calls: Sequence[Call]) -> None:
        try:
            if self._db is None:
                self._db = self._connect()
            self._serve(self._db, calls)
        except sqlite3.Error as error:
            for call in calls:
                call.record_failure(_caused(unavailable(error, self.path, call.name), error))
        except BaseException as error:  # noqa: BLE001 - the callers get any error, and the thread survives
            for call in calls:
                call.record_failure(error)

    def _serve(self, db: EmbeddedConnection, calls: Sequence[Call]) -> None:
        raise NotImplementedError

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):  # it is closed because it was broken
                db.close()

    def _put_again(self, call: Call) -> None:
        if not self._closing:
            self._queue.put(call)

    def _call_on_loop(self, function: Callable[[Any], object], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, argument)

    # ── on the loop ──
    def _deliver(self, batch: Sequence[Call]) -> None:
        for call in batch:
            if call.future is None:
                if isinstance(call.error, StoreUnavailable) and not self._closing:
                    # Only this call can undo it, so it is repeated until the disk accepts it.
                    run = call.run if call.is_late else partial(_late, call.run)
                    again = Call(call.name, run, call.durable, None, is_late=True)
                    self._loop.call_later(RETRY_UNDO_S, self._put_again, again)
                continue
            self._calls_under_way.leave()
            if call.future.done():
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.value)


def _late(undo: Callable[[EmbeddedConnection], Any], db: EmbeddedConnection) -> list[Fact]:
    """Undo a call late, when its signals have not fired; return all that waits."""
    undo(db)
    return list(waiting_facts(db))


def _caused(error: Exception, cause: Exception) -> Exception:
    if error is not cause:
        error.__cause__ = cause
    return error


class Writer(Worker):
    """
    The only thread that writes.

    ``synchronous``: ``full`` syncs requested commits; ``normal`` none: a power cut may revert moments, a kill
    not. ``watch`` collects the facts that fire on the event loop after a commit.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[], EmbeddedConnection],
        *,
        synchronous: Synchronous,
        watch: CommitWatch | None = None,
    ) -> None:
        self._full = synchronous == "full"
        self._watch = watch
        self._level: str | None = None
        self._failing = False
        self._places: dict[Path, tuple[int, int]] = {}
        super().__init__("store-writer", path, connect)

    @property
    def failing(self) -> bool:
        """Return True if the newest commit was refused."""
        return self._failing

    def _disconnect(self) -> None:
        self._level = None
        self._places.clear()
        super()._disconnect()

    def _serve(self, db: EmbeddedConnection, calls: Sequence[Call]) -> None:
        self._look_after_files(calls[0].name)
        try:
            self._set_level(db, "FULL" if self._full and any(call.durable for call in calls) else "NORMAL")
            db.execute("BEGIN IMMEDIATE")
            if self._run_all(db, calls):
                db.execute("COMMIT")
                self._note_commit(calls[-1])
            else:
                self._run_each(db, calls)
        except BaseException as error:
            self._undone()
            if isinstance(error, sqlite3.Error):
                self._note_failure(error)
            if not isinstance(error, sqlite3.Error) or needs_reopening(error):
                self._disconnect()
            elif db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if self._failing and all(call.done for call in calls):
            self._failing = False
            _log.info("queue.recovered", path=str(self.path))

    def _look_after_files(self, operation: str) -> None:
        """Remember open files and check their names. Raises StoreUnavailable if one was replaced."""
        for ending in ("", "-wal"):
            path = self.path.with_name(self.path.name + ending)
            try:
                state = path.stat()
                place = (state.st_dev, state.st_ino)
            except OSError:
                place = None
            known = self._places.get(path)
            if known is None and place is not None:
                self._places[path] = place
            elif known != place:
                if not self._failing:
                    self._failing = True
                    _log.error("queue.file_removed", path=str(path))
                raise StoreUnavailable(
                    f"{path} was removed or replaced while squidbot was running: put it back, or restart "
                    "squidbot to go on with what is there now",
                    path=str(path),
                    operation=operation,
                )

    def _set_level(self, db: EmbeddedConnection, level: str) -> None:
        if level != self._level:
            db.execute(f"PRAGMA synchronous = {level}")
            self._level = level

    def _run_all(self, db: EmbeddedConnection, calls: Sequence[Call]) -> bool:
        """Run all calls in one transaction; if one fails, roll everything back and return False."""
        try:
            for call in calls:
                call.value = call.run(db)
                call.done = True
        except Exception as error:
            if isinstance(error, sqlite3.Error) and needs_reopening(error):
                raise
            if db.in_transaction:  # on a full disk SQLite may have ended it by itself
                db.execute("ROLLBACK")
            self._undone()
            return False
        return True

    def _run_each(self, db: EmbeddedConnection, calls: Sequence[Call]) -> None:
        """Run the calls again, each in its own transaction."""
        for number, call in enumerate(calls):
            call.done = False
            try:
                db.execute("BEGIN IMMEDIATE")
                call.value = call.run(db)
                db.execute("COMMIT")
                call.done = True
                self._note_commit(call)
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                self._undone()
                call.record_failure(error)
                if isinstance(error, sqlite3.Error):
                    self._note_failure(error)
                    call.record_failure(unavailable(error, self.path, call.name))
                    if needs_reopening(error):
                        for later in calls[number + 1 :]:
                            later.record_failure(unavailable(error, self.path, later.name))
                        self._disconnect()
                        return
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _note_commit(self, call: Call) -> None:
        """Attach the facts of a commit to this call, for the event loop."""
        if self._watch is not None:
            call.facts = self._watch.facts_of_commit()

    def _undone(self) -> None:
        if self._watch is not None:
            self._watch.forget_rolled_back()

    def _deliver(self, batch: Sequence[Call]) -> None:
        facts = [fact for call in batch for fact in call.facts]
        facts += [fact for call in batch if call.is_late and call.done for fact in call.value]
        try:
            if self._watch is not None and facts:
                # Before the results, so that the subscribers are notified before the caller goes on.
                self._watch.fire(facts)
        except Exception:  # noqa: BLE001 - the callers wait for their results
            _log.exception("signal.failed")
        super()._deliver(batch)

    def _note_failure(self, error: sqlite3.Error) -> None:
        if not self._failing:
            self._failing = True
            _log.error("queue.failed", path=str(self.path), sqlite=name_of(error), detail=str(error))


class Reader(Worker):
    """The thread that reads; its connection cannot write."""

    def __init__(self, path: Path, connect: Callable[[], EmbeddedConnection]) -> None:
        super().__init__("store-reader", path, connect)

    def _serve(self, db: EmbeddedConnection, calls: Sequence[Call]) -> None:
        try:
            db.execute("BEGIN")
            for call in calls:
                try:
                    call.value = call.run(db)
                    call.done = True
                except sqlite3.Error:
                    raise
                except Exception as error:  # noqa: BLE001 - it belongs to the caller
                    call.record_failure(error)
            db.execute("COMMIT")
        except BaseException:
            self._disconnect()
            raise
