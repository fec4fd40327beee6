"""A turn that is killed and started again goes on where it was."""

from __future__ import annotations

import pytest

from agent_core.agent import agent_run
from agent_core.errors import ModelUnavailable
from agent_core.models import Message, ToolResult, Usage
from tests.doubles.agent import FakeJournal, FakeTool, Journey, call, session

pytestmark = pytest.mark.virtual_time
USAGE = Usage(prompt_tokens=10, completion_tokens=1, calls=1)


def thinking(messages):
    """A model that takes one step at a time: look, then write, then answer; it goes by what it sees."""
    results = [message.content for message in messages if message.role == "tool"]
    plan = [[call("look", "1"), USAGE], ["Now I write. ", call("write", "2"), call("look", "3", n=2), USAGE]]
    return plan[min(len(results), 1)] if len(results) < 2 else [f"Done: {'; '.join(results)}", USAGE]


async def turn(journal, tools, **more):
    """One start of the turn, with a new agent as after a crash."""
    journey = Journey(*[thinking] * 9, tools=tools)
    result = await journey.run(journal=journal, **more)
    return result, journey


def new_tools():
    return [FakeTool("look", "seen"), FakeTool("write", "written")]


async def test_every_moment_of_death():
    """Killed at any write of the journal, the next start ends with the same answer, and no tool runs twice."""
    tools = new_tools()
    whole, _ = await turn(journal := FakeJournal(), tools)
    assert [len(tool.runs) for tool in tools] == [2, 1]
    assert journal.writes == 9

    for moment in range(1, journal.writes + 1):
        tools, journal = new_tools(), FakeJournal()
        journal.crash_at = moment
        with pytest.raises(SystemExit):
            await turn(journal, tools)
        result, journey = await turn(journal, tools)

        assert len(tools[0].runs) <= 2
        assert len(tools[1].runs) <= 1
        assert journey.sink.sent == [result.reply]
        assert result.usage == whole.usage
        assert result.history[-1].id == whole.history[-1].id
        lost = "outcome unknown" in result.reply
        assert lost or result.reply == whole.reply


async def test_negative_control():
    """A journal that forgets fails that check: the tool runs a second time."""
    tools = new_tools()
    journal = FakeJournal()
    journal.crash_at = 9
    with pytest.raises(SystemExit):
        await turn(journal, tools)
    await turn(FakeJournal(), tools)

    assert len(tools[1].runs) == 2


async def test_recorded_steps_ask_nobody():
    """A turn whose steps are all recorded needs neither model nor tools, and costs what it cost."""
    tools, journal = new_tools(), FakeJournal()
    first, _ = await turn(journal, tools)
    again, journey = await turn(journal, new_tools())

    assert again.reply == first.reply
    assert journey.model.requests == []
    assert again.usage == first.usage == USAGE + USAGE + USAGE
    assert (again.steps, again.tool_runs) == (first.steps, first.tool_runs)


async def test_a_tool_that_had_only_started():
    """Nobody knows what it did: the model is told so, and it is not run again."""
    tools, journal = new_tools(), FakeJournal()
    journal.crash_at = 6  # the result of "write"
    with pytest.raises(SystemExit):
        await turn(journal, tools)
    result, _ = await turn(journal, tools)

    assert len(tools[1].runs) == 1
    assert "Error: outcome unknown" in result.reply


async def test_it_is_recorded_before_the_tool_starts():
    """When a tool runs, the journal knows that it has started and what the model wanted."""
    journal = FakeJournal()
    seen = []

    def look(**_):
        seen.append(sorted(str(type(value).__name__) for value in journal.steps.values()))
        return ToolResult(content="x")

    journey = Journey(call("look"), "ok", tools=[FakeTool("look", look)])
    await journey.run(journal=journal)

    assert seen == [["str", "tuple"]]


async def test_memory_that_changes_does_not_break_the_chain():
    """
    The prompt of the second start shows another memory, written by this very turn perhaps. The steps are
    recognised all the same, so nothing is done twice.
    """
    tools, journal = new_tools(), FakeJournal()
    journal.crash_at = 9
    with pytest.raises(SystemExit):
        await turn(journal, tools)
    journey = Journey(*[thinking] * 9, tools=tools)

    async def other_prompt(*args, **more):
        return [Message(role="system", content="another memory"), Message(role="user", content="question")]

    journey.memory.build_messages = other_prompt
    await journey.run(journal=journal)

    assert len(tools[1].runs) == 1


async def test_another_question_uses_nothing_of_it():
    """Steps belong to a session, a turn and a question; any other finds none."""
    tools, journal = new_tools(), FakeJournal()
    await turn(journal, tools)
    for more in ({"session": session("t2")}, {"session": session("t1", "elsewhere")}, {"text": "other"}):
        journey = Journey(*[thinking] * 9, tools=new_tools())
        await journey.run(journal=journal, **more)
        assert len(journey.model.requests) == 3


async def test_a_turn_that_began_when_its_digests_held_the_time(monkeypatch):
    """It goes on where it was; so does one of today whose time is another one, because the zone was changed."""
    asked = "[Tue 2026-12-01 {} CET, direct conversation]\nlook and write"
    for begun, later, is_old, requests in (
        ("09:30", "09:30", True, 0),
        ("09:30", "03:30", False, 0),
        ("09:30", "03:30", True, 3),  # the control
    ):
        tools, journal = new_tools(), FakeJournal()
        with monkeypatch.context() as then:
            if is_old:
                then.setattr(agent_run, "without_time", lambda question: question)
            await turn(journal, tools, text=asked.format(begun))
        _, journey = await turn(journal, tools, text=asked.format(later))
        assert len(journey.model.requests) == requests


async def test_a_model_that_is_away_in_the_middle():
    """After an outage the turn goes on after the last tool that has run."""
    tools, journal = new_tools(), FakeJournal()
    journey = Journey(thinking, ModelUnavailable("away"), tools=tools)
    with pytest.raises(ModelUnavailable):
        await journey.run(journal=journal)
    result, later = await turn(journal, tools)

    assert len(later.model.requests) == 2
    assert len(tools[0].runs) == 2
    assert result.reply.startswith("Done")


async def test_a_lost_claim_goes_up():
    """What the journal raises is not taken for a failure of the tool."""

    class Fenced(FakeJournal):
        async def record_tool_start(self, number, digest, call, **about):
            raise LookupError("somebody else has this turn")

    tool = FakeTool("look")
    journey = Journey(call("look"), tools=[tool])
    with pytest.raises(LookupError):
        await journey.run(journal=Fenced())

    assert tool.runs == []


async def test_the_same_for_every_loop():
    """Digests do not depend on the process: two agents make the same ones for the same turn."""
    journals = [FakeJournal(), FakeJournal()]
    for journal in journals:
        await turn(journal, new_tools())

    assert list(journals[0].steps) == list(journals[1].steps)


async def test_a_tool_that_is_gone_after_the_restart():
    """What it did counts, and what it had begun has an unknown outcome; what it never began is refused."""
    for moment, told in [(None, "written"), (6, "outcome unknown"), (5, "no tool 'write'")]:
        tools, journal = new_tools(), FakeJournal()
        journal.crash_at = moment or 9
        with pytest.raises(SystemExit):
            await turn(journal, tools)
        result, _ = await turn(journal, tools[:1])
        assert told in result.reply
        assert len(tools[1].runs) == (moment != 5)
