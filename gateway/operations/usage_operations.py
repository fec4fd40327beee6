"""Operations on usage (what models cost, and the budget) and on receipts (what tools have done)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from agent_core.operation import InChat, Who, operation
from gateway.errors import NotFound
from gateway.operations.operation_arguments import RequestInvalid, capped_limit, parse_session
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import chat_text, usage_text

if TYPE_CHECKING:
    from gateway.store.model import EffectReceipt, TurnCost, UsageSum
    from gateway.store.stores import UsageStore

_MAX_SESSIONS = 50
_MAX_DAYS = 3660


@operation(
    "usage", writes=False, render=usage_text.usage, chats=[InChat("usage", Who.PERSON, chat_text.usage_text)]
)
async def show_usage(
    context: OperationContext,
    *,
    days: int = 30,
    by: Literal["day", "purpose", "session", "model", "person"] = "day",
) -> dict[str, Any]:
    """
    Show what the models cost, and what is left of today's budget.

    Args:
        days: Number of days, including today.
        by: How to group the costs.
    """
    # By person, a private conversation counts for its last author, and a room stays a room. By day, days
    # without calls have rows; by session, those beyond fifty are one row.
    from agent_core.models import Usage
    from gateway.budget.budget_policy import Amount, budget_state, day_of
    from gateway.store.model import UsageSum

    if context.costs is None:
        raise NotFound("no usage is recorded here")
    if not 1 <= days <= _MAX_DAYS:
        raise RequestInvalid(f"the days must be 1 to {_MAX_DAYS}, not {days}")
    limits, now = context.costs.limits, context.costs.clock.now()
    known = [day_of(now - timedelta(days=ago), limits.zone) for ago in range(days)]
    since = min(known)
    if (guest := context.guest) is not None:
        rows = await _spent_by(guest.session, context.costs.store, days)
    else:
        rows = await context.costs.store.usage_since(since=since, by="session" if by == "person" else by)
    if by == "person":
        rows = await _by_person(context, rows)
    told = [_row(row) for row in rows[: None if by == "day" else _MAX_SESSIONS]]
    if by in ("session", "person"):
        told = [{**row, "session": row["name"]} for row in told]
    if by == "day":
        found = {row["name"]: row for row in told}
        nothing = Usage()
        told = [
            found.get(name, _row(UsageSum(name, nothing, priced=True))) for name in sorted({*known, *found})
        ]
    elif len(rows) > _MAX_SESSIONS:
        rest = rows[_MAX_SESSIONS:]
        told.append({**_row(_sum(f"{len(rest)} others", rest)), "gathered": True})
    today = Amount.from_usage(await context.costs.store.usage_on(day_of(now, limits.zone)))
    purposes, dearest = [_sum("", rows)], []  # of a guest's own conversation
    if guest is None:
        purposes = await context.costs.store.usage_since(since=since, by="purpose")
        dearest = await context.costs.store.costliest_turns(since=since)
    return {
        "days": days,
        "by": by,
        "since": since,
        "rows": told,
        "purposes": [_row(row) for row in purposes],
        "dearest": [_turn(cost) for cost in dearest],
        "total": {name: value for name, value in _row(_sum("", purposes)).items() if name != "name"},
        "budget": budget_state(today, limits, now),
    }


async def _spent_by(session: str, store: UsageStore, days: int) -> list[UsageSum]:
    """The costs of a conversation by day."""
    from gateway.store.model import UsageSum

    rows = [row for row in await store.rows(days=days) if row.session == session]
    return [
        _sum(day, [UsageSum("", row.usage, priced=True) for row in rows if row.day == day])
        for day in sorted({row.day for row in rows})
    ]


async def _by_person(context: OperationContext, sessions: Sequence[UsageSum]) -> list[UsageSum]:
    from gateway.routing.access import normalise
    from gateway.store.shared import SHARED

    people = await context.store.inbox.newest_people({spent.name for spent in sessions})
    owners = {channel: context.access.owner_addresses_on(channel) for channel, _ in people.values()}
    found: dict[str, list[UsageSum]] = {}
    for spent in sessions:
        channel, name = people.get(spent.name, ("", spent.name))
        is_owner = spent.name == str(SHARED) or normalise(name) in owners.get(channel, ())
        found.setdefault("owner" if is_owner else name, []).append(spent)
    sums = [_sum(name, rows) for name, rows in found.items()]
    return sorted(sums, key=lambda one: -(one.usage.prompt_tokens + one.usage.completion_tokens))


def _sum(name: str, rows: Sequence[UsageSum]) -> UsageSum:
    from agent_core.models import Usage
    from gateway.store.model import UsageSum

    usage = sum((row.usage for row in rows[1:]), rows[0].usage) if rows else Usage()
    return UsageSum(name, usage, priced=all(row.priced for row in rows))


def _row(spent: UsageSum) -> dict[str, Any]:
    numbers = spent.usage.model_dump(exclude={"model"})
    return {"name": spent.name, **numbers, "priced": spent.priced}


def _turn(cost: TurnCost) -> dict[str, Any]:
    at = cost.accepted_at.isoformat() if cost.accepted_at else None
    numbers = cost.usage.model_dump(include={"calls", "prompt_tokens", "completion_tokens", "cost_usd"})
    return {"id": cost.number, "name": cost.session, "session": cost.session, "at": at, **numbers}


_LOOKED_AT = 5000
"""Receipts in which those of a guest are looked for."""


@operation(
    "did",
    key="receipts",
    writes=False,
    render=usage_text.receipts,
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
        rows = await context.store.receipts.newest(since=moment, limit=capped_limit(limit))
    else:  # what others have had done may hold their words
        session, me = parse_session(guest.session), guest.place.person
        rows = await context.store.receipts.newest(since=moment, session=session, limit=_LOOKED_AT)
        rows = [row for row in rows if normalise(row.asked_by) == normalise(me)][:limit]
        return {"since": moment.isoformat(), "rows": await _receipts_as_json(context, rows)}
    may_show = context.access.may_show  # of others' words only the owner's are shown
    shown = [row if may_show(row.session, row.asked_by) else row.without_words() for row in rows]
    return {"since": moment.isoformat(), "rows": await _receipts_as_json(context, shown)}


async def _receipts_as_json(
    context: OperationContext, receipts: Sequence[EffectReceipt]
) -> list[dict[str, Any]]:
    """Receipts as JSON can hold them; a job that has ended is not to be undone any more."""
    rows = [receipt_json(receipt) for receipt in receipts]
    of_jobs = [row for row in rows if row["undo"].startswith(("squidbot cron ", "squidbot jobs "))]
    if of_jobs:
        left = {job.id.lower() for job in await context.store.jobs.jobs()}
        if context.background is not None:
            left |= {job.id for job in await context.background.all(limit=_LOOKED_AT) if job.open}
        for row in of_jobs:
            row["undo"] = row["undo"] if row["undo"].split()[-1].lower() in left else ""
    return rows


def receipt_json(receipt: EffectReceipt) -> dict[str, Any]:
    """A receipt as JSON can hold it; ``undo``: how it was undone when it was new."""
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
