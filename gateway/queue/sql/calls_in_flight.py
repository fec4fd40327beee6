"""
What model calls in flight will probably cost, where several processes spend from one budget.

Each call is a row of ``state`` from before it begins until what it has cost is in ``usage``; the transaction
that writes the one removes the other. Reserving looks at both in one statement, behind one lock, so calls of
all processes see each other. What a dead process had in flight ends with its lease.
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
    Model calls in flight of all processes that spend from one budget; amounts are tokens and dollars.

    Args:
        holder: The name of this process, which holds a lease.
        others: Whether others spend, too.
    """

    def __init__(self, database: Database, holder: str, others: Callable[[], bool]) -> None:
        super().__init__(database)
        self._holder = holder
        self._others = others

    @property
    def active(self) -> bool:
        """Whether others spend, too; as long as they do not, each process knows what it has in flight."""
        return self._others()

    def name(self, number: int) -> str:
        """The name of a call of this process."""
        return f"{CALL}{self._holder}/{number}"

    async def spent(self, day: str) -> Usage:
        """What a day has cost, and what other processes have in flight."""
        return await self._reader.call("spent", lambda db: self._found(db, day, None))

    async def reserve(
        self, name: str, day: str, needs: Usage, may: Callable[[Usage], bool], besides: Collection[str]
    ) -> bool:
        """
        Reserve what a call will probably cost; False: ``may`` says no.

        ``may`` is told what the day has cost with all calls that are in flight, but for those of ``besides``
        and this one. It is called on another thread, perhaps several times, alone over all processes.
        """
        value = json.dumps({"day": day, "tokens": needs.prompt_tokens, "usd": needs.cost_usd or 0.0})

        def write(db: Connection) -> bool:
            if not may(self._found(db, day, {name, *besides})):
                return False
            remember(db, name, value)
            return True

        return await self._writer.call("reserve", write, locks=[named_lock("usage")])

    async def end(self, name: str) -> None:
        """A call has ended, and nothing is to be noted of it; it need not be in flight."""
        await self._writer.call("end_call", lambda db: end_call(db, name), locks=NOTHING)

    def _found(self, db: Connection, day: str, besides: Collection[str] | None) -> Usage:
        """What the day has cost, with all calls in flight but these; None: but those of this process."""
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
