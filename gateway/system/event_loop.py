"""
An event loop that says when it wakes.

A process that was frozen, or whose machine slept, goes on in the middle of everything it did. Whoever must
know that first is called when the loop has come back from waiting and has run nothing yet.
"""

from __future__ import annotations

import asyncio
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
