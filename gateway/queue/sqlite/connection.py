"""
A thread that owns a database connection, and the calls that reach it from the event loop.

Theory of operation. A call is put into a queue; the thread takes everything that waits there, at most
`BATCH` calls, serves it in one go, and gives all results back with one ``call_soon_threadsafe``. So the cost
of a hand-over, and in the writer the cost of an fsync, is shared by whatever came together.

The number of calls under way is bounded: beyond it a caller waits for room, and after `ROOM_WITHIN_S` is told
`StoreUnavailable`. A call that is cancelled before its turn is left out. There is no limit on the time of a
call that has begun, because nobody could promise then that it has not happened; `stalled_s` shows a disk
that hangs.
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
from pathlib import Path
from typing import Any, TypeVar

import anyio

from gateway.queue.ports import StoreUnavailable
from gateway.queue.sqlite.errors import unavailable

__all__ = ["BATCH", "Call", "Worker"]

BATCH = 256
WAITING = 4096
ROOM_WITHIN_S = 10.0

_Result = TypeVar("_Result")


@dataclass(slots=True, eq=False)
class Call:
    """One call on its way: what to run on the connection, and what came of it."""

    name: str
    run: Callable[[sqlite3.Connection], Any]
    durable: bool
    future: asyncio.Future[Any] | None
    abandoned: bool = False
    done: bool = False
    value: Any = None
    error: BaseException | None = None
    at: float = field(default_factory=time.monotonic)

    def failed(self, error: BaseException) -> None:
        """It did not happen."""
        self.done, self.value, self.error = False, None, error


class Worker:
    """
    One thread, one connection.

    Args:
        name: The thread's name.
        path: The database, for errors.
        connect: Makes the connection; called on the thread, at the start and whenever it must be replaced.
    """

    def __init__(self, name: str, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self.path = path
        self._connect = connect
        self._db: sqlite3.Connection | None = None
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._room = anyio.Semaphore(WAITING, fast_acquire=True)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        self._busy_since: float | None = None
        self._thread.start()

    @property
    def stalled_s(self) -> float:
        """For how long the thread has been at the batch in hand; 0.0 when it waits for work."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    async def call(
        self,
        name: str,
        run: Callable[[sqlite3.Connection], _Result],
        *,
        durable: bool = True,
        undo: Callable[[sqlite3.Connection, _Result], object] | None = None,
    ) -> _Result:
        """
        Run something on the connection and return its result.

        Args:
            name: For errors.
            run: What to do; on the writer it is a transaction of its own.
            durable: It must be on the disk when this returns; else surviving the process is enough.
            undo: What to do if the caller was cancelled and it has happened nevertheless.

        Raises:
            StoreUnavailable: It has not happened.
        """
        await self._enter(name)
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

    async def _enter(self, name: str) -> None:
        if not self._closing:
            try:
                self._room.acquire_nowait()
            except anyio.WouldBlock:
                with anyio.move_on_after(ROOM_WITHIN_S) as limit:
                    await self._room.acquire()
                if limit.cancelled_caught:
                    raise StoreUnavailable(
                        "too many calls wait", path=str(self.path), operation=name
                    ) from None
        if self._closing:
            raise StoreUnavailable("the store is closed", path=str(self.path), operation=name)

    async def aclose(self) -> None:
        """Finish what is queued, close the connection, end the thread."""
        if not self._closing:
            self._closing = True
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
                self._tell(self._deliver, batch)
                if last:
                    return
        finally:
            self._disconnect()
            self._tell(self._ended.set_result, None)

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
                call.failed(_caused(unavailable(error, self.path, call.name), error))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the callers are told and the thread lives
            for call in calls:
                call.failed(error)

    def _serve(self, db: sqlite3.Connection, calls: Sequence[Call]) -> None:
        raise NotImplementedError

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):  # it was broken, that is why it goes
                db.close()

    def _tell(self, function: Callable[[Any], object], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, argument)

    # ── on the loop ──
    def _deliver(self, batch: Sequence[Call]) -> None:
        for call in batch:
            if call.future is None:
                continue
            self._room.release()
            if call.future.done():
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.value)


def _caused(error: Exception, cause: Exception) -> Exception:
    if error is not cause:
        error.__cause__ = cause
    return error
