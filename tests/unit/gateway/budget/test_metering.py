"""The daily budget at work: calls are measured, runs see each other and stop, and what waits goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import anyio
import pytest

from agent_core.errors import BudgetSpent, ModelUnavailable, TurnLimitReached
from agent_core.memory.consolidation.consolidation_queue import ConsolidationQueue
from agent_core.memory.consolidation.consolidation_run import ConsolidationResult
from agent_core.models import ModelChunk, Purpose, Usage
from gateway.budget.budget_policy import RECHECK_S, Amount, BudgetLimits, BudgetTier
from gateway.budget.config import BudgetSettings
from gateway.budget.metering import Metering
from gateway.observability import metrics
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion
from gateway.turns.failure_and_deferral import Deferral
from gateway.turns.post_turn import MeteredConsolidation
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import ROOM, accept, claim, out
from tests.doubles.agent import FakeTool, Journey, call
from tests.doubles.budget import ASKED, Costly, limits, say


def counted():
    """Consolidations by their result."""
    asked = {result: {"result": result} for result in ("done", "failed", "deferred")}
    name = "squidbot_consolidations_total"
    return {
        result: metrics.REGISTRY.get_sample_value(name, labels) or 0.0 for result, labels in asked.items()
    }


class Broken(Costly):
    """Fails before anything came of it, or after some text."""

    def __init__(self, *, after_text: bool) -> None:
        super().__init__()
        self._after_text = after_text

    async def _answer(self) -> AsyncIterator[ModelChunk]:
        if self._after_text:
            yield "some words " * 50
        raise ModelUnavailable("away")


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=clock, synchronous="normal") as opened:
        yield opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def spent_in_parallel(spending: Metering, llm: Costly, gate: anyio.Event, runs: int) -> None:
    async def one() -> None:
        with pytest.raises(BudgetSpent):
            while True:
                await say(llm, spending)

    async with anyio.create_task_group() as tasks:
        for _ in range(runs):
            tasks.start_soon(one)
        await anyio.sleep(0.05)
        gate.set()


class BlindToOthers(Metering):
    """Looks at what is in the store alone: the calls in flight do not see each other."""

    def _in_hand(self, *, reserved: bool) -> Amount:
        return Amount()


class TestSpending:
    async def test_parallel_runs_go_over_by_less_than_a_call_each(self, store, clock):
        """Eight runs at once with budget for three calls: they see each other's reservations."""
        gate = anyio.Event()
        llm = Costly(gate=gate)
        await spent_in_parallel(Metering(store, store.usage, limits(3_000), clock), llm, gate, 8)
        total = Amount.from_usage(await store.usage.usage_on("2026-01-01"))
        assert 3_000 <= total.tokens < 3_000 + 1_000
        assert llm.calls == 3

    async def test_that_check_notices_runs_that_do_not_see_each_other(self, store, clock):
        """Control: without reservations the same runs spend much more."""
        gate = anyio.Event()
        llm = Costly(gate=gate)
        await spent_in_parallel(BlindToOthers(store, store.usage, limits(3_000), clock), llm, gate, 8)
        assert Amount.from_usage(await store.usage.usage_on("2026-01-01")).tokens > 3_000 + 1_000

    @pytest.mark.parametrize(("usd", "begun"), [(0.5, 2), (None, 3)])
    async def test_a_known_price_is_reserved(self, store, clock, usd, begun):
        """Of pictures at half a dollar two begin with a dollar; where nobody knows the price each sees nothing spent."""
        spending = Metering(store, store.usage, limits(None, usd=1.0), clock)
        meters = [spending.meter(ROOM, Purpose.IMAGE, owner=True) for _ in range(3)]
        for meter in meters[:begun]:
            await meter.enter(1_000, usd)
        for meter in meters[begun:]:
            with pytest.raises(BudgetSpent):
                await meter.enter(1_000, usd)
        for meter in meters:
            await meter.end()
        assert (await spending.amount_today()).usd == 0.0

    async def test_a_day_is_that_of_the_zone(self, tmp_path, clock):
        """At 23:00 UTC it is tomorrow in Berlin: spent today in the one is not spent today in the other."""
        clock.advance(23.5 * 3600)
        berlin = ZoneInfo("Europe/Berlin")
        async with await SqliteQueue.open(tmp_path / "b.db", clock=clock, zone=berlin) as store:
            spending = Metering(store, store.usage, limits(5_000, zone="Europe/Berlin"), clock)
            await say(Costly(), spending)
            assert (await store.usage.usage_on("2026-01-02")).calls == 1
            assert (await spending.amount_today()).tokens == 1_000

    async def test_a_new_day_and_a_clock_that_jumps(self, store, clock):
        """Each decision is about the day that it is: the next day is empty, and coming back finds what was."""
        spending = Metering(store, store.usage, limits(1_000), clock)
        await say(Costly(), spending)
        with pytest.raises(BudgetSpent) as refused:
            await say(Costly(), spending)
        assert refused.value.fields["until"] == EPOCH + timedelta(days=1)
        clock.advance(86_400)
        await say(Costly(), spending)
        clock.advance(-86_400)
        with pytest.raises(BudgetSpent):
            await say(Costly(), spending)

    async def test_a_restart_forgets_nothing(self, store, clock):
        """Another instance on the same store refuses what the first had used up."""
        await say(Costly(), Metering(store, store.usage, limits(1_000), clock))
        with pytest.raises(BudgetSpent):
            await say(Costly(), Metering(store, store.usage, limits(1_000), clock))

    @pytest.mark.parametrize(("after_text", "calls"), [(False, 0), (True, 1)])
    async def test_what_a_failed_call_has_cost(self, after_text, calls, store, clock):
        """Nothing if nothing came of it; an estimate if it broke in the middle."""
        with pytest.raises(ModelUnavailable):
            await say(Broken(after_text=after_text), Metering(store, store.usage, limits(), clock))
        spent = await store.usage.usage_on("2026-01-01")
        assert spent.calls == calls
        assert (spent.completion_tokens > 50) is after_text

    async def test_an_answer_that_is_cut_off_or_tells_nothing_is_estimated(self, store, clock):
        """Left early, cancelled before the first word, or without a usage: the tokens are guessed."""
        spending = Metering(store, store.usage, limits(), clock)
        await say(Costly(told=False), spending)
        with anyio.move_on_after(0.02):
            await say(Costly(gate=anyio.Event()), spending)
        spent = await store.usage.usage_on("2026-01-01")
        assert spent.calls == 2
        assert 0 < spent.completion_tokens < spent.prompt_tokens

    @pytest.mark.parametrize("begun", [False, True])
    async def test_a_run_in_hand_comes_to_its_end_with_one_more_call(self, begun, store, clock):
        """Over the ceiling: one more call for a run that has something, none for one that has not."""
        spending = Metering(store, store.usage, limits(1_000), clock)
        await say(Costly(), spending)
        meter = spending.meter(ROOM, Purpose.CHAT, owner=True)
        llm = Costly()
        assert bool(await meter.final_call_reason(10, begun=begun)) is begun
        for expected in (begun, False):
            if expected:
                assert [chunk async for chunk in await meter.wrap(llm).chat(ASKED, [])]
            else:
                with pytest.raises(BudgetSpent):
                    _ = [chunk async for chunk in await meter.wrap(llm).chat(ASKED, [])]
        assert llm.calls == begun

    @pytest.mark.parametrize("shares", [{}, {"others": 0.9}], ids=["default", "control"])
    async def test_a_guest_who_writes_without_end_leaves_the_owner_the_larger_part(
        self, shares, store, clock
    ):
        """Messages, jobs and pictures of a guest end at the guests' share; check-ins and jobs of the owner go on."""
        settings = BudgetSettings.model_validate({"tokens_per_day": 100_000, "shares": shares})
        spending, llm = Metering(store, store.usage, settings.limits("UTC"), clock), Costly(900)
        asked = [Purpose.CHAT, Purpose.BACKGROUND, Purpose.JOB, Purpose.IMAGE]
        for number in range(200):
            meter = spending.meter(ROOM, asked[number % len(asked)], owner=False)
            with suppress(BudgetSpent):
                _ = [chunk async for chunk in await meter.wrap(llm).chat(ASKED, [])]
            await meter.end()
        refused = [
            purpose
            for purpose in (Purpose.CHAT, Purpose.HEARTBEAT, Purpose.BACKGROUND)
            if await spending.refusal(purpose, owner=True)
        ]
        spent = (await spending.amount_today()).tokens
        if shares:
            assert (spent, refused) == (90_000, [Purpose.HEARTBEAT, Purpose.BACKGROUND])
        else:
            assert (spent, refused) == (50_000, [])

    async def test_the_order_of_sacrifice_over_a_day(self, store, clock):
        """As the day goes on they stop in the order of the design, and the owner last."""
        spending = Metering(store, store.usage, limits(10_000), clock)
        stopped: list[str] = []
        for _ in range(10):
            for name, purpose, owner in (
                ("owner", Purpose.CHAT, True),
                ("others", Purpose.CHAT, False),
                ("consolidation", Purpose.CONSOLIDATION, True),
                ("heartbeat", Purpose.HEARTBEAT, False),
            ):
                if name not in stopped and await spending.refusal(purpose, owner=owner):
                    stopped.append(name)
            await store.usage.add(ROOM, Usage(prompt_tokens=1_000, calls=1), Purpose.CHAT)
        assert stopped == ["others", "heartbeat", "consolidation"]
        assert await spending.refusal(Purpose.CHAT, owner=True)


