"""
Threads for what blocks: a call is handed to one, and its result comes back to the event loop.

Why not anyio's: what it adds to a visit to the disk (its queue, its limiter, turns of the loop) is a fifth of
a write with its fdatasync here; this is half as much. Appending a turn durably is then less than twice the
bare minimum (`make bench`, "memory"), which it was not.

The promises are the same: at most so many calls at a time, the context variables of the caller, and a caller
that is cancelled leaves only when its call has ended, so that nobody works on a file behind a released lock.
A thread that has had nothing to do for some seconds ends, and all end when their `Threads` is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TypeVar, cast

import anyio

__all__ = ["Threads"]

_IDLE_S = 10.0

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    work: Callable[[], object]
    context: Context
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[object]


@dataclass(slots=True)
class _Desk:
    """What the threads share. They do not know their `Threads`, so that it can be forgotten."""

    calls: queue.SimpleQueue[_Call | None] = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    threads: int = 0
    open: int = 0
    """Calls that have not ended, those in the queue included."""


class Threads:
    """
    Runs calls in threads.

    Args:
        limit: How many at a time; the others wait in their order.
        idle_s: How long a thread waits for work before it ends.
    """

    def __init__(self, limit: int, *, idle_s: float = _IDLE_S) -> None:
        self._limit = limit
        self._idle_s = idle_s
        self._desk = _Desk()
        weakref.finalize(self, _send_home, self._desk)

    async def run(self, work: Callable[[A], T], argument: A) -> T:
        """``work(argument)`` in a thread. Cancellation waits for its end."""
        desk = self._desk
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()
        with desk.lock:
            desk.open += 1
            if desk.threads < min(desk.open, self._limit):
                desk.threads += 1
                threading.Thread(
                    target=_serve, args=(desk, self._idle_s), name="storage", daemon=True
                ).start()
        desk.calls.put(_Call(lambda: work(argument), copy_context(), loop, answer))
        with anyio.CancelScope(shield=True):
            value = await answer
        return cast("T", value)


def _serve(desk: _Desk, idle_s: float) -> None:
    while True:
        try:
            call = desk.calls.get(timeout=idle_s)
        except queue.Empty:
            with desk.lock:
                if desk.open >= desk.threads:  # somebody has come at this very moment
                    continue
                desk.threads -= 1
            return
        if call is None:
            return
        _do(call, desk)


def _do(call: _Call, desk: _Desk) -> None:
    failure: BaseException | None = None
    value: object = None
    try:
        value = call.context.run(call.work)
    except BaseException as error:  # noqa: BLE001 - it is the caller's, whatever it is
        failure = error
    with desk.lock:
        desk.open -= 1
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        call.loop.call_soon_threadsafe(_give, call.answer, value, failure)


def _give(answer: asyncio.Future[object], value: object, failure: BaseException | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(value)
    elif isinstance(failure, StopIteration):  # a future does not take it
        answer.set_exception(RuntimeError("StopIteration in a thread"))
    else:
        answer.set_exception(failure)


def _send_home(desk: _Desk) -> None:
    with desk.lock:
        for _ in range(desk.threads):
            desk.calls.put(None)
