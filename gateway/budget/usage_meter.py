"""
What one run has cost, and the models that are paid from it; see ``metering.py``.

A run is a turn, or one visit to a session that is condensed. Its calls are made one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, cast

from agent_core.errors import BudgetSpent, ModelError
from agent_core.messages import SessionKey
from agent_core.models import Message, ModelChunk, Purpose, ToolCall, ToolDefinition, Usage
from agent_core.ports import LLMPort
from gateway.budget.policy import Amount, Claimant, Decision
from gateway.observability import metrics

if TYPE_CHECKING:
    from gateway.budget.metering import Spending

__all__ = ["Tally", "over_current"]


class Tally:
    """What one run has cost. Made by `Spending.tally`."""

    def __init__(self, spending: Spending, session: SessionKey, purpose: Purpose, claimant: Claimant) -> None:
        self.session = session
        self.purpose = purpose
        self.claimant = claimant
        self.reserved = Amount()
        self.unrecorded: list[Usage] = []
        self.refused: BudgetSpent | None = None
        """Why its last call was refused."""
        self.ended = False
        self._spending = spending
        self._closing = False
        self._closed = False

    def over(self, llm: LLMPort) -> LLMPort:
        """The model, paid from this tally."""
        return _Paid(self, self._spending, llm)

    def may_close(self) -> bool:
        """Whether one more call is allowed to come to an end with what is there."""
        return self._closing and not self._closed

    async def last(self, tokens: int, *, begun: bool) -> str:
        """See `agent_core.ports.AllowancePort`. What it says holds for the next call: that is reserved."""
        if not self._spending.limits.any:
            return ""
        decision = await self._spending.reserve(self, tokens)
        if not decision.go and begun:
            self._closing = True
            return "the budget of the day is spent"
        return decision.reason if decision.go and decision.last else ""

    async def enter(self, tokens: int) -> None:
        """
        Begin a call, for which `last` may have reserved already.

        Raises:
            BudgetSpent: It may not be made; ``fields["until"]`` says until when.
            StoreUnavailable: It cannot be said now.
        """
        if self.reserved != Amount():
            return
        decision = await self._spending.reserve(self, tokens)
        if self.reserved == Amount():
            raise self.refuse(decision)

    def refuse(self, decision: Decision) -> BudgetSpent:
        """Count a refusal, and the error that says so."""
        metrics.BUDGET_REFUSALS.labels(self.claimant.value).inc()
        self.refused = BudgetSpent(decision.reason, until=decision.until, claimant=self.claimant.value)
        return self.refused

    def due(self) -> Usage:
        """What is not in the store yet, to be committed with the end of the run; then call `committed`."""
        return sum(self.unrecorded, Usage())

    def committed(self) -> None:
        """What `due` gave is in the store."""
        self._spending.recorded(self, len(self.unrecorded))

    async def record(self) -> None:
        """Commit what was spent so far. Raises nothing but cancellation."""
        await self._spending.commit(self)

    async def end(self) -> None:
        """The run is over, however it ended. Raises nothing but cancellation."""
        self.ended = True
        self.reserved = Amount()
        await self._spending.commit(self)

    def settle(self, usage: Usage | None) -> None:
        """A call has ended and cost this; None: nothing."""
        self.reserved = Amount()
        if usage is None:
            return
        self._closed = self._closing
        self.unrecorded.append(usage)
        metrics.TOKENS.labels(self.purpose, "prompt").inc(usage.prompt_tokens)
        metrics.TOKENS.labels(self.purpose, "completion").inc(usage.completion_tokens)
        metrics.CACHED_TOKENS.labels(self.purpose).inc(usage.cached_tokens)


def over_current(current: ContextVar[Tally | None], llm: LLMPort) -> LLMPort:
    """The model, paid from the tally that ``current`` holds where it is called; without one, not paid."""
    return _Current(current, llm)


class _Current:
    """A model that looks whose tally pays at the moment of the call."""

    def __init__(self, current: ContextVar[Tally | None], llm: LLMPort) -> None:
        self._current = current
        self._llm = llm

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        tally = self._current.get()
        llm = self._llm if tally is None else tally.over(self._llm)
        return await llm.chat(messages, tools, stream=stream)


class _Paid:
    """A model whose calls are paid from a tally."""

    def __init__(self, tally: Tally, spending: Spending, llm: LLMPort) -> None:
        self._tally = tally
        self._spending = spending
        self._llm = llm

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self._answer(messages, tools, stream=stream)

    async def _answer(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool
    ) -> AsyncGenerator[ModelChunk, None]:
        guess = self._spending.guess(messages, tools)
        await self._tally.record()
        await self._tally.enter(guess)
        texts: list[str] = []
        calls: list[ToolCall] = []
        told: Usage | None = None
        failed = False
        try:
            chunks = await self._llm.chat(messages, tools, stream=stream)
            async with aclosing(cast("AsyncGenerator[ModelChunk, None]", chunks)) as answer:
                async for chunk in answer:
                    match chunk:
                        case str():
                            texts.append(chunk)
                        case ToolCall():
                            calls.append(chunk)
                        case Usage():
                            told = chunk if told is None else told + chunk
                    yield chunk
        except ModelError:
            failed = True
            raise
        finally:
            self._tally.settle(self._cost(guess, texts, calls, told, failed=failed))
        if told is not None:
            self._spending.learn(guess, told.prompt_tokens)

    def _cost(
        self, guess: int, texts: Sequence[str], calls: Sequence[ToolCall], told: Usage | None, *, failed: bool
    ) -> Usage | None:
        """What a call has cost, as far as it can be known. None: it failed before anything came of it."""
        if told is not None:
            return told
        if failed and not texts and not calls:
            return None
        said = Message(role="assistant", content="".join(texts), tool_calls=tuple(calls))
        written = self._spending.guess([said]) if texts or calls else 0
        return Usage(prompt_tokens=guess, completion_tokens=written, calls=1)
