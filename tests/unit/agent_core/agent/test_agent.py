"""One turn of the agent, on virtual time."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest

from agent_core.errors import ContextTooLong, ModelRefused, ModelUnavailable, StreamBroken
from agent_core.models import Message, Usage
from tests.doubles.agent import FakeTool, Journey, ModelScript, call, session

pytestmark = pytest.mark.virtual_time


class TestTheTurn:
    async def test_a_plain_answer(self):
        """The answer is sent exactly once, shown as it grows, and returned with what it cost."""
        usage = Usage(prompt_tokens=10, completion_tokens=2, calls=1, cost_usd=0.5, model="m")
        journey = Journey(["Hel", "lo. ", usage])
        result = await journey.run()

        assert journey.sink.sent == ["Hello."]
        assert journey.sink.partials == ["Hel", "Hello. "]
        assert (result.reply, result.usage, result.steps, result.tool_runs) == ("Hello.", usage, 1, 0)

    async def test_the_prompt_comes_from_memory(self):
        """The memory manager is told session, scope and tools, and its prompt is what is asked."""
        journey = Journey("ok", tools=[FakeTool("look")])
        await journey.run("[Friday]\nquestion", extra_tools=[FakeTool("memory_write")])

        (asked,) = journey.memory.asked
        assert asked["session_id"] == "test/room"
        assert asked["tool_names"] == ["look", "memory_write"]
        assert asked["context_tokens"] is None
        assert journey.model.requests[0][-1].content == "[Friday]\nquestion"

    async def test_the_history_is_returned_and_not_written(self):
        """Lines have deterministic ids, the turn, times from the clock; writing them is the caller's."""
        journey = Journey([5.0, "answer"])
        result = await journey.run(session=session("t7"))

        asked, answered = result.history
        assert (asked.role, asked.content, asked.id, asked.turn) == ("user", "question", "t7.0", "t7")
        assert (answered.role, answered.content, answered.id, answered.turn) == (
            "assistant",
            "answer",
            "t7.1",
            "t7",
        )
        assert (answered.timestamp - asked.timestamp).total_seconds() == pytest.approx(5, abs=0.5)
        assert journey.memory.kept == []

    async def test_one_line_for_each_merged_message(self):
        """Lines of the caller keep sender and time; what is missing is filled in."""
        at = datetime(2026, 1, 1, tzinfo=UTC)
        lines = [
            Message(role="user", content="a", sender="@bob:hs.test", timestamp=at),
            Message(role="user", content="b", sender="@eve:hs.test", id="t1.1", turn="t1"),
        ]
        result = await Journey("ok").run("a\n\nb", user_lines=lines)

        assert [(line.id, line.content, line.sender) for line in result.history] == [
            ("t1.0", "a", "@bob:hs.test"),
            ("t1.1", "b", "@eve:hs.test"),
            ("t1.2", "ok", None),
        ]
        assert result.history[0].timestamp == at
        assert all(line.timestamp and line.turn == "t1" for line in result.history)

    async def test_a_session_without_a_turn_gets_one(self):
        """Ids of two such turns differ."""
        first, second = [(await Journey("ok").run(session=session(""))).history[0].id for _ in range(2)]

        assert first != second

    async def test_the_model_of_the_run(self):
        """``llm`` is asked in place of the agent's own, as a stream."""
        journey, other = Journey("mine"), ModelScript("other")
        result = await journey.run(llm=other)

        assert result.reply == "other"
        assert other.streamed == [True]
        assert journey.model.requests == []

    async def test_usage_is_guessed_where_nobody_says_it(self):
        """So that no call is free."""
        journey = Journey(["a", Usage(prompt_tokens=77, calls=1)], "b")
        assert (await journey.run()).usage.prompt_tokens == 77
        guessed = await journey.run()

        assert guessed.usage.prompt_tokens > 500
        assert guessed.usage.calls == 1


class TestModelErrors:
    async def test_a_broken_stream_is_asked_for_again(self):
        """Once; the answer of the second time is the answer, and no tool of the first ran."""
        journey = Journey(["so f", StreamBroken("cut", partial="so f")], "complete")

        assert (await journey.run()).reply == "complete"
        assert journey.sink.partials == ["so f", "complete"]

    async def test_and_not_for_ever(self):
        """The second time it goes up."""
        journey = Journey(*[["a", StreamBroken("cut", partial="a")]] * 5)
        with pytest.raises(StreamBroken):
            await journey.run()

        assert len(journey.model.requests) == 2

    @pytest.mark.parametrize("empty", [[], [" \n"], [ModelRefused("empty", empty=True)]])
    async def test_an_empty_answer(self, empty):
        """It is asked for once more, and then an error that says so."""
        assert (await Journey(empty, "now").run()).reply == "now"
        with pytest.raises(ModelRefused) as caught:
            await Journey(empty, empty).run()
        assert "empty" in caught.value.public.lower() or caught.value.fields["empty"]

    @pytest.mark.parametrize("error", [ModelUnavailable("x"), ModelRefused("x")])
    async def test_other_errors_go_up(self, error):
        """At once and as they are: another model, or another time, is for others to decide."""
        journey = Journey(error, "never")
        with pytest.raises(type(error)):
            await journey.run()

        assert len(journey.model.requests) == 1
        assert journey.sink.sent == []

    async def test_too_long_is_halved_once(self):
        """The prompt is rebuilt with half the tokens, and results of this turn are shortened."""
        journey = Journey(call("look"), ContextTooLong("x"), "ok", tools=[FakeTool("look", "word " * 3000)])
        await journey.run()

        first, second = journey.memory.asked
        assert first["context_tokens"] is None
        full = journey.memory.estimate.request(journey.model.requests[0])
        assert second["context_tokens"] == full // 2
        assert len(journey.results(-1)[0]) < len(journey.results(-2)[0]) / 4

    async def test_too_long_twice_goes_up(self):
        """What does not fit even then is told to the person."""
        journey = Journey(ContextTooLong("x"), ContextTooLong("x"), "never")
        with pytest.raises(ContextTooLong):
            await journey.run()

        assert len(journey.model.requests) == 2


class TestCancellation:
    @pytest.mark.parametrize("where", ["model", "tool"])
    async def test_it_is_never_swallowed(self, where):
        """A cancelled turn ends at once, whether a model or a tool was at work; nothing is sent."""
        tool = FakeTool("look", lambda: anyio.sleep(1e6))
        journey = Journey(
            [1e6, "x"] if where == "model" else call("look"), "after", tools=[tool], tool_seconds=1e9
        )
        with anyio.move_on_after(10) as scope:
            await journey.run()

        assert scope.cancelled_caught
        assert journey.sink.sent == []
        assert len(journey.model.requests) == 1
        assert journey.model.open == 0
