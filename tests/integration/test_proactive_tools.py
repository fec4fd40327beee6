"""Which tools check-ins and jobs have, and whose memory and words they reach: those of whom they are for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent_core.memory.scopes import OWNER
from agent_core.messages import Audience, SessionKey
from agent_core.models import ToolCall
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.model import JobKind
from tests.clock import ManualClock
from tests.doubles.agent import StreamingModel
from tests.proactive_world import ANN, BOB, house

START = datetime(2026, 5, 1, 8, tzinfo=UTC)
SEARCH, WRITE = "look for harbour", "note this"


class Obedient(StreamingModel):
    """Searches and writes as it is told, and says what came of it."""

    def __init__(self) -> None:
        self.tools: dict[str, set[str]] = {}

    async def answer(self, messages, tools):
        last = messages[-1]
        for word, call in (
            (SEARCH, ToolCall(id="s", name="search_history", arguments={"query": "harbour"})),
            (WRITE, ToolCall(id="w", name="memory_write", arguments={"content": "- noted"})),
        ):
            if last.role == "user" and word in last.content:
                self.tools[last.content] = {tool.name for tool in tools}
                yield call
                return
        yield f"I have found: {last.content}" if last.role == "tool" else "OK"


async def _filed(home) -> bool:
    """Whether a search of the owner finds what was said."""
    return "4711" in await home.asked(ANN, SEARCH)


@pytest.mark.parametrize(
    ("place", "person", "finds"),
    [(f"dm-{ANN}", ANN, True), (f"dm-{BOB}", BOB, False), ("room", ANN, False)],
    ids=["owner", "guest", "owner in a room"],
)
async def test_a_job_searches_and_writes_for_whom_it_is(tmp_path, place, person, finds):
    """What the owner said alone is found in the owner's own conversation; each writes the document of its place."""
    clock, model = ManualClock(START), Obedient()
    async with house(
        tmp_path,
        heartbeat={"enabled": False},
        schedule={"jitter_seconds": 0.0},
        checklist=None,
        clock=clock,
        groups=["room"],
        model=model,
    ) as home:
        await home.asked(ANN, "the harbour code is 4711")
        await home.until(lambda: _filed(home))
        await home.asked(person, "hello", conversation=place)
        said = len(home.chat.seen(place))
        audience = Audience.GROUP if place == "room" else Audience.DIRECT
        where = JobPlace(SessionKey("matrix", place), "bot", person, audience)
        for minute, text in ((0, SEARCH), (1, WRITE)):
            wish = TriggerRequest(at=f"09:{minute:02}")
            await home.built.proactive.jobs.add(where, wish, text=text, kind=JobKind.ASK)
        for minutes in (60, 1):
            clock.advance(timedelta(minutes=minutes).total_seconds())
            await home.built.proactive.scheduler.fire_due()
            said += 1
            await home.chat.answers(said, conversation=place)
        owners = (await home.built.memory.load_global_memory(OWNER)).text
    seen = home.chat.seen(place)
    assert ("4711" in seen[-2].text) is finds
    assert (owners == "- noted") is finds
    offered = [tools for text, tools in model.tools.items() if "scheduled job" in text]
    assert [{"memory_write", "search_history"} <= tools for tools in offered] == [True] * 2


async def test_a_check_in_searches_and_writes_as_the_owner_and_schedules_nothing(tmp_path):
    """It has the owner's memory and words, and no tool to make jobs."""
    model = Obedient()
    text = f"- [ ] {SEARCH}\n"
    async with house(tmp_path, heartbeat={"interval_minutes": 600.0}, checklist=text, model=model) as home:
        await home.asked(ANN, "the harbour code is 4711")
        await home.until(lambda: _filed(home))
        await home.built.proactive.heartbeat.now()
        await home.until(home.alerts)
        home.checklist.write_text(f"- [ ] {WRITE}\n")
        await home.built.proactive.heartbeat.now()

        async def noted() -> bool:
            return (await home.built.memory.load_global_memory(OWNER)).text == "- noted"

        await home.until(noted)
    assert "4711" in home.alerts()[0].text
    offered = [tools for text, tools in model.tools.items() if "regular check-in" in text]
    assert [{"memory_write", "search_history"} <= tools for tools in offered] == [True] * 2
    assert not any("schedule" in tools for tools in offered)
    assert any("schedule" in tools for tools in model.tools.values()), "the control: a conversation has it"
