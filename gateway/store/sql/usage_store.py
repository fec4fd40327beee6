"""Records what models have cost."""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.store.model import By, Spent, UsageRow
from gateway.store.sql import inbox_statements
from gateway.store.sql.engine import NOTHING, ConnectionPort, Store

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


class UsageStore(Store):
    """The cost of models."""

    async def add(self, session: SessionKey, usage: Usage, purpose: Purpose) -> None:
        """Record usage outside of a completed turn (a consolidation, a call of an unfinished turn)."""
        day, key = self._day(self._now()), str(session)

        def write(db: ConnectionPort) -> None:
            inbox_statements.spend(db, day, key, purpose.value, usage)

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

    async def usage_since(self, *, since: str, by: By) -> list[Spent]:
        """Return the usage from a day on: days in order, other groups by the most tokens first."""
        if by not in ("day", "purpose", "session", "model"):
            raise ValueError(f"usage is not kept by {by}")
        order = "day" if by == "day" else "SUM(prompt_tokens) + SUM(completion_tokens) DESC"
        query = f"SELECT {by}, {_SUMS} FROM usage WHERE day >= ? GROUP BY {by} ORDER BY {order}"
        raws = await self._reader.call("spent", lambda db: db.execute(query, (since,)).fetchall())
        return [
            Spent(
                name,
                _usage(sums),
                priced=not unpriced,
            )
            for name, *sums, unpriced in raws
        ]
