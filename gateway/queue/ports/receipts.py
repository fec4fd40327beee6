"""What is asked of the queue about what tools have done."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from agent_core.messages import SessionKey
from gateway.queue.model import Receipt

__all__ = ["ReceiptStore"]


class ReceiptStore(Protocol):
    """Reads receipts; they are written with the steps of turns (`Step.receipt`) and kept for 90 days."""

    async def newest(
        self, *, since: datetime | None = None, session: SessionKey | None = None, limit: int = 50
    ) -> list[Receipt]:
        """Those that began since then, newest first; of one session, if it is given."""
        ...