class AtTheStart:
    """An allowance that was asked once, before the run, and never again."""

    async def final_call_reason(self, tokens: int, *, begun: bool) -> str:
        return ""


class TestWithinARun:
    """A run that would use a tool ten times, with budget for five calls."""

    async def spent_by(self, spending: Metering, store: SqliteQueue, *, each_call: bool) -> tuple[int, str]:
        answers = [
            [call("look", n=n), Usage(prompt_tokens=900, completion_tokens=100, calls=1)] for n in range(10)
        ]
        answers.append(["done", Usage(prompt_tokens=900, completion_tokens=100, calls=1)])
        journey = Journey(*answers, tools=[FakeTool("look", n="integer")])
        meter = spending.meter(ROOM, Purpose.CHAT, owner=True)
        assert await spending.refusal(Purpose.CHAT, owner=True) is None
        said = "nothing"
        with suppress(TurnLimitReached):
            if each_call:
                said = (await journey.run(llm=meter.wrap(journey.model), allowance=meter)).reply
            else:
                result = await journey.run(allowance=AtTheStart())
                said, meter.unrecorded = result.reply, [result.usage]
        await meter.end()
        assert said
        spent = await store.usage.usage_on("2026-01-01")
        return spent.calls, "no tools" if journey.model.requests[-1][-1].ends_tools else "tools"

    async def test_the_budget_is_looked_at_before_each_call(self, store, clock):
        """The run ends at its ceiling, with a last call that may use no tools."""
        calls, offered = await self.spent_by(
            Metering(store, store.usage, limits(5_000), clock), store, each_call=True
        )
        assert calls <= 6
        assert offered == "no tools"

    async def test_that_check_notices_a_budget_that_is_looked_at_once(self, store, clock):
        """Control: asked only when the run begins, the run spends twice what a day may cost."""
        calls, _ = await self.spent_by(
            Metering(store, store.usage, limits(5_000), clock), store, each_call=False
        )
        assert calls > 6


