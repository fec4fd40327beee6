"""Operations on receipts: what tools have done."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent_core.operation import InChat, Who, operation
from gateway.operations.operation_arguments import RequestInvalid, parse_session, within
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import chat_text
from gateway.operations.render.receipt_text import receipts

if TYPE_CHECKING:
    from gateway.store.model import EffectReceipt


_LOOKED_AT = 5000
"""Receipts in which those of a guest are looked for."""


@operation(
    "did",
    key="receipts",
    writes=False,
    render=receipts,
    chats=[InChat("did", Who.PERSON, chat_text.receipts_text, {"since": "90d", "limit": 10})],
)
async def list_receipts(context: OperationContext, *, since: str = "7d", limit: int = 50) -> dict[str, Any]:
    """
    Show what the assistant's tools have done, newest first. It is kept for 90 days.

    Args:
        since: Not older than 90s, 15m, 2h, 3d, 1w, or a date such as 2026-01-03T14:05.
        limit: Maximum number of entries.
    """
    from gateway.observability.logs.log_lines import parse_since
    from gateway.routing.access import normalise

    try:
        moment = parse_since(since, datetime.now(UTC))
    except ValueError as error:
        raise RequestInvalid(str(error)) from error
    if (guest := context.guest) is None:
        rows = await context.store.receipts.newest(since=moment, limit=within(limit))
    else:  # what others have had done may hold their words
        session, me = parse_session(guest.session), guest.place.person
        rows = await context.store.receipts.newest(since=moment, session=session, limit=_LOOKED_AT)
        rows = [row for row in rows if normalise(row.asked_by) == normalise(me)][:limit]
        return {"since": moment.isoformat(), "rows": [receipt_json(row) for row in rows]}
    may_show = context.access.may_show  # of others' words only the owner's are shown
    shown = [row if may_show(row.session, row.asked_by) else row.without_words() for row in rows]
    return {"since": moment.isoformat(), "rows": [receipt_json(row) for row in shown]}


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
