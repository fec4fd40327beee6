"""What models have cost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.queue.model import By, Spent, UsageRow


class UsageStore(Protocol):
    """What models have cost."""

    async def add(self, session: SessionKey, usage: Usage, purpose: Purpose, *, call: str = "") -> None:
        """
        Note what was spent outside of a completed turn (a consolidation, a call of an unfinished turn).
        ``call`` is not in flight any more with that (`CallsInFlight`).
        """
        ...

    async def rows(self, *, days: int = 30) -> list[UsageRow]:
        """What was spent, newest day first."""
        ...

    async def spent_on(self, day: str) -> Usage:
        """All of one day. Looks at the rows of that day alone."""
        ...

    async def spent(self, *, since: str, by: By) -> list[Spent]:
        """From a day on: days in their order, anything else with the most tokens first."""
        ...


class CallsInFlight(Protocol):
    """Model calls in flight of all processes that spend from one budget; amounts are tokens and dollars."""

    @property
    def active(self) -> bool:
        """Whether others spend, too; as long as they do not, each process knows what it has in flight."""
        ...

    def name(self, number: int) -> str:
        """The name of a call of this process."""
        ...

    async def spent(self, day: str) -> Usage:
        """What a day has cost, and what other processes have in flight."""
        ...

    async def reserve(
        self, name: str, day: str, needs: Usage, may: Callable[[Usage], bool], besides: Collection[str]
    ) -> bool:
        """
        Reserve what a call will probably cost; False: ``may`` says no.

        ``may`` is told what the day has cost with all calls that are in flight, but for those of ``besides``
        and this one. It is called on another thread, perhaps several times, alone over all processes.
        """
        ...

    async def end(self, name: str) -> None:
        """A call has ended, and nothing is to be noted of it; it need not be in flight."""
        ...