class TestWaiting:
    async def test_what_needs_no_model_overtakes_what_waits(self, store, clock):
        """A command comes through while the head waits; a question does not, and nothing counts as a failure."""
        await accept(store, "$1")
        turn = await claim(store)
        await store.turns.postpone(turn, "the budget is spent", delay_s=1800)
        await accept(store, "$2")
        assert await store.turns.claim(ROOM) is None
        assert await store.turns.due_in(ROOM) == 1800
        await accept(store, "$3", alone=True)
        assert await store.turns.due_in(ROOM) == 0
        assert (await store.turns.open_sessions()) == [(ROOM, 0.0)]
        command = await claim(store)
        assert command.head.message.native_id == "$3"
        await store.turns.complete(command, Completion())
        assert await store.turns.claim(ROOM) is None
        clock.advance(1800)
        again = await claim(store)
        assert (again.id, again.attempts, again.deferrals, again.first_deferred_s) == (turn.id, 1, 0, 0.0)

    @pytest.mark.parametrize(("late", "told"), [(False, 1), (True, 0)])
    async def test_a_day_that_ends_while_a_turn_is_refused(self, late, told, store, clock):
        """Refused a moment before midnight and put off a moment after it, it is not told and waits no day more."""
        spending = Metering(store, store.usage, limits(1_000), clock)
        deferral = Deferral(commit=AtOnce(store), limits=spending.limits, clock=clock)
        await say(Costly(), spending)
        await accept(store, "$1")
        turn = await claim(store)
        refusal = await spending.refusal(Purpose.CHAT, owner=False)
        refused = spending.meter(ROOM, Purpose.CHAT, owner=False).refuse(refusal)
        if late:
            clock.advance(86_400)
        await deferral.defer_to_budget(turn, refused, [out("it waits")])
        assert len(await store.outbox.rows()) == told
        assert await store.turns.due_in(ROOM) == (0 if late else RECHECK_S)

    async def test_consolidating_is_put_off_and_not_failed(self, store, clock, monkeypatch):
        """Refused, it has not failed, it waits until the budget opens, and then it is done."""
        spending = Metering(store, store.usage, limits(1_000), clock)
        await say(Costly(), spending)
        paid = MeteredConsolidation(Consolidates(spending), spending, clock)
        before = counted()
        refused = await paid.consolidate_if_due(str(ROOM))
        assert counted() == {**before, "deferred": before["deferred"] + 1}
        assert refused.segments == 0
        assert 0 < refused.wait_s <= 1800
        monkeypatch.setattr("agent_core.memory.consolidation.consolidation_queue._PAUSE_S", 0.0)
        consolidator = ConsolidationQueue(paid, clock)
        consolidator.mark_due(str(ROOM))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consolidator.run)
            await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
        state = consolidator.state()
        assert (state["failing_sessions"], state["postponed_sessions"], state["failures"]) == (0, 1, 0)
        clock.advance(86_400)
        before = counted()
        assert (await paid.consolidate_if_due(str(ROOM))).segments == 1
        assert counted() == {**before, "done": before["done"] + 1}
        (row,) = [row for row in await store.usage.rows() if row.purpose == "consolidation"]
        assert (row.session, row.usage.calls) == (str(ROOM), 1)

    @pytest.mark.parametrize(
        ("scope", "done"), [("owner", 1), ("person:@bob:hs.test", 0), ("room:matrix/!x", 0), (None, 0)]
    )
    async def test_the_owners_reserve_is_kept_from_summaries_of_others(self, scope, done, store, clock):
        """From their share of the day on they are put off; the control is the owner's, which has more."""
        amount = BudgetLimits(tokens=10**9, shares={BudgetTier.OTHERS: 1e-9, BudgetTier.CONSOLIDATION: 1.0})
        spending = Metering(store, store.usage, amount, clock)
        await say(Costly(), spending)
        paid = MeteredConsolidation(Consolidates(spending, scope), spending, clock)
        assert (await paid.consolidate_if_due(str(ROOM))).segments == done


class AtOnce:
    """A store that takes everything."""

    def __init__(self, store):
        self.store = store

    async def retry_until_stored(self, write):
        return await write()


class Consolidates:
    """Consolidates by one call, as `Consolidation` does: a failure is a text."""

    def __init__(self, spending: Metering, scope: str | None = "owner") -> None:
        self._llm = spending.with_current_meter(Costly())
        self._scope = scope

    async def last_scope(self, session_id: str) -> str | None:
        return self._scope

    async def consolidate_if_due(self, session_id: str) -> ConsolidationResult:
        try:
            async for _ in await self._llm.chat(ASKED, []):
                pass
        except BudgetSpent as error:
            return ConsolidationResult(failure=str(error))
        return ConsolidationResult(1)
