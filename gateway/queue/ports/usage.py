"""What models have cost."""

from __future__ import annotations

from typing import Protocol

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.queue.model import (
    By,
    Spent,
    UsageRow,
)

__all__ = ["UsageStore"]


class UsageStore(Protocol):
    """What models have cost."""

    async def add(self, session: SessionKey, usage: Usage, purpose: Purpose) -> None:
        """Note what was spent outside of a completed turn (a consolidation, a call of an unfinished turn)."""
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
