"""
Time for tests: an event loop whose clock jumps over waiting, and a `Clock` that follows it.

On `VirtualLoop` a sleep of a day returns at once and ``loop.time()`` has moved on by a day; real sockets,
threads and task groups work on it. While a worker thread of anyio is at work the loop waits in real time, but
no longer than a moment: a thread that is stuck must not stop the limits that are to end it. Only waiting lets
time pass, so how fast a machine computes changes no time that a test sees.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from datetime import UTC, datetime, timedelta

import anyio.to_thread

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_PATIENCE_WITH_THREADS_S = 0.5


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Looks whether anything is ready; if nothing is, skips the waiting instead of doing it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = float(int(time.monotonic()))  # whole, so that sums of whole seconds are exact

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        began = time.monotonic()
        if timeout is None:
            ready = super().select(None)
            self.now += time.monotonic() - began
            return ready
        # Give threads and sockets a real moment before time is made to pass.
        ready = super().select(min(timeout, 0.002))
        if not ready and anyio.to_thread.current_default_thread_limiter().borrowed_tokens:
            ready = super().select(min(timeout, _PATIENCE_WITH_THREADS_S))
        self.now += timeout if not ready else min(time.monotonic() - began, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting costs no time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class LoopClock:
    """A `Clock` that follows the running event loop, virtual or not."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start
        self._zero: float | None = None

    def monotonic(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    def now(self) -> datetime:
        if self._zero is None:
            self._zero = self.monotonic()
        return self._start + timedelta(seconds=self.monotonic() - self._zero)


class ManualClock:
    """A `Clock` that stands still until it is moved."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._now = start
        self._monotonic = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
