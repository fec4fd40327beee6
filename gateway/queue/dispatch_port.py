"""The contract of whoever gets sessions run; the truth about what is to be done stands in the `WorkStore`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from agent_core.messages import SessionKey

__all__ = ["Dispatcher", "RunSession"]

RunSession = Callable[[SessionKey], Awaitable[None]]
"""Works on one session until nothing is due; called by at most one task per session at a time."""


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

    async def run(self, run_session: RunSession) -> None:
        """Run sessions until `stop`; then return as soon as nothing runs."""
        ...

    def stop(self) -> None:
        """Start no session any more."""
        ...

    def running(self) -> Sequence[SessionKey]:
        """The sessions that run at this moment."""
        ...
