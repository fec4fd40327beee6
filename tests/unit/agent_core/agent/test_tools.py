"""Tools in a turn of the agent: calls, results, errors, and tools that one run brings along; on virtual time."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from agent_core.errors import StorageUnavailable, ToolDenied, ToolRetry
from agent_core.models import MemoryScope, ScopeKind, ToolResult, Usage
from tests.doubles.agent import FakeTool, Journey, ModelScript, Sink, broken, call, session

pytestmark = pytest.mark.virtual_time


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
            (broken(StorageUnavailable("/secret/path")), "Error: My disk accepts no writes"),
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
            (
                call("nothing"),
                "There is no tool 'nothing' here. The tools are: look.",
            ),
            (call("look"), "'at' is a required property"),
            (call("look", at=5), "at: 5 is not of type 'string'"),
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

    @pytest.mark.parametrize("kind", list(ScopeKind))
    async def test_only_elsewhere_a_private_conversation_with_the_owner_is_named(self, kind):
        """The model would send the owner from their private conversation to where they are."""
        journey = Journey(call("nothing"), "Sorry.", tools=[FakeTool("look")])
        await journey.run(
            session=replace(session(), scope=MemoryScope(kind, "" if kind is ScopeKind.OWNER else "x"))
        )

        told = "In a private conversation with the owner there may be more" in journey.results()[0]
        assert told is (kind is not ScopeKind.OWNER)

    @pytest.mark.parametrize(
        ("kind", "given", "meant"),
        [
            ("integer", "5", 5),
            ("number", " 2.5 ", 2.5),
            ("boolean", "True", True),
            ("string", "5", "5"),
            ("string", "true", "true"),
            ("integer", 5, 5),
        ],
    )
    async def test_a_number_in_quotes_is_a_number(self, kind, given, meant):
        """Small models write so; a text stays a text."""
        tool = FakeTool("look", at=kind)
        await Journey(call("look", at=given), "ok", tools=[tool]).run()

        assert tool.runs == [{"at": meant}]

    @pytest.mark.parametrize(("kind", "given"), [("integer", "five"), ("integer", "2.5"), ("boolean", "1")])
    async def test_what_is_no_number_is_refused(self, kind, given):
        """Negative control: nothing is guessed."""
        tool = FakeTool("look", at=kind)
        journey = Journey(call("look", at=given), "ok", tools=[tool])
        await journey.run()

        assert tool.runs == []
        assert f"is not of type '{kind}'" in journey.results()[0]

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
