"""
Which questions of servers have somebody who waits for the answer: a call, which ends with the process.

The store keeps a question until its turn is taken up again. What is said to it meanwhile would reach nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from gateway.queue.wakeups import Wakeups

__all__ = ["OpenQuestions"]


class OpenQuestions:
    """The questions whose calls wait; ``name in`` it says whether one does."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._decided: dict[str, anyio.Event] = {}
        wakeups.decided.connect(self._wake)

    def __contains__(self, name: object) -> bool:
        return name in self._decided

    @contextmanager
    def waiting(self, name: str) -> Iterator[anyio.Event]:
        """While inside, the call waits; the event is set when somebody has decided."""
        self._decided[name] = decided = anyio.Event()
        try:
            yield decided
        finally:
            del self._decided[name]

    def _wake(self, name: str) -> None:
        if name in self._decided:
            self._decided[name].set()
