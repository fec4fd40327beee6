"""The daily budget in a whole gateway: who is refused when, what is said, and that nothing is lost by it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import SessionKey
from agent_core.models import Purpose, ToolCall, Usage
from gateway.store.states import InboxState
from tests.clock import ManualClock
from tests.doubles.agent import StreamingModel
from tests.integration.command_world import ANN, BOB, CID
from tests.integration.gateway_world import Scenario, world
from tests.proactive_world import ANN as HOUSE_ANN
from tests.proactive_world import house

CALL = 1_000
HOUR = 3600.0


class Counting(StreamingModel):
    """Each call costs the same; a question with "tools" makes it use tools as long as it is given any."""

    def __init__(self) -> None:
        self.calls = 0
        self.questions: list[str] = []

    async def answer(self, messages, tools):
        self.calls += 1
        asked = next(
            each.content
            for each in reversed(messages)
            if each.role == "user" and "[No tool" not in each.content
        )
        self.questions.append(asked.splitlines()[-1])
        if "tools" in asked and tools and not messages[-1].ends_tools:
            yield ToolCall(id=f"c{self.calls}", name="search_history", arguments={"query": f"q{self.calls}"})
        else:
            yield f"answer to {asked.splitlines()[-1]}"
        yield Usage(prompt_tokens=CALL - 100, completion_tokens=100, calls=1, model="m", cost_usd=0.01)


def settings(**budget: Any) -> dict[str, Any]:
    return {
        "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
        "llm": {"budget": {"timezone": "Europe/Berlin", "shares": {"others": 0.9}, **budget}},
    }


def told(one: Scenario, person: str) -> Counter[str]:
    """What kinds of messages somebody has got; that the budget is spent is an alert or a notice, whichever is first."""
    kinds = Counter(each.kind.value for each in one.server.seen(f"dm-{person}"))
    kinds["notice"] += kinds.pop("alert", 0)
    return +kinds


async def until(condition: Any, within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not await condition():
            await anyio.sleep(0.02)


async def settled_or_waiting(one: Scenario, waiting: int) -> None:
    """Nothing runs, and so many messages wait for the budget."""

    async def quiet() -> bool:
        found = await one.inbox()
        return not found.get("running") and found.get("ready", 0) == waiting

    await until(quiet)


async def exactly(one: Scenario, person: str, kinds: dict[str, int]) -> None:
    """So many messages of each kind come, and no other."""
    await until(lambda: _has(one, person, **kinds))
    await anyio.sleep(0.1)
    assert told(one, person) == kinds


class TestOverDays:
    async def test_people_wait_the_owner_goes_on_and_the_next_day_answers_all(self, tmp_path: Path):
        """
        Day one: others are refused at 90 % with one notice each however often they write, commands work, the
        owner goes on to the end and is told once at 80 % and once at the end. After midnight in Berlin every
        message that waited has its one answer. Three days, each within its budget.
        """
        clock, model = ManualClock(), Counting()
        async with world(
            tmp_path,
            name="matrix",
            clock=clock,
            models={"demo": model},
            settings=settings(tokens_per_day=10_000),
        ) as one:
            await one.asked("hello", person=ANN)  # where the owner is reached
            for number in range(8):
                await one.asked(f"question {number}", person=BOB)
            for number in range(3):
                one.server.say(BOB, f"late {number}")
            await settled_or_waiting(one, 3)
            await exactly(one, BOB, {"reply": 8, "notice": 1})
            notice = one.server.seen(f"dm-{BOB}")[-1].text
            assert "on Friday at 00:00 (Europe/Berlin)" in notice
            status = await one.asked("!status", person=BOB)
            assert status.text.startswith("I have been running")
            one.server.say(CID, "may I?")
            await settled_or_waiting(one, 4)
            await exactly(one, CID, {"notice": 1})
            await exactly(one, ANN, {"reply": 1, "notice": 1})
            assert "mostly used" in one.server.seen(f"dm-{ANN}")[-1].text

            await one.asked("mine", person=ANN)
            await until(lambda: _has(one, ANN, notice=2))
            one.server.say(ANN, "and more")
            one.server.say(ANN, "and more still")
            await settled_or_waiting(one, 6)
            await exactly(one, ANN, {"reply": 2, "notice": 2})
            assert "is spent" in one.server.seen(f"dm-{ANN}")[-1].text
            assert model.calls == 10

            clock.advance(23 * HOUR - 60)  # one minute to midnight in Berlin
            await _look_again(one)
            await settled_or_waiting(one, 6)
            assert model.calls == 10
            clock.advance(120)
            await _look_again(one)
            await until(lambda: _has(one, BOB, reply=8 + 3 + 1))
            await settled_or_waiting(one, 0)
            await exactly(one, BOB, {"reply": 12, "notice": 1})
            await exactly(one, CID, {"reply": 1, "notice": 1})
            await exactly(one, ANN, {"reply": 4, "notice": 2})
            for number in range(3):
                assert [each.text for each in one.server.seen(f"dm-{BOB}")].count(
                    f"answer to late {number}"
                ) == 1

            clock.advance(24 * HOUR)
            for number in range(12):
                one.server.say(BOB, f"again {number}")
            await until(lambda: _has(one, BOB, notice=2))
            await settled_or_waiting(one, 3)
            days = {row.name: row.usage.calls for row in await _by_day(one)}
            assert days == {"2026-01-01": 10, "2026-01-02": 6, "2026-01-03": 9}

    async def test_a_restart_says_nothing_twice_and_forgets_nothing(self, tmp_path: Path):
        """Another process on the same home refuses at once, and the notices of the day are not repeated."""
        clock, model = ManualClock(), Counting()
        common = {"name": "matrix", "clock": clock, "models": {"demo": model}}
        async with world(tmp_path, settings=settings(tokens_per_day=2_000), **common) as one:
            await one.asked("hello", person=ANN)
            await one.asked("hello", person=ANN)
            await until(lambda: _has(one, ANN, notice=1))
            one.server.say(ANN, "more")
            await settled_or_waiting(one, 1)
            server = one.server
        async with world(tmp_path, server=server, settings=settings(tokens_per_day=2_000), **common) as one:
            await _look_again(one)
            one.server.say(ANN, "and more")
            await settled_or_waiting(one, 2)
            await anyio.sleep(0.2)
            await exactly(one, ANN, {"reply": 2, "notice": 1})
            assert model.calls == 2
        async with world(tmp_path, server=server, settings=settings(tokens_per_day=9_000), **common) as one:
            await until(lambda: _has(one, ANN, reply=4))  # a limit that was raised is noticed at the start


class TestWithinATurn:
    @pytest.mark.parametrize("turns", [1, 3])
    async def test_a_long_turn_stops_with_what_it_has(self, turns: int, tmp_path: Path):
        """Turns that would use tools without end are answered, and go over by less than a call each."""
        model = Counting()
        async with world(
            tmp_path,
            name="matrix",
            clock=ManualClock(),
            models={"demo": model},
            settings=settings(tokens_per_day=6_000),
        ) as one:
            people = [ANN, BOB, CID][:turns]
            for person in people:
                one.server.say(person, "use tools")
            for person in people:
                await until(lambda person=person: _has(one, person, reply=1))
                (reply,) = [
                    each.text for each in one.server.seen(f"dm-{person}") if each.kind.value == "reply"
                ]
                assert "my budget for today is used up" in reply
                assert "A new one begins on Friday at 00:00" in reply
            total = sum(row.usage.prompt_tokens + row.usage.completion_tokens for row in await _by_day(one))
            assert total >= 0.9 * 6_000 - CALL
            assert total <= 6_000 + turns * CALL
            await until(lambda: _settled(one, turns))

    async def test_money_is_a_limit_too(self, tmp_path: Path):
        """A limit in dollars refuses where the tokens have none."""
        model = Counting()
        async with world(
            tmp_path,
            name="matrix",
            clock=ManualClock(),
            models={"demo": model},
            settings=settings(usd_per_day=0.02),
        ) as one:
            for _ in range(2):
                assert "used up" not in (await one.asked("hello", person=ANN)).text  # it had its tools
            one.server.say(ANN, "more")
            await settled_or_waiting(one, 1)
            assert model.calls == 2


async def _has(one: Scenario, person: str, **kinds: int) -> bool:
    found = told(one, person)
    return all(found[kind] == count for kind, count in kinds.items())


async def _settled(one: Scenario, count: int) -> bool:
    return await one.inbox() == {"settled": count}


async def _by_day(one: Scenario) -> list[Any]:
    return await one.built.store.usage.usage_since(since="2026-01-01", by="day")


async def _look_again(one: Scenario) -> None:
    """What the dispatcher would do by itself after its time: the clock of the test has jumped."""
    for row in await one.built.store.inbox.rows(states=[InboxState.READY], limit=100):
        one.built.dispatcher.wake(row.message.session)


class TestUnasked:
    async def test_check_ins_are_skipped_and_say_why(self, tmp_path: Path):
        """From 70 % on a check-in is not run: no call, a line in the ledger with the reason, and people go on."""
        async with house(tmp_path, "alert", budget={"tokens_per_day": 10_000, "timezone": "UTC"}) as there:
            await there.built.store.usage.add(
                SessionKey("matrix", "x"), Usage(prompt_tokens=7_000, calls=1), Purpose.CHAT
            )
            await there.asked(HOUSE_ANN, "hello")

            async def with_somewhere_to_go() -> list[tuple[str, str]]:
                """Without the check-ins that came due before Ann had ever written: they had no conversation."""
                return [row for row in await there.ledger() if "no direct conversation" not in row[1]]

            await there.until(with_somewhere_to_go)
            outcome, reason = (await with_somewhere_to_go())[-1]
            assert outcome == "skipped"
            assert "the budget of the day is spent" in reason
            assert "70% of it" in reason
            assert there.model.ticks == 0
