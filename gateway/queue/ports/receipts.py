"""What is asked of the queue about what tools have done."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from agent_core.messages import SessionKey
from gateway.queue.model import Receipt


class ReceiptStore(Protocol):
    """
    What tools have done, kept for 90 days.

    Receipts of turns are written with their steps (`Step.receipt`), those of commands at the prompt here.
    """

    async def begin(self, receipt: Receipt) -> str:
        """Note something outside of turns that is about to be done; returns what `finish` takes."""
        ...

    async def finish(self, name: str, told: str, *, failed: bool) -> None:
        """It was done, or not; without this nobody knows."""
        ...

    async def newest(
        self, *, since: datetime | None = None, session: SessionKey | None = None, limit: int = 50
    ) -> list[Receipt]:
        """Those that began since then, newest first; of one session, if it is given."""
        ...
