"""Lines of histories that were committed with an answer and may not be in their files yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent_core.messages import SessionKey
from gateway.queue.model import JournalLine


class HistoryJournal(Protocol):
    """Lines of histories that were committed with an answer and may not be in their files yet."""

    async def lines(self, session: SessionKey | None = None) -> list[JournalLine]:
        """Lines that may not be in their files yet, oldest first."""
        ...

    async def filed(self, ids: Sequence[int]) -> None:
        """These lines are durable in their files."""
        ...
