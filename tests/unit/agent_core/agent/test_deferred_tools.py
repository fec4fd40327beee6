"""Deferred tools in a turn: when they are in the request, what a restarted turn and the next turn know."""

from __future__ import annotations

import pytest

from agent_core.models import Message
from agent_core.storage.history_lines import as_object, from_object, to_line
from tests.doubles.agent import FakeJournal, FakeTool, Journey, call

pytestmark = pytest.mark.virtual_time
FIND = call("find_tools", "f", query="far away thing")


class Deferred(FakeTool):
    deferred = True


def tools() -> list[FakeTool]:
    return [FakeTool("look"), Deferred("far_away", "was there", n="integer"), Deferred("other", "other")]


async def test_it_is_in_the_request_once_it_was_found():
    """At the end of the list; the ones before keep their places."""
    kit = tools()
    journey = Journey(FIND, call("look"), call("far_away", n=1), "done", tools=kit)
    result = await journey.run()

    first, second, third, _ = journey.model.tools
    assert first == ["look", "find_tools"]
    assert second == third == [*first, "far_away"]
    assert kit[1].runs == [{"n": 1}]
    assert result.history[-1].found == ("far_away",)


async def test_what_was_not_found_is_not_run():
    """A direct call gets the schema and loads the tool; the same call again is made."""
    kit = tools()
    journey = Journey(call("far_away", n=1), call("far_away", n=1), "done", tools=kit)
    await journey.run()

    assert "was not loaded, so nothing was done" in journey.results(1)[0]
    assert '"n":{"type":"integer"}' in journey.results(1)[0]
    assert journey.model.tools[1] == ["look", "find_tools", "far_away"]
    assert kit[1].runs == [{"n": 1}]


async def test_without_deferred_tools_there_is_nothing_to_find():
    """The finder is not in the request, and a call of it is that of an unknown tool, which names no deferred one."""
    journey = Journey(FIND, "done", tools=tools()[:1])
    await journey.run()
    assert journey.model.tools[0] == ["look"]
    assert "no tool 'find_tools'" in journey.results()[0]

    journey = Journey(call("nothing"), "done", tools=tools())
    await journey.run()
    assert "The tools are: look." in journey.results()[0]


async def test_the_next_turn_knows_it_from_the_history():
    """The names are on the answer's line, over the disk, too; the finder need not be asked again."""
    journey = Journey(FIND, "done", tools=tools())
    line = (await journey.run()).history[-1]
    read = from_object(as_object(to_line(line, 1)) or {})
    assert read is not None
    assert read.found == ("far_away",)

    kit = tools()
    journey = Journey(call("far_away", n=2), "done", tools=kit)

    async def prompt(*_, **__):
        return [Message(role="system", content="s"), read, Message(role="user", content="question")]

    journey.memory.build_messages = prompt
    result = await journey.run()
    assert journey.model.tools[0] == ["look", "find_tools", "far_away"]
    assert kit[1].runs == [{"n": 2}]
    assert result.history[-1].found == ("far_away",)


async def test_a_tool_that_is_not_allowed_any_more_is_not_offered():
    """That its name is in the history gives nobody the tool: neither in the request nor for a call."""
    kit = tools()
    journey = Journey(call("far_away", n=2), "done", tools=[kit[0], kit[2]])

    async def prompt(*_, **__):
        told = Message(role="assistant", content="a", found=("far_away",))
        return [told, Message(role="user", content="question")]

    journey.memory.build_messages = prompt
    await journey.run()
    assert journey.model.tools[0] == ["look", "find_tools"]
    assert "no tool 'far_away'" in journey.results()[0]
    assert kit[1].runs == []


def steps(messages):
    """Calls a tool that is not loaded, looks for another, calls both; goes by what it sees."""
    done = sum(message.role == "tool" for message in messages)
    plan = [call("other", "1"), FIND, call("far_away", "3", n=3), call("other", "4")]
    return [plan[done]] if done < len(plan) else ["done"]


async def test_every_moment_of_death():
    """Killed at any write of the journal: the next start has the same list, and each tool runs once at most."""
    kit = tools()
    journey = Journey(*[steps] * 9, tools=kit)
    await journey.run(journal=(journal := FakeJournal()))
    whole = journey.model.tools
    assert whole[-1] == ["look", "find_tools", "other", "far_away"]
    assert [len(tool.runs) for tool in kit] == [0, 1, 1]

    for moment in range(1, journal.writes + 1):
        kit, journal = tools(), FakeJournal()
        journal.crash_at = moment
        with pytest.raises(SystemExit):
            await Journey(*[steps] * 9, tools=kit).run(journal=journal)
        journey = Journey(*[steps] * 9, tools=kit)
        result = await journey.run(journal=journal)
        assert max(len(tool.runs) for tool in kit) <= 1
        assert journey.model.tools == whole[len(whole) - len(journey.model.tools) :]
        assert result.history[-1].found == ("other", "far_away")
        lost = any("outcome unknown" in told for told in journey.results())
        assert lost or [len(tool.runs) for tool in kit] == [0, 1, 1]


async def test_a_history_that_changed_meanwhile_repeats_nothing():
    """A tool that ran because the history named it is not run again by a start whose history does not."""
    kit, journal = tools(), FakeJournal()

    async def prompt(*_, **__):
        told = Message(role="assistant", content="a", found=("far_away",))
        return [told, Message(role="user", content="question")]

    def wish(messages):
        return ["done"] if messages[-1].role == "tool" else [call("far_away", n=1)]

    journey = Journey(*[wish] * 5, tools=kit)
    journey.memory.build_messages = prompt
    await journey.run(journal=journal)
    journey = Journey(*[wish] * 5, tools=kit)
    await journey.run(journal=journal)
    assert kit[1].runs == [{"n": 1}]
    assert journey.model.requests == []


async def test_a_call_that_waited_is_made_although_its_tool_left_the_prompt():
    """A summary, or `!new`, between a question and its answer: the approved call is not looked up anew."""
    kit, journal = tools(), FakeJournal()

    async def prompt(*_, **__):
        told = Message(role="assistant", content="a", found=("far_away",))
        return [told, Message(role="user", content="question")]

    def wish(messages):
        return ["done"] if messages[-1].role == "tool" else [call("far_away", n=1)]

    journal.crash_at = 2  # at the start of the tool, as a question stops a run there
    journey = Journey(*[wish] * 5, tools=kit)
    journey.memory.build_messages = prompt
    with pytest.raises(SystemExit):
        await journey.run(journal=journal)
    assert kit[1].runs == []
    journey = Journey(*[wish] * 5, tools=kit)
    await journey.run(journal=journal)
    assert kit[1].runs == [{"n": 1}]
    assert "not loaded" not in journey.results()[0]
    assert journey.model.tools == [["look", "find_tools", "far_away"]]


async def test_negative_control_of_the_deaths():
    """A journal that forgets is found out: the tool runs twice."""
    kit, journal = tools(), FakeJournal()
    journal.crash_at = 9
    with pytest.raises(SystemExit):
        await Journey(*[steps] * 9, tools=kit).run(journal=journal)
    await Journey(*[steps] * 9, tools=kit).run(journal=FakeJournal())
    assert max(len(tool.runs) for tool in kit) == 2
