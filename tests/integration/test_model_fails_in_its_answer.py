"""A model whose answer to one question always fails: the room goes on."""

from __future__ import annotations

import pytest

from agent_core.messages import OutboundKind
from tests.doubles.openai_server import Call, Cut, ErrorEvent, FakeOpenAI, Say, Status
from tests.integration.gateway_world import world


def llm(fake: FakeOpenAI) -> dict:
    return {
        "providers": {"p": {"api_base": fake.api_base, "api_key": "k"}},
        "models": {"m": {"provider": "p", "model": "openai/tiny"}},
        "pools": {"main": ["m"]},
    }


@pytest.mark.parametrize(
    "failure",
    [
        ErrorEvent(("Half of",), code=500),
        ErrorEvent((), code=500),
        Cut(("Half of",)),
        Say("Half of", finish="malformed_function_call"),
    ],
)
async def test_an_answer_that_always_breaks_is_given_up(tmp_path, failure):
    """After a second try with back-off there is one apology with the reason, and the next question is answered."""
    async with FakeOpenAI() as fake, world(tmp_path, settings={"llm": llm(fake)}) as there:
        fake.plan(*[failure] * 20)
        told = await there.asked("hello")
        asked = len(fake.requests)

        assert told.kind is OutboundKind.APOLOGY
        assert "twice at the same point" in told.text
        assert asked <= 4
        fake._plan.clear()
        assert (await there.asked("and now?")).kind is OutboundKind.REPLY


_HALF = Say(calls=[Call("memory_write", '{"content": "- tea'), Call("memory_write", '{"content": "- milk"}')])


async def test_arguments_that_are_no_json_are_told_to_the_model(tmp_path):
    """Also twice: no call of such an answer is made, and the third is right. No apology."""
    right = Say(calls=[Call("memory_write", '{"content": "- tea"}')])
    async with FakeOpenAI() as fake, world(tmp_path, settings={"llm": llm(fake)}) as there:
        fake.plan(_HALF, _HALF, right, Say("Noted."))
        told = await there.asked("remember tea")
        results = [each["content"] for each in fake.requests[3]["messages"] if each["role"] == "tool"]
    assert (told.kind, told.text) == (OutboundKind.REPLY, "Noted.")
    refused = [each.startswith("Error: No call of this answer was made: ") for each in results]
    assert refused == [True] * 4 + [False]
    assert "Error" not in results[-1]


async def test_arguments_that_are_never_json_end_within_the_limits(tmp_path):
    """As any call that fails again and again: the model is asked for an answer without tools."""
    async with FakeOpenAI() as fake, world(tmp_path, settings={"llm": llm(fake)}) as there:
        fake.plan(*[_HALF] * 4, Say("I could not."))
        told = await there.asked("remember tea")
        asked = len(fake.requests)
    assert (told.kind, told.text) == (OutboundKind.REPLY, "I could not.")
    assert asked <= 5


async def test_an_outage_is_still_waited_for(tmp_path):
    """Control: three times 503 is no fault of the question."""
    async with FakeOpenAI() as fake, world(tmp_path, settings={"llm": llm(fake)}) as there:
        fake.plan(*[Status(503, "overloaded")] * 3)

        assert (await there.asked("hello", within_s=60)).kind is OutboundKind.REPLY


@pytest.mark.parametrize("end", [Status(400), Say("")])
async def test_the_apology_says_that_something_was_done(tmp_path, end):
    """A tool had its effect before the answer failed: whoever reads only the apology must not ask for it again."""
    tea = Say(calls=[Call("memory_write", '{"content": "- tea"}')])
    async with FakeOpenAI() as fake, world(tmp_path, settings={"llm": llm(fake)}) as there:
        fake.plan(tea, end, end)
        told = await there.asked("remember tea")
        fake.plan(end, end)
        idle = await there.asked("hello")
    assert (told.kind, idle.kind) == (OutboundKind.APOLOGY, OutboundKind.APOLOGY)
    assert told.text.endswith("What I had done before that stays done; `!did` lists it.")
    assert "!did" not in idle.text
