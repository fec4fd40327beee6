"""
`squidbot status`: the daemon, its channels, the queue, and what is stuck; and `squidbot channel retry`.

``status`` is asked most often: on a home at rest it needs the queue and nothing else of the home.
"""

from __future__ import annotations

from typing import Any

from agent_core.messages import OutboundKind
from agent_core.operation import operation
from gateway.operations.operation_context import OperationContext
from gateway.operations.operation_views import trouble
from gateway.store.states import DROPPED_REASONS, InboxState, OutboxState
from gateway.store.stores import OutboxRow
from gateway.system.version import version

RETRY = "channel_retry"
_SHOWN = 10
_LOOKED_AT = 200


@operation("status", writes=False, needs=())
async def show_status(context: OperationContext, reasons: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - called by name
    """
    The daemon, its channels, the queue, and what is stuck. No texts, no people.

    With ``reasons`` also why it is stuck, and what is tried again and why; that may name people.
    """
    report = await (context.status() if context.status is not None else _without_daemon(context))
    stuck, given_up = await _stuck(context, reasons=reasons)
    report = {**report, "running": context.running, "stuck": stuck, "given_up": given_up}
    return {**report, "trying": await _trying(context)} if reasons else report


@operation("channel retry", writes=True)
async def retry_channel(context: OperationContext, channel: str) -> dict[str, Any]:
    """Reconnect a channel that waits after a failure, for example after a new login."""
    if context.retry is None or channel not in context.channels:
        raise context.missing(f"channel {channel!r}")
    context.retry(channel)
    return {"channel": channel}


@operation("turns list", writes=False)
async def list_turns(context: OperationContext) -> dict[str, Any]:
    """The turns at work, the longest one first: where, since when, at which step, with which tool."""
    rows = await context.store.turns.running()
    return {
        "rows": [
            {
                "session": str(row.session),
                "since": row.since.isoformat(),
                "messages": row.messages,
                "step": row.number,
                "tool": row.tool,
            }
            for row in rows
        ]
    }


async def _without_daemon(context: OperationContext) -> dict[str, Any]:
    return {
        "version": version(),
        "ready": False,
        "channels": {},
        **({} if context.others is None else await context.others()),
        "work": (await context.store.maintenance.stats()).as_work(),
    }


async def _stuck(context: OperationContext, *, reasons: bool) -> tuple[list[dict[str, Any]], int]:
    """Return the failures without a notice, and the number of those with a delivered apology."""
    dead = await context.store.inbox.rows(states=[InboxState.DEAD], limit=_LOOKED_AT)
    unsent = await context.store.outbox.rows(states=[OutboxState.DEAD, OutboxState.UNKNOWN], limit=_LOOKED_AT)
    troubles = [("not answered", row.id, row) for row in dead] + [
        ("not sent" if row.state is OutboxState.DEAD else "perhaps not sent", row.inbox_id, row)
        for row in unsent
    ]
    found: list[dict[str, Any]] = []
    told: set[int] = set()
    for what, inbox_id, row in troubles:
        if isinstance(row, OutboxRow) and is_dropped_by_person(row):
            continue
        decided = row.state is not OutboxState.UNKNOWN  # a person must say what became of it
        if decided and inbox_id is not None and (inbox_id in told or await _apologised(context, inbox_id)):
            told.add(inbox_id)
        else:
            found.append(trouble(what, inbox_id, row))
    found = found[: 2 * _SHOWN]
    return found if reasons else [{**one, "why": None} for one in found], len(told)


async def _apologised(context: OperationContext, inbox_id: int) -> bool:
    """Return True if the person has been told by the newest apology of this message."""
    found = await context.store.inbox.row(inbox_id)
    kind = OutboundKind.APOLOGY
    apologies = [row for row in found[1] if row.message.kind is kind] if found else []
    return bool(apologies) and apologies[-1].state is OutboxState.SENT


async def _trying(context: OperationContext) -> list[dict[str, Any]]:
    unanswered = await context.store.inbox.rows(states=[InboxState.READY], limit=10)
    unsent = await context.store.outbox.rows(states=[OutboxState.PENDING, OutboxState.UNCERTAIN], limit=10)
    found = [trouble("not answered yet", row.id, row) for row in unanswered if row.error]
    return found + [trouble("not sent yet", row.inbox_id, row) for row in unsent if row.error]


def is_dropped_by_person(row: OutboxRow) -> bool:
    """Return True if a person has dropped the message, so that no notice is needed."""
    why = row.error or ""
    return row.state is OutboxState.DEAD and (why in DROPPED_REASONS or why.startswith("rejected"))
