"""
Keeps the daemon's memory small, and notices when its process was frozen. glibc's arenas and Python's cache of
source lines keep memory that was needed once; musl has no such calls, and nothing is done. The event loop
calls back after a wait, before it runs anything, so that whoever must know of a pause knows first.
"""

from __future__ import annotations

import asyncio
import ctypes
import linecache
import selectors
from collections.abc import Callable
from typing import Any


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.woken: Callable[[], object] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        if self.woken is not None:
            self.woken()
        return found


class WakingLoop(asyncio.SelectorEventLoop):
    """Calls a function each time it returns from waiting, before everything else."""

    def __init__(self, *arguments: Any) -> None:
        self._watched = _Selector()
        super().__init__(self._watched, *arguments)

    def on_wake(self, look: Callable[[], object] | None) -> None:
        """Call this from now on."""
        self._watched.woken = look


def loop_for(store: str | None) -> dict[str, Any]:
    """The options for `anyio.run`: a process that shares a database must notice that it was frozen."""
    return {} if store is None else {"loop_factory": WakingLoop}


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BYTES = 128 * 1024
"""Where glibc begins with both limits; set by hand, they do not grow with the largest block ever freed."""

_C = ctypes.CDLL(None)


def use_one_arena() -> bool:
    """Use one malloc arena and return large blocks (mallopt(3)), before any thread; True if set."""
    try:
        mallopt = _C.mallopt
    except AttributeError:
        return False
    for name, value in (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _LARGE_BYTES),
        (_M_TRIM_THRESHOLD, _LARGE_BYTES),
    ):
        if mallopt(name, value) != 1:
            return False
    return True


def trim_memory() -> bool:
    """
    Drop sources kept for tracebacks, and give free memory back to the system (malloc_trim(3)).

    The latter takes some milliseconds, without Python's lock. Returns whether there was any.
    """
    linecache.clearcache()
    try:
        trim = _C.malloc_trim
    except AttributeError:
        return False
    return bool(trim(0))
