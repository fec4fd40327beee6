"""
Sets up the C library's allocator, so that memory once needed does not stay with the process.

glibc gives threads arenas of their own and keeps what is freed in the middle of them. A daemon that lives for
months under Python's global lock gains nothing by the first, and loses a few MB to the second. Another C
library (musl) has neither these calls nor this habit: then nothing is done.

Python itself keeps the whole source of each file that a traceback has named, and of methods that attrs makes.

An event loop that says when it wakes.

A process that was frozen, or whose machine slept, goes on in the middle of everything it did. Whoever must
know that first is called when the loop has come back from waiting and has run nothing yet.
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


class WatchfulLoop(asyncio.SelectorEventLoop):
    """Calls a function each time it returns from waiting, before everything else."""

    def __init__(self, *arguments: Any) -> None:
        self._watched = _Selector()
        super().__init__(self._watched, *arguments)

    def on_wake(self, look: Callable[[], object] | None) -> None:
        """Call this from now on."""
        self._watched.woken = look


def loop_for(store: str | None) -> dict[str, Any]:
    """The options for `anyio.run`: a process that shares a database must notice that it was frozen."""
    return {} if store is None else {"loop_factory": WatchfulLoop}


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BYTES = 128 * 1024
"""Where glibc begins with both limits; set by hand, they do not grow with the largest block ever freed."""

_C = ctypes.CDLL(None)


def share_one() -> bool:
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
