"""Who gets sessions run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from agent_core.messages import SessionKey
from gateway.queue.wakeups import Work

RunSession = Callable[[SessionKey], Awaitable[float | None]]
"""
Works on one session, called by at most one task per session at a time. Returns in how many seconds it is to
be called again; None: when the session has work again.
"""


class Dispatcher(Protocol):
    """Says that a session has work and gets it run: in order per session, in parallel across sessions."""

    def wake(
        self, session: SessionKey, *, after_s: float = 0.0, first: bool = False, person: str = ""
    ) -> None:
        """
        There is work, now or after a while. Never blocks; repeated wake-ups of one session are one.

        With ``first`` the session comes before all others, as long as it has work. ``person``: whose work it
        is, as long as it has some; people take turns.
        """
        ...

    def hear(self, work: Work) -> None:
        """The queue says that there is work (`Wakeups.session`)."""
        ...

    async def run(self, run_session: RunSession) -> None:
        """Run sessions until `stop`; then return as soon as nothing runs."""
        ...

    def stop(self) -> None:
        """Start no session any more."""
        ...

    def running(self) -> Sequence[SessionKey]:
        """The sessions that run at this moment."""
        ...

    def full(self) -> bool:
        """Whether somebody who waits finds no place now."""
        ...
