"""
Reserves the estimated cost of model calls in flight, where several processes spend from one budget.

Each call is a row of ``state`` from before it begins until its cost is in ``usage``; one transaction writes
the cost and removes the row. A reservation reads both in one statement, under one lock, so the calls of all
processes see each other. The calls in flight of a dead process end with its lease.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from agent_core.models import Usage
from gateway.queue.sql.base import Database, Part
from gateway.queue.sql.cluster import PROCESS
from gateway.queue.sql.engine import NOTHING, Connection, named_lock
from gateway.queue.sql.inbox_sql import CALL, end_call
from gateway.queue.sql.state import remember

_FOUND = (
    "SELECT 'spent', COALESCE(SUM(prompt_tokens), 0) + COALESCE(SUM(completion_tokens), 0),"
    " COALESCE(SUM(cost_usd), 0.0), '' FROM usage WHERE day = ?"
    " UNION ALL SELECT topic, 0, 0.0, value FROM state WHERE topic > ? AND topic < ?"
    " UNION ALL SELECT name, 0, 0.0, holder FROM leases WHERE name > ? AND name < ?"
)


class CallsInFlight(Part):
    """
    The model calls in flight of all processes that share a budget; amounts are tokens and dollars.

    Args:
        holder: The name of this process, which holds a lease.
        others: Returns whether other processes spend, too.
    """

    def __init__(self, database: Database, holder: str, others: Callable[[], bool]) -> None:
        super().__init__(database)
        self._holder = holder
        self._others = others

    @property
    def active(self) -> bool:
        """Whether other processes spend, too; otherwise this process knows all calls in flight by itself."""
        return self._others()

    def name(self, number: int) -> str:
        """Return the name of a call of this process."""
        return f"{CALL}{self._holder}/{number}"

    async def spent(self, day: str) -> Usage:
        """Return the cost of a day, with what other processes have in flight."""
        return await self._reader.call("spent", lambda db: self._found(db, day, None))

    async def reserve(
        self, name: str, day: str, needs: Usage, may: Callable[[Usage], bool], besides: Collection[str]
    ) -> bool:
        """
        Reserve the estimated cost of a call; return False if ``may`` refuses.

        ``may`` receives the cost of the day with all calls in flight, except those of ``besides`` and this
        one. It runs on another thread, perhaps several times, and never concurrently with that of any other
        process.
        """
        value = json.dumps({"day": day, "tokens": needs.prompt_tokens, "usd": needs.cost_usd or 0.0})

        def write(db: Connection) -> bool:
            if not may(self._found(db, day, {name, *besides})):
                return False
            remember(db, name, value)
            return True

        return await self._writer.call("reserve", write, locks=[named_lock("usage")])

    async def end(self, name: str) -> None:
        """End a call without recording usage; the call need not be in flight."""
        await self._writer.call("end_call", lambda db: end_call(db, name), locks=NOTHING)

    def _found(self, db: Connection, day: str, besides: Collection[str] | None) -> Usage:
        """Return the cost of a day with all calls in flight except these; None: except this process's own."""
        spent, calls, living = Usage(), list[tuple[str, Any]](), set[str]()
        edges = [edge for begin in (CALL, PROCESS) for edge in (begin, f"{begin[:-1]};")]
        for name, tokens, usd, text in db.execute(_FOUND, (day, *edges)).fetchall():
            if name == "spent":
                spent = Usage(prompt_tokens=int(tokens), cost_usd=float(usd))
            elif name.startswith(PROCESS):
                living.add(text)
            else:
                calls.append((name, json.loads(text)))
        for name, call in calls:
            holder = name.removeprefix(CALL).rpartition("/")[0]
            is_counted = holder != self._holder if besides is None else name not in besides
            if is_counted and holder in living and call["day"] == day:
                spent += Usage(prompt_tokens=call["tokens"], cost_usd=call["usd"])
        return spent
