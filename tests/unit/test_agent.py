"""One turn of the agent, on virtual time."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest

from agent_core.errors import (
    ContextTooLong,
    ModelRefused,
    ModelUnavailable,
    StorageUnavailable,
    StreamBroken,
    ToolDenied,
    ToolRetry,
    TurnLimitReached,
)
from agent_core.models import Message, ToolCall, ToolResult, Usage
from tests.agent_doubles import FakeTool, Journey, ModelScript, Sink, call, session


@pytest.fixture
def anyio_backend(virtual_backend):
    return virtual_backend


def broken(error):
    def effect(**_):
        raise error

    return effect


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

    async def test_run_and_persist(self):
        """For callers without a queue the exchange is kept after the answer, once."""
        journey = Journey("ok")
        await journey.loop.run_and_persist(session("t3"), "question", journey.sink)

        assert journey.memory.kept == [("test/room", "question", "ok", "t3")]

    async def test_what_is_kept_may_be_less_than_what_is_asked(self):
        """Facts of the moment that stand before the question are asked and not kept."""
        journey = Journey("ok")
        await journey.loop.run_and_persist(session("t3"), "[Friday]\nhi", journey.sink, said="hi")

        assert journey.memory.kept[0][1] == "hi"
        assert journey.model.requests[0][-1].content == "[Friday]\nhi"

    async def test_a_session_without_a_turn_gets_one(self):
        """Ids of two such turns differ."""
        first, second = [(await Journey("ok").run(session=session(""))).history[0].id for _ in range(2)]

        assert first != second

    async def test_the_model_of_the_run(self):
        """``llm`` is asked in place of the agent's own, and ``stream`` is passed on."""
        journey, other = Journey("mine"), ModelScript("other")
        result = await journey.run(llm=other, stream=False)

        assert result.reply == "other"
        assert other.streamed == [False]
        assert journey.model.requests == []

    async def test_estimates_are_corrected(self):
        """What the provider counted goes back to the memory manager; a guess of ours does not."""
        journey = Journey(["a", Usage(prompt_tokens=77, calls=1)], "b")
        await journey.run()
        guessed = await journey.run()

        assert [actual for _, actual in journey.memory.observed] == [77]
        assert guessed.usage.prompt_tokens > 500
        assert guessed.usage.calls == 1


