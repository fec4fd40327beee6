"""
A week in seconds: an event loop on which idle time costs nothing and work takes as long as it takes.

Unlike `tests.clock.VirtualLoop` it knows when threads are at work (``busy``) and never skips time then, so that
no limit is overrun while a disk writes, however slow the machine is. And it skips to the next multiple of
`GRID_S`, as if the machine had slept until then: everything that looks every thirty seconds looks once in five
minutes instead, which is what makes a week affordable.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from tests.clock import LoopClock

GRID_S = 300.0
_A_MOMENT_S = 0.001
_STUCK_S = 60.0


class _GridSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        self.busy: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(None)
        begun = time.monotonic()
        while self.busy() and time.monotonic() - begun < _STUCK_S:
            if ready := super().select(0.005):
                return ready
        # What a thread has just finished is told through a socket, a moment later.
        if ready := super().select(min(timeout, _A_MOMENT_S)):
            return ready
        due = time.monotonic() + self.skipped + timeout
        self.skipped += timeout + (-due % GRID_S)
        return ready


class SoakLoop(asyncio.SelectorEventLoop):
    """The loop. Set ``busy`` to something that tells whether a thread is at work."""

    def __init__(self) -> None:
        self._grid = _GridSelector()
        super().__init__(self._grid)

    def time(self) -> float:
        return time.monotonic() + self._grid.skipped

    def while_busy(self, busy: Callable[[], bool]) -> None:
        """From now on no time is skipped while this says yes."""
        self._grid.busy = busy


class SoakClock(LoopClock):
    """The loop's time, and a wall clock that can be put forward: a machine that was off for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self._ahead

    def put_forward(self, by: timedelta) -> None:
        """The machine was off for so long."""
        self._ahead += by
