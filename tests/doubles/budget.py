"""The limits of a day with shares in the order of sacrifice, and a model of which each answer costs the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from zoneinfo import ZoneInfo

import anyio

from agent_core.models import Message, ModelChunk, Purpose, Usage
from gateway.budget.budget_policy import BudgetLimits, BudgetTier
from gateway.budget.metering import Metering
from tests.contract.queue_data import ROOM

ASKED = [Message(role="user", content="hello")]

SHARES = {
    BudgetTier.OTHERS: 0.5,
    BudgetTier.HEARTBEAT: 0.7,
    BudgetTier.BACKGROUND: 0.75,
    BudgetTier.CONSOLIDATION: 0.8,
}


def limits(tokens: int | None = 10_000, usd: float | None = None, zone: str = "UTC") -> BudgetLimits:
    return BudgetLimits(tokens, usd, SHARES, ZoneInfo(zone))


class Costly:
    """A model of which each answer costs the same; ``gate`` holds answers back until it is opened."""

    def __init__(self, tokens: int = 900, *, gate: anyio.Event | None = None, told: bool = True) -> None:
        self.calls = 0
        self._tokens = tokens
        self._gate = gate
        self._told = told

    async def chat(
        self, messages: Sequence[Message], tools: object, *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self._answer()

    async def _answer(self) -> AsyncIterator[ModelChunk]:
        self.calls += 1
        if self._gate is not None:
            await self._gate.wait()
        yield "some words"
        if self._told:
            yield Usage(prompt_tokens=self._tokens, completion_tokens=100, calls=1, model="m")


async def say(llm: Costly, spending: Metering, *, owner: bool = True) -> None:
    meter = spending.meter(ROOM, Purpose.CHAT, owner=owner)
    try:
        async for _ in await meter.wrap(llm).chat(ASKED, []):
            pass
    finally:
        await meter.end()