class TestTools:
    async def test_a_tool_runs_and_its_result_goes_to_the_model(self):
        """Call and result stand in the next request; usage and runs are counted over all steps."""
        tool = FakeTool("look", "a cat", at="string")
        usage = Usage(prompt_tokens=1, completion_tokens=1, calls=1)
        journey = Journey(["Let me see. ", call("look", at="box"), usage], ["A cat.", usage], tools=[tool])
        result = await journey.run()

        assert tool.runs == [{"at": "box"}]
        assistant, answer = journey.model.requests[1][-2:]
        assert assistant.tool_calls == (call("look", at="box"),)
        assert (answer.role, answer.content, answer.tool_call_id) == ("tool", "a cat", "1")
        assert journey.sink.activities == ["look"]
        assert journey.sink.sent == ["A cat."]
        assert (result.steps, result.tool_runs, result.usage.calls) == (2, 1, 2)

    async def test_several_calls_run_in_order(self):
        """Calls of one answer run one after the other, each with its own result."""
        log = []

        async def slow(n):
            log.append(f"begin {n}")
            await anyio.sleep(5 - n)
            log.append(f"end {n}")
            return ToolResult(content=str(n))

        journey = Journey(
            [call("w", "a", n=1), call("w", "b", n=2)], "ok", tools=[FakeTool("w", slow, n="integer")]
        )
        await journey.run()

        assert log == ["begin 1", "end 1", "begin 2", "end 2"]
        assert journey.results() == ["1", "2"]

    @pytest.mark.parametrize(
        ("effect", "told"),
        [
            (broken(ToolRetry("give me a number")), "Error: give me a number"),
            (broken(ToolDenied("not here")), "Error: not here"),
            (broken(StorageUnavailable("/secret/path")), "Error: My disk does not take anything"),
            (broken(ZeroDivisionError("secret detail")), "Error: The tool has a defect"),
            (broken(ExceptionGroup("g", [OSError("x")])), "Error: The tool has a defect"),
            (lambda: "not a result", "Error: The tool has a defect"),
            (lambda: ToolResult(content="no luck", is_error=True), "Error: no luck"),
        ],
    )
    async def test_errors_go_back_to_the_model(self, effect, told):
        """Whatever a tool does, the turn goes on and the model reads of it, without what is not its business."""
        journey = Journey(call("look"), "I could not.", tools=[FakeTool("look", effect)])
        await journey.run()

        (result,) = journey.results()
        assert result.startswith(told)
        assert "secret" not in result

    @pytest.mark.parametrize(
        ("wish", "told"),
        [
            (call("nothing"), "There is no tool 'nothing'. The tools are: look."),
            (ToolCall(id="1", name="look", malformed='{"at": '), "no JSON object"),
            (call("look"), "'at' is missing"),
            (call("look", at=5), "'at' must be of type string"),
        ],
    )
    async def test_calls_that_cannot_be_made(self, wish, told):
        """The model learns what is wrong, and nothing is run."""
        tool = FakeTool("look", at="string")
        journey = Journey(wish, "Sorry.", tools=[tool])
        await journey.run()

        assert told in journey.results()[0]
        assert journey.results()[0].startswith("Error: ")
        assert tool.runs == []

    async def test_a_tool_that_hangs_is_cut(self):
        """After its time the model is told, and the turn goes on."""
        journey = Journey(
            call("look"), "ok", tools=[FakeTool("look", lambda: anyio.sleep(1e6))], tool_seconds=30
        )
        began = anyio.current_time()
        await journey.run()

        assert 30 <= anyio.current_time() - began < 31
        assert "stopped after 30 seconds" in journey.results()[0]

    async def test_a_long_result_is_cut(self):
        """The model sees the beginning and how much there was."""
        journey = Journey(call("look"), "ok", tools=[FakeTool("look", "x" * 5000)], tool_result_chars=100)
        await journey.run()

        (result,) = journey.results()
        assert result.startswith("x" * 100 + "\n[cut here: these are the first 100 of 5000")

    async def test_too_many_calls_at_once(self):
        """One answer cannot start a thousand tools."""
        tool = FakeTool("look", n="integer")
        journey = Journey([call("look", str(n), n=n) for n in range(100)], "ok", tools=[tool])
        await journey.run()

        assert len(tool.runs) == 32
        assert len(journey.results()) == 100


class TestExtraTools:
    async def test_they_win_over_the_registry(self):
        """A tool of the run hides one of the registry with the same name, also in what the model is told."""
        old, mine = FakeTool("look", "old"), FakeTool("look", "mine")
        mine.description = "Mine."
        journey = Journey(call("look"), "ok", tools=[old])
        await journey.run(extra_tools=[mine])

        assert journey.results() == ["mine"]
        assert old.runs == []
        assert journey.model.tools[0] == ["look"]

    async def test_two_interleaved_runs_do_not_see_each_other(self):
        """Two runs of one agent at the same time, each with its own tool of the same name, use their own."""
        before = None
        tools = {name: FakeTool("memory_write", f"written by {name}") for name in "ab"}
        journey = Journey()
        before = journey.registry.get_definitions()
        seen = {}

        async def run(name, pause):
            model = ModelScript([pause, call("memory_write")], [pause, call("memory_write")], [pause, "ok"])
            await journey.run(
                session=session(f"t{name}", name), channel=Sink(), llm=model, extra_tools=[tools[name]]
            )
            seen[name] = [m.content for m in model.requests[-1] if m.role == "tool"]

        async with anyio.create_task_group() as group:
            group.start_soon(run, "a", 1.0)
            group.start_soon(run, "b", 1.5)

        assert seen == {"a": ["written by a"] * 2, "b": ["written by b"] * 2}
        assert journey.registry.get_definitions() == before == []

    async def test_the_negative_control(self):
        """A loop that registers tools of a run in the registry fails the same check: the second run cannot."""
        journey = Journey()
        journey.registry.register(FakeTool("memory_write", "a"))
        with pytest.raises(ValueError, match="already"):
            journey.registry.register(FakeTool("memory_write", "b"))

    async def test_they_are_gone_afterwards(self):
        """The next run has no such tool."""
        journey = Journey("ok", call("look"), "ok")
        await journey.run(extra_tools=[FakeTool("look")])
        await journey.run()

        assert journey.model.tools == [["look"], [], []]
        assert "no tool 'look'" in journey.results()[0]


