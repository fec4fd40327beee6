"""What models have cost."""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_core.models import Usage
from gateway.queue.model import By, Spent
from gateway.queue.sqlite.base import Part

__all__ = ["SqliteUsageStore"]

_SUMS = (
    "SUM(prompt_tokens), SUM(completion_tokens), SUM(calls), SUM(cost_usd), SUM(cached_tokens),"
    " SUM(thinking_tokens), COUNT(*) - COUNT(cost_usd)"
)


def _usage(sums: Sequence[Any]) -> Usage:
    given, made, calls, cost_usd, cached, thinking = sums
    return Usage(
        prompt_tokens=given or 0,
        completion_tokens=made or 0,
        calls=calls or 0,
        cost_usd=cost_usd,
        cached_tokens=cached or 0,
        thinking_tokens=thinking or 0,
    )


class SqliteUsageStore(Part):
    """Implements `gateway.queue.ports.UsageStore`."""

    async def spent_on(self, day: str) -> Usage:
        """All of one day."""
        query = f"SELECT {_SUMS} FROM usage WHERE day = ?"
        *sums, _ = await self._reader.call("spent_on", lambda db: db.execute(query, (day,)).fetchone())
        return _usage(sums)

    async def spent(self, *, since: str, by: By) -> list[Spent]:
        """From a day on, what belongs together."""
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
