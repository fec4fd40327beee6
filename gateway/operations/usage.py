"""`squidbot usage`: what models cost by day, purpose, session or model, and the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from agent_core.messages import Audience
from agent_core.models import Usage
from agent_core.ports import Clock
from gateway.budget.policy import Amount, BudgetLimits, budget_state, day_of
from gateway.errors import NotFound
from gateway.operations.views import key_of
from gateway.queue.model import By, Spent
from gateway.queue.shared import SHARED
from gateway.queue.stores import Queue, UsageStore
from gateway.routing.access import Access, normalise

_MOST_SESSIONS = 50


@dataclass(frozen=True, slots=True)
class Costs:
    """The sources of a usage report: the sums, the limits of a day, and the time."""

    store: UsageStore
    limits: BudgetLimits
    clock: Clock


class UsageOperations:
    """The part of `gateway.operations.service.Operations` about money."""

    _store: Queue
    _access: Access
    _costs: Costs | None
    _MOST: ClassVar[int] = _MOST_SESSIONS

    async def usage(
        self, days: Annotated[int, Field(ge=1, le=3660)] = 30, by: By | Literal["person"] = "day"
    ) -> dict[str, Any]:
        """
        Return tokens and money of the last days with today's budget and the sums by purpose.

        By person, a private conversation counts for its last author, and a room stays a room. By day, days
        without calls have rows; by session, those beyond fifty are one row.
        """
        if self._costs is None:
            raise NotFound("no usage is recorded here")
        limits, now = self._costs.limits, self._costs.clock.now()
        known = [day_of(now - timedelta(days=ago), limits.zone) for ago in range(days)]
        since = min(known)
        rows = await self._costs.store.usage_since(since=since, by="session" if by == "person" else by)
        if by == "person":
            rows = await self._by_person(rows)
        told = [_row(row) for row in rows[: None if by == "day" else self._MOST]]
        if by in ("session", "person"):
            told = [{**row, "session": row["name"]} for row in told]
        if by == "day":
            found = {row["name"]: row for row in told}
            nothing = Usage()
            told = [
                found.get(name, _row(Spent(name, nothing, priced=True))) for name in sorted({*known, *found})
            ]
        elif len(rows) > self._MOST:
            rest = rows[self._MOST :]
            told.append({**_row(_sum(f"{len(rest)} others", rest)), "gathered": True})
        today = Amount.from_usage(await self._costs.store.usage_on(day_of(now, limits.zone)))
        return {
            "days": days,
            "by": by,
            "since": since,
            "rows": told,
            "purposes": [_row(row) for row in await self._costs.store.usage_since(since=since, by="purpose")],
            "total": {name: value for name, value in _row(_sum("", rows)).items() if name != "name"},
            "budget": budget_state(today, limits, now),
        }

    async def _by_person(self, sessions: Sequence[Spent]) -> list[Spent]:
        found: dict[str, list[Spent]] = {}
        for spent in sessions:
            found.setdefault(await self._person_of(spent.name), []).append(spent)
        sums = [_sum(name, rows) for name, rows in found.items()]
        return sorted(sums, key=lambda one: -(one.usage.prompt_tokens + one.usage.completion_tokens))

    async def _person_of(self, name: str) -> str:
        session = key_of(name)
        if session is None or session.channel == "heartbeat":
            return name
        if session == SHARED:
            return "owner"
        rows = await self._store.inbox.rows(session=session, limit=1)
        if not rows or rows[0].message.audience is not Audience.DIRECT:
            return name
        sender = rows[0].message.sender.address
        return "owner" if normalise(sender) in self._access.owner_on(session.channel) else sender


def _sum(name: str, rows: Sequence[Spent]) -> Spent:
    return Spent(name, sum((row.usage for row in rows), Usage()), priced=all(row.priced for row in rows))


def _row(spent: Spent) -> dict[str, Any]:
    numbers = spent.usage.model_dump(exclude={"model"})
    return {"name": spent.name, **numbers, "priced": spent.priced}
