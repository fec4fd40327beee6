"""
Measures what models cost: every call goes through the `UsageMeter` of its run. Before a call the budget is
asked with the day's stored cost plus calls since and in flight; nothing else is remembered, and nothing runs
between the sum and the reservation, so that parallel calls see each other. After it the reported (else
estimated) cost is committed before the next call, the last one's with its turn: SIGKILL leaves at most one
call per running turn uncounted. A failed call without output costs nothing, and journaled calls are not
counted again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import anyio
import structlog

from agent_core.errors import BudgetSpent, ModelError
from agent_core.messages import SessionKey
from agent_core.models import Message, ModelChunk, Purpose, ToolCall, ToolDefinition, Usage
from agent_core.ports import Clock, LLMPort
from agent_core.prompt_budget import TokenEstimate
from gateway.budget.budget_policy import (
    Amount,
    BudgetDecision,
    BudgetLimits,
    BudgetTier,
    day_of,
    decide,
    tier_of,
)
from gateway.observability import metrics
from gateway.observability.traces import ModelTrace
from gateway.store.stores import Queue, StoreUnavailable, UsageStore

ANSWER_TOKENS = 1_000
"""What is reserved for an answer whose length nobody knows yet."""
_log = structlog.get_logger(__name__)


class Metering:
    """The meters of all runs, and what a day has cost."""

    def __init__(self, store: Queue, costs: UsageStore, limits: BudgetLimits, clock: Clock) -> None:
        self.limits = limits
        self._store = store
        self._costs = costs
        self._clock = clock
        self._meters: set[UsageMeter] = set()
        self._commits = 0
        self._current: ContextVar[UsageMeter | None] = ContextVar("meter", default=None)
        self._estimate = TokenEstimate()
        self._seen = ("", Amount())

    def meter(
        self, session: SessionKey, purpose: Purpose, *, owner: bool, share: float | None = None
    ) -> UsageMeter:
        """
        Return the meter of one run; ``owner``: the owner is among those who asked for it.

        ``share`` is what those others may have who asked; None: the share of all others.
        """
        return UsageMeter(self, session, purpose, tier_of(purpose, owner=owner), share)

    async def decision(
        self,
        tier: BudgetTier,
        needs: Amount = Amount(),  # noqa: B008 - frozen
        share: float | None = None,
    ) -> BudgetDecision:
        """Decide about a call now. Raises `StoreUnavailable`."""
        if not self.limits.any:
            return BudgetDecision(go=True)
        spent = await self.amount_today()
        return decide(spent, self.limits, tier, self._clock.now(), needs=needs, share=share)

    async def refusal(
        self, purpose: Purpose, *, owner: bool, share: float | None = None
    ) -> BudgetDecision | None:
        """Return the refusal of new work of this purpose; None: it may start. Raises `StoreUnavailable`."""
        decision = await self.decision(tier_of(purpose, owner=owner), share=share)
        return None if decision.go else decision

    async def amount_today(self, *, reserved: bool = True) -> Amount:
        """Return this day's cost, with ``reserved`` also of calls in flight. Raises StoreUnavailable."""
        day, before, kept = day_of(self._clock.now(), self.limits.zone), Amount(), Amount()
        for _ in range(5):
            day, commits = day_of(self._clock.now(), self.limits.zone), self._commits
            before = self._in_hand(reserved=reserved)
            kept = Amount.from_usage(await self._costs.usage_on(day))
            if commits == self._commits:
                now = kept + self._in_hand(reserved=reserved)
                break
            # Something went from a meter into the store meanwhile: it may be in both sums, or in neither.
        else:
            now = kept + before + self._in_hand(reserved=reserved)
        if not reserved:
            self._seen = (day, now)
        return now

    def last_amount(self) -> Amount:
        """Return the day's cost as last read, for gauges; reads nothing."""
        day, amount = self._seen
        return amount if day == day_of(self._clock.now(), self.limits.zone) else Amount()

    def needs(self, tokens: int, usd: float | None = None) -> Amount:
        """The probable cost of so many tokens: ``usd``, or by the average price of this day."""
        all_of_it = tokens + ANSWER_TOKENS
        if usd is not None:
            return Amount(all_of_it, usd)
        seen = self.last_amount()
        return Amount(all_of_it, seen.usd / seen.tokens * all_of_it if seen.tokens else 0.0)

    def with_current_meter(self, llm: LLMPort) -> LLMPort:
        """Wrap a model so that the meter that is `use_meter` pays each call, if one is."""
        return _Current(self._current, llm)

    @contextmanager
    def use_meter(self, meter: UsageMeter) -> Iterator[None]:
        """While inside, calls through `with_current_meter` are paid by this meter."""
        token = self._current.set(meter)
        try:
            yield
        finally:
            self._current.reset(token)

    # ── for meters ──

    async def reserve(self, meter: UsageMeter, tokens: int, usd: float | None = None) -> BudgetDecision:
        """Decide on a call, and reserve what it will cost if it may be made. Raises `StoreUnavailable`."""
        needs = self.needs(tokens, usd)
        decision = await self.decision(meter.tier, needs, meter.share)
        if decision.go or meter.may_make_final_call():
            meter.reserved = needs
            self._meters.add(meter)
        return decision

    async def commit(self, meter: UsageMeter) -> None:
        """Write the cost of a meter into the store; what that does not accept is kept. Raises nothing."""
        while meter.unrecorded:
            usage = meter.unrecorded[0]
            try:
                # What is cut off here is in the writer's hands already.
                with anyio.move_on_after(5.0, shield=True):
                    await self._store.usage.add(meter.session, usage, meter.purpose)
            except StoreUnavailable as error:
                _log.warning("usage.not_recorded", session=str(meter.session), error=str(error))
                self._meters.add(meter)
                return
            self.mark_recorded(meter, 1)
        self._tidy(meter)

    def mark_recorded(self, meter: UsageMeter, count: int) -> None:
        """Note that the first ``count`` calls of a meter are stored."""
        self._commits += 1
        del meter.unrecorded[:count]
        self._tidy(meter)

    async def commit_all(self) -> None:
        """Retry what the store did not accept. Raises nothing but cancellation."""
        for meter in list(self._meters):
            if meter.ended:
                await self.commit(meter)

    def estimate_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """The estimated number of tokens of a request."""
        return self._estimate.request(messages, tools)

    def _in_hand(self, *, reserved: bool) -> Amount:
        total = Amount()
        for meter in self._meters:
            if reserved:
                total += meter.reserved
            for usage in meter.unrecorded:
                total += Amount.from_usage(usage)
        return total

    def _tidy(self, meter: UsageMeter) -> None:
        if not meter.unrecorded and meter.reserved == Amount():
            self._meters.discard(meter)


