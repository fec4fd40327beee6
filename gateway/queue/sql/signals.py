"""The signals of the queue: what an engine has noted of a commit, told to whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from gateway.queue.model import Stopped
from gateway.queue.sql.codec import session_or_none
from gateway.queue.sql.due import wait_s
from gateway.queue.wakeups import Wakeups, Work

__all__ = ["Fact", "Signals"]

_log = structlog.get_logger(__name__)
Fact = Sequence[Any]
"""What became true, and of what."""


class Signals:
    """
    Fires what became true, on the event loop.

    Args:
        wakeups: What is fired.
        now: The time, on the clock of the database.
    """

    def __init__(self, wakeups: Wakeups, now: Callable[[], float]) -> None:
        self._wakeups = wakeups
        self._now = now
        self._fire: dict[str, Callable[..., None]] = {
            "session": self._work,
            "stopped": self._stopped,
            "outbox": wakeups.outbox.fire,
            "drafts": wakeups.drafts.fire,
            "history": self._history,
            "usage": wakeups.usage.fire,
            "jobs": wakeups.jobs.fire,
        }

    async def fire(self, facts: Sequence[Fact]) -> None:
        """Tell whoever waits. What cannot be read, of a damaged row, keeps nobody else from being told."""
        for what, *of in facts:
            try:
                self._fire[what](*of)
            except Exception:  # noqa: BLE001 - a session that is not woken waits for the next start
                _log.exception("signal.unreadable", signal=what)

    def _work(self, session: str, next_at: float | None, *of: Any) -> None:
        channel, kind, new, sender, verified = of
        key = session_or_none(session)
        if key is not None:
            due_s = wait_s(next_at, self._now())
            self._wakeups.session.fire(
                Work(key, due_s, channel, sender or "", bool(verified), kind, bool(new))
            )

    def _stopped(self, session: str, turn: str, why: str) -> None:
        key = session_or_none(session)
        if key is not None:
            self._wakeups.stopped.fire(Stopped(key, turn, why))

    def _history(self, session: str) -> None:
        key = session_or_none(session)
        if key is not None:
            self._wakeups.history.fire(key)
