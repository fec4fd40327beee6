"""Where a turn of the agent ends: steps, tokens, time, endless answers and repeated failures; on virtual time."""

from __future__ import annotations

import anyio
import pytest

from agent_core.errors import ModelRefused, ToolRetry, TurnLimitReached
from agent_core.models import Usage
from tests.doubles.agent import FakeTool, Journey, broken, call

pytestmark = pytest.mark.virtual_time


class TestLimits:
    async def test_the_last_step_must_answer(self):
        """When the steps are used up the model is asked once more, and told why it may call no tool."""
        journey = Journey(
            *[call("look", n=n) for n in range(3)],
            "This is what I have.",
            tools=[FakeTool("look", n="integer")],
            steps=4,
        )
        result = await journey.run()

        assert result.reply == "This is what I have."
        assert journey.model.tools == [["look"]] * 4
        assert [request[-1].ends_tools for request in journey.model.requests] == [False] * 3 + [True]
        assert "step limit" in journey.model.requests[-1][-1].content

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
        assert "token limit" in journey.model.requests[-1][-1].content

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

        assert "did not finish" in caught.value.public

    async def test_the_same_failing_call(self):
        """It runs three times at the most; the fourth wish ends the use of tools, and the model answers."""
        tool = FakeTool("look", broken(ToolRetry("no")), n="integer")
        journey = Journey(*[call("look", n=1)] * 4, "It does not work.", tools=[tool])
        result = await journey.run()

        assert result.reply == "It does not work."
        assert len(tool.runs) == 3
        assert journey.model.requests[-1][-1].ends_tools
        assert "failed 3 times" in journey.model.requests[-1][-1].content

    async def test_different_failing_calls_are_different(self):
        """A model that tries something else each time is not stopped."""
        tool = FakeTool("look", broken(ToolRetry("no")), n="integer")
        journey = Journey(*[call("look", n=n) for n in range(6)], "ok", tools=[tool])
        await journey.run()

        assert len(tool.runs) == 6
