"""Records what models have cost."""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.store.model import TurnCost, UsageGroup, UsageRow, UsageSum
from gateway.store.sql import inbox_statements
from gateway.store.sql.engine import NOTHING, ConnectionPort, Store
from gateway.store.sql.state_store import remember

COSTLIEST = "dearest"
"""The topics ``dearest/DAY`` have the dearest turns of each day: its last message, and what it cost."""
_MAX_OF_A_DAY, _KEPT_DAYS = 10, 90

_SUMS = (
    "SUM(prompt_tokens), SUM(completion_tokens), SUM(calls), SUM(cost_usd), SUM(cached_tokens),"
    " SUM(thinking_tokens), COUNT(*) - COUNT(cost_usd)"
)


def _usage(sums: Sequence[Any]) -> Usage:
    given, made, calls, cost_usd, cached, thinking = sums
    return Usage(
        prompt_tokens=int(given or 0),  # a sum of integers may come as a decimal
        completion_tokens=int(made or 0),
        calls=int(calls or 0),
        cost_usd=cost_usd,
        cached_tokens=int(cached or 0),
        thinking_tokens=int(thinking or 0),
    )


def note_dear_turn(db: ConnectionPort, day: str, tail: int, usage: Usage) -> None:
    """Keep the cost of a turn if it is among the dearest of its day; those of long ago are dropped."""
    if not usage.calls:
        return
    topic = f"{COSTLIEST}/{day}"
    found = db.execute("SELECT value FROM state WHERE topic = ?", (topic,)).fetchone()
    if found is None:
        oldest = date.fromisoformat(day) - timedelta(days=_KEPT_DAYS)
        db.execute(
            "DELETE FROM state WHERE topic > ? AND topic < ?", (f"{COSTLIEST}/", f"{COSTLIEST}/{oldest}")
        )
    kept = [] if found is None else json.loads(found[0])
    numbers = (usage.cost_usd, usage.prompt_tokens, usage.completion_tokens, usage.calls)
    kept = sorted([*kept, [tail, *numbers]], key=_dearness, reverse=True)
    if any(each[0] == tail for each in kept[:_MAX_OF_A_DAY]):
        remember(db, topic, json.dumps(kept[:_MAX_OF_A_DAY]))


def _dearness(cost: Sequence[Any]) -> tuple[float, int]:
    """Order by money, then by tokens."""
    _, usd, given, made, _ = cost
    return usd or 0.0, given + made


class UsageStore(Store):
    """The cost of models."""

    async def add(self, session: SessionKey, usage: Usage, purpose: Purpose) -> None:
        """Record usage outside of a completed turn (a consolidation, a call of an unfinished turn)."""
        day, key = self._day(self._now()), str(session)

        def write(db: ConnectionPort) -> None:
            inbox_statements.add_usage(db, day, key, purpose.value, usage)

        await self._writer.call("add_usage", write, locks=NOTHING)

    async def rows(self, *, days: int = 30) -> list[UsageRow]:
        """Return the usage, newest day first."""
        since = self._day(self._now() - (days - 1) * 86_400)
        query = (
            "SELECT day, session, purpose, model, prompt_tokens, completion_tokens, calls, cost_usd,"
            " cached_tokens, thinking_tokens FROM usage WHERE day >= ?"
            " ORDER BY day DESC, session, purpose, model"
        )
        raws = await self._reader.call("usage", lambda db: db.execute(query, (since,)).fetchall())
        return [
            UsageRow(
                day,
                session,
                purpose,
                model,
                Usage(
                    prompt_tokens=given,
                    completion_tokens=made,
                    calls=calls,
                    cost_usd=cost_usd,
                    model=model,
                    cached_tokens=cached,
                    thinking_tokens=thinking,
                ),
            )
            for day, session, purpose, model, given, made, calls, cost_usd, cached, thinking in raws
        ]

    async def usage_on(self, day: str) -> Usage:
        """Return all usage of one day. It reads the rows of that day alone."""
        query = f"SELECT {_SUMS} FROM usage WHERE day = ?"
        *sums, _ = await self._reader.call("spent_on", lambda db: db.execute(query, (day,)).fetchone())
        return _usage(sums)

    async def usage_since(self, *, since: str, by: UsageGroup) -> list[UsageSum]:
        """Return the usage from a day on: days in order, other groups by the most tokens first."""
        if by not in ("day", "purpose", "session", "model"):
            raise ValueError(f"usage is not kept by {by}")
        order = "day" if by == "day" else "SUM(prompt_tokens) + SUM(completion_tokens) DESC"
        query = f"SELECT {by}, {_SUMS} FROM usage WHERE day >= ? GROUP BY {by} ORDER BY {order}"
        raws = await self._reader.call("spent", lambda db: db.execute(query, (since,)).fetchall())
        return [
            UsageSum(
                name,
                _usage(sums),
                priced=not unpriced,
            )
            for name, *sums, unpriced in raws
        ]

    async def costliest_turns(self, *, since: str, limit: int = 10) -> list[TurnCost]:
        """Return the turns from a day on that have cost the most, the dearest first."""
        low, high = f"{COSTLIEST}/{since}", f"{COSTLIEST}0"  # the character after a slash
        days = "SELECT value FROM state WHERE topic >= ? AND topic < ?"
        message = "SELECT session, accepted_at FROM inbox WHERE id = ?"

        def read(db: ConnectionPort) -> list[tuple[Any, Any]]:
            costs = [
                each for (value,) in db.execute(days, (low, high)).fetchall() for each in json.loads(value)
            ]
            costs = sorted(costs, key=_dearness, reverse=True)[:limit]
            return [(each, db.execute(message, (each[0],)).fetchone()) for each in costs]

        found = []
        for (tail, usd, given, made, calls), row in await self._reader.call("dearest_turns", read):
            usage = Usage(prompt_tokens=given, completion_tokens=made, calls=calls, cost_usd=usd)
            session, at = row or ("", None)
            found.append(
                TurnCost(tail, session, None if at is None else datetime.fromtimestamp(at, UTC), usage)
            )
        return found
