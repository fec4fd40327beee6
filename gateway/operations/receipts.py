"""Operations on receipts: what tools have done."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gateway.operations.arguments import RequestInvalid, within
from gateway.queue.model import EffectReceipt
from gateway.queue.stores import Queue
from gateway.routing.access import Access


class ReceiptOperations:
    """The part of `gateway.operations.service.Operations` about receipts."""

    _store: Queue
    _access: Access

    async def receipts(self, since: str = "", limit: int = 50) -> dict[str, Any]:
        """List effects of tools since an ISO 8601 instant, newest first, with the owner's words only."""
        try:
            moment = datetime.fromisoformat(since) if since else None
        except ValueError as error:
            raise RequestInvalid(f"{since!r} is not a time; write it as 2026-01-03T14:05") from error
        if moment is not None and moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        rows = await self._store.receipts.newest(since=moment, limit=within(limit))
        may_show = self._access.may_show
        return {
            "rows": [
                receipt_json(row if may_show(row.session, row.asked_by) else row.without_words())
                for row in rows
            ]
        }


def receipt_json(receipt: EffectReceipt) -> dict[str, Any]:
    """A receipt as JSON can hold it."""
    return {
        "at": receipt.at.isoformat() if receipt.at else None,
        "session": str(receipt.session),
        "tool": receipt.tool,
        "effect": receipt.effect,
        "arguments": dict(receipt.arguments),
        "asked_by": receipt.asked_by,
        "origins": receipt.origins,
        "approved_by": receipt.approved_by,
        "outcome": receipt.outcome.value,
        "result": receipt.told,
        "undo": receipt.undo,
        "ended_at": receipt.ended_at.isoformat() if receipt.ended_at else None,
    }
