"""
What was spent on models, as the durable queue's database knows it: sums, and notices that go out once.

`SpendStore` is a port beside `WorkStore`, kept by the same adapter in the same database. A day is one of the
time zone with which the adapter was opened, ``YYYY-MM-DD``. All methods may raise `StoreUnavailable`: then
nothing of the call has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agent_core.models import Usage
from gateway.queue.model import NewOutbound, OutboxRow

__all__ = ["By", "SpendStore", "Spent"]

By = Literal["day", "purpose", "session", "model"]


@dataclass(frozen=True, slots=True)
class Spent:
    """
    The sum of what belongs together.

    Args:
        name: The day, purpose, session or model; empty where the model is not known.
        usage: What it comes to; ``cost_usd`` is what is known of it.
        priced: Whether the price of all of it is known.
    """

    name: str
    usage: Usage
    priced: bool


class SpendStore(Protocol):
    """Sums of what models have cost."""

    async def spent_on(self, day: str) -> Usage:
        """All of one day. Looks at the rows of that day alone."""
        ...

    async def spent(self, *, since: str, by: By) -> list[Spent]:
        """From a day on: days in their order, anything else with the most tokens first."""
        ...

    async def post_once(self, name: str, value: str, outbound: Sequence[NewOutbound]) -> list[OutboxRow]:
        """
        Put messages into the outbox, unless that was done under this name with this value last time; that it
        was done and the messages are one transaction. Nothing is returned for what was said already.
        """
        ...