@dataclass(eq=False)
class UsageMeter:
    """The cost of one run. Made by `Metering.meter`."""

    spending: Metering
    session: SessionKey
    purpose: Purpose
    tier: BudgetTier
    share: float | None = None

    def __post_init__(self) -> None:
        self.reserved = Amount()
        self.unrecorded: list[Usage] = []
        self.spent = Usage()
        """All calls of the run."""
        self.refused: BudgetSpent | None = None
        """Why its last call was refused."""
        self.took_tools = False
        """The budget has left the run a last call without tools."""
        self.ended = False
        self._closing = False
        self._closed = False

    def wrap(self, llm: LLMPort) -> LLMPort:
        """Wrap a model so that this meter pays each call."""
        return _Paid(self, self.spending, llm)

    def may_make_final_call(self) -> bool:
        """Return True if one last call may use the rest of the budget."""
        return self._closing and not self._closed

    async def final_call_reason(self, tokens: int, *, begun: bool) -> str:
        """See `agent_core.ports.AllowancePort`. What it says holds for the next call: that is reserved."""
        if not self.spending.limits.any:
            return ""
        decision = await self.spending.reserve(self, tokens)
        self.took_tools = decision.last if decision.go else begun
        if not decision.go and begun:
            self._closing = True
            return "the budget of the day is spent"
        return decision.reason if decision.go and decision.last else ""

    async def enter(self, tokens: int, usd: float | None = None) -> None:
        """Begin a call (perhaps reserved by `last`) of known ``usd``. Raises BudgetSpent."""
        if self.reserved != Amount():
            return
        decision = await self.spending.reserve(self, tokens, usd)
        if self.reserved == Amount():
            raise self.refuse(decision)

    def refuse(self, decision: BudgetDecision) -> BudgetSpent:
        """Count a refusal, and the error that says so."""
        metrics.BUDGET_REFUSALS.labels(self.tier.value).inc()
        self.refused = BudgetSpent(decision.reason, until=decision.until, tier=self.tier.value)
        return self.refused

    def due(self) -> Usage:
        """The cost that is not in the store yet, for the commit of the run; then call `committed`."""
        return sum(self.unrecorded, Usage())

    def mark_committed(self) -> None:
        """Call this when the result of `due` is in the store."""
        self.spending.mark_recorded(self, len(self.unrecorded))

    async def record(self) -> None:
        """Commit the cost so far. Raises nothing but cancellation."""
        await self.spending.commit(self)

    async def end(self) -> None:
        """Note that the run is over, however it ended. Raises nothing but cancellation."""
        self.ended = True
        self.reserved = Amount()
        await self.spending.commit(self)

    def settle(self, usage: Usage | None) -> None:
        """Note the end of a call and its cost; None: it cost nothing."""
        self.reserved = Amount()
        if usage is None:
            return
        self._closed = self._closing
        self.unrecorded.append(usage)
        self.spent += usage
        metrics.TOKENS.labels(self.purpose, "prompt").inc(usage.prompt_tokens)
        metrics.TOKENS.labels(self.purpose, "completion").inc(usage.completion_tokens)
        metrics.CACHED_TOKENS.labels(self.purpose).inc(usage.cached_tokens)