class TestLimits:
    async def test_the_last_step_must_answer(self):
        """When the steps are used up the model is asked once more, without tools, and told why."""
        journey = Journey(
            *[call("look", n=n) for n in range(3)],
            "This is what I have.",
            tools=[FakeTool("look", n="integer")],
            steps=4,
        )
        result = await journey.run()

        assert result.reply == "This is what I have."
        assert journey.model.tools == [["look"]] * 3 + [[]]
        assert "limit of steps" in journey.model.requests[-1][-1].content

    async def test_a_model_that_calls_all_the_same(self):
        """Without an answer in the last step the turn ends with `TurnLimitReached`."""
        journey = Journey(
            *[call("look", n=n) for n in range(9)], tools=[FakeTool("look", n="integer")], steps=4
        )
        with pytest.raises(TurnLimitReached):
            await journey.run()

        assert len(journey.model.requests) == 4
        assert journey.sink.sent == []

    async def test_tokens(self):
        """When the tokens are spent there is one more call, without tools."""
        usage = Usage(prompt_tokens=900, completion_tokens=200, calls=1)
        journey = Journey([call("look"), usage], ["Enough.", usage], tools=[FakeTool("look")], tokens=1000)

        assert (await journey.run()).reply == "Enough."
        assert "limit of tokens" in journey.model.requests[-1][-1].content

    @pytest.mark.parametrize("answers", [[[1e6, "x"]], [["x", 1e6]]])
    async def test_time(self, answers):
        """After its time the turn ends, the model's answer is closed, and nothing was sent."""
        journey = Journey(*answers, seconds=100)
        began = anyio.current_time()
        with pytest.raises(TurnLimitReached):
            await journey.run()

        assert 100 <= anyio.current_time() - began < 101
        assert journey.model.open == 0
        assert journey.sink.sent == []

    async def test_an_endless_answer(self):
        """An answer that is too long is stopped."""
        journey = Journey(["x" * 600] * 3, answer_chars=1000)
        with pytest.raises(ModelRefused) as caught:
            await journey.run()

        assert "did not come to an end" in caught.value.public

    async def test_the_same_failing_call(self):
        """It runs three times at the most; the fourth wish ends the use of tools, and the model answers."""
        tool = FakeTool("look", broken(ToolRetry("no")), n="integer")
        journey = Journey(*[call("look", n=1)] * 4, "It does not work.", tools=[tool])
        result = await journey.run()

        assert result.reply == "It does not work."
        assert len(tool.runs) == 3
        assert journey.model.tools[-1] == []
        assert "failed 3 times" in journey.model.requests[-1][-1].content

    async def test_different_failing_calls_are_different(self):
        """A model that tries something else each time is not stopped."""
        tool = FakeTool("look", broken(ToolRetry("no")), n="integer")
        journey = Journey(*[call("look", n=n) for n in range(6)], "ok", tools=[tool])
        await journey.run()

        assert len(tool.runs) == 6

    async def test_garbage_again_and_again(self):
        """The same malformed call is stopped as well."""
        garbage = ToolCall(id="1", name="look", malformed="{")
        journey = Journey(*[garbage] * 10, tools=[FakeTool("look")])
        with pytest.raises(TurnLimitReached):
            await journey.run()

        assert len(journey.model.requests) == 5


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
