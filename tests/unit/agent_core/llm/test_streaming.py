"""Limits of one answer, on virtual time."""

from __future__ import annotations

import anyio
import pytest

from agent_core.errors import ModelRateLimited, ModelRefused, ModelUnavailable, StreamBroken
from agent_core.llm.openai_format import Piece, TokenCounts
from agent_core.llm.streaming import AnswerLimits, answer
from agent_core.models import Usage

pytestmark = pytest.mark.virtual_time
LIMITS = AnswerLimits(first_token_s=90, idle_s=60, total_s=600, max_chars=10_000)


class Script:
    """A stream: numbers are waits, the rest is given or raised. Knows whether it was closed."""

    def __init__(self, *steps):
        self.steps = steps
        self.closed = False

    async def pieces(self):
        try:
            for step in self.steps:
                if isinstance(step, int | float):
                    await anyio.sleep(step)
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield Piece(step) if isinstance(step, str) else step
        finally:
            self.closed = True

    async def run(self, limits=LIMITS, *, stream=True):
        began = anyio.current_time()
        try:
            return [c async for c in answer(self.pieces(), limits=limits, model="m", stream=stream)]
        finally:
            self.took = anyio.current_time() - began


async def test_a_slow_answer_is_not_cut():
    """Pauses below the limits are waited for, however many."""
    script = Script(80, "a", 50, "b", 50, "c", Piece(tokens=TokenCounts(1, 2)))

    assert await script.run() == [
        "a",
        "b",
        "c",
        Usage(prompt_tokens=1, completion_tokens=2, calls=1, model="m"),
    ]


async def test_thinking_is_activity():
    """Pieces without text keep an answer alive: a model may think longer than it may be silent."""
    assert await Script(*[50, Piece()] * 8, "at last").run() == ["at last"]


async def test_nothing_at_all():
    """A server that never begins is given up after the first limit, and the request is closed."""
    script = Script(1000, "too late")
    with pytest.raises(ModelUnavailable):
        await script.run()

    assert 90 <= script.took < 91
    assert script.closed


async def test_a_stall():
    """Silence in the middle ends after the idle limit, with what came before."""
    script = Script("so ", "far", 1000)
    with pytest.raises(StreamBroken) as caught:
        await script.run()

    assert caught.value.partial == "so far"
    assert 60 <= script.took < 61
    assert script.closed


async def test_the_negative_control():
    """The same stall is not noticed with endless patience, so the limit is what notices."""
    script = Script("so ", 1000, "far")

    assert await script.run(AnswerLimits(first_token_s=1e6, idle_s=1e6, total_s=1e6)) == ["so ", "far"]


async def test_a_stream_that_flows_for_ever():
    """The total limit cuts what never stalls; asking again would not help, so it is final."""
    with pytest.raises(ModelRefused) as caught:
        await Script(*[10, "x"] * 100).run()

    assert "did not finish" in caught.value.public


async def test_thinking_for_ever():
    """The same without any text: it is no outage, and would take as long again."""
    with pytest.raises(ModelRefused):
        await Script(*[10, Piece()] * 100).run()


async def test_a_flood():
    """An answer that is too long is cut, however fast it comes."""
    with pytest.raises(ModelRefused):
        await Script(*["x" * 1000] * 20).run()


async def test_a_whole_answer_has_the_whole_time():
    """Without streaming the limit until the first token does not apply: everything comes at once."""
    assert await Script(500, "all").run(stream=False) == ["all"]
    with pytest.raises(ModelUnavailable):
        await Script(700, "all").run(stream=False)


async def test_a_temporary_error_after_text():
    """It becomes `StreamBroken`; before any text it stays what it is."""
    limited = ModelRateLimited("429")
    with pytest.raises(StreamBroken) as caught:
        await Script("a", limited).run()
    assert caught.value.partial == "a"
    assert caught.value.__cause__ is limited
    with pytest.raises(ModelRateLimited):
        await Script(limited).run()


async def test_a_final_error_after_text_stays_final():
    """What cannot pass by itself is not dressed up as something that can."""
    with pytest.raises(ModelRefused):
        await Script("a", ModelRefused("no")).run()


async def test_leaving_early_closes_the_request():
    """``aclose`` in the middle ends the request, also when the task is being cancelled."""
    script = Script("a", 10, "b")
    chunks = answer(script.pieces(), limits=LIMITS, model="m", stream=True)
    assert await anext(chunks) == "a"
    await chunks.aclose()
    assert script.closed

    script = Script("a", 1000, "b")
    with anyio.move_on_after(5):
        await script.run()
    assert script.closed