class _Current:
    """A model that looks whose meter pays at the moment of the call; without one, nobody does."""

    def __init__(self, current: ContextVar[UsageMeter | None], llm: LLMPort) -> None:
        self._current = current
        self._llm = llm

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        meter = self._current.get()
        llm = self._llm if meter is None else meter.wrap(self._llm)
        return await llm.chat(messages, tools, stream=stream)


class _Paid:
    """A model whose calls are paid from a meter."""

    def __init__(self, meter: UsageMeter, spending: Metering, llm: LLMPort) -> None:
        self._meter = meter
        self._spending = spending
        self._llm = llm

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self._answer(messages, tools, stream=stream)

    async def _answer(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool
    ) -> AsyncGenerator[ModelChunk, None]:
        guess = self._spending.estimate_tokens(messages, tools)
        await self._meter.record()
        await self._meter.enter(guess)
        texts: list[str] = []
        calls: list[ToolCall] = []
        told: Usage | None = None
        error: BaseException | None = None
        trace = ModelTrace(self._meter.purpose, messages)
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
        except BaseException as raised:
            error = raised
            raise
        finally:
            cost = self._cost(guess, texts, calls, told, failed=isinstance(error, ModelError))
            self._meter.settle(cost)
            trace.end(texts, calls, cost, error)

    def _cost(
        self, guess: int, texts: Sequence[str], calls: Sequence[ToolCall], told: Usage | None, *, failed: bool
    ) -> Usage | None:
        """Return the cost of a call, estimated if not reported; None: it failed before any output."""
        if told is not None:
            return told
        if failed and not texts and not calls:
            return None
        said = Message(role="assistant", content="".join(texts), tool_calls=tuple(calls))
        written = self._spending.estimate_tokens([said]) if texts or calls else 0
        return Usage(prompt_tokens=guess, completion_tokens=written, calls=1)
