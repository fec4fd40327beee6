"""
A model server that went on writing the arguments of a tool call filled the memory: only text was counted.
Others were as bad: calls by the hundred thousand, an event in bites of one byte, JSON deeper than Python can
follow, token counts that no database column holds, a few packed kilobytes that were gigabytes.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator

import pytest

from agent_core.errors import ModelError, ModelRefused
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.openai_format import Piece, ToolFragment, parse_piece
from agent_core.llm.streaming import AnswerLimits, SseDecoder, answer
from agent_core.models import Message
from tests.clock import LoopClock
from tests.doubles.openai_server import FakeOpenAI, Raw

ENDLESS = 1_000_000


async def taken(row: AsyncGenerator[Piece, None], limits: AnswerLimits) -> int:
    """Read an answer that must be refused; how many pieces were taken before."""
    count = 0

    async def counted() -> AsyncGenerator[Piece, None]:
        nonlocal count
        async for piece in row:
            count += 1
            yield piece

    with pytest.raises(ModelRefused, match="did not end"):
        async for _ in answer(counted(), limits=limits, model="m", stream=True):
            pass
    await row.aclose()
    return count


async def test_arguments_without_end_are_cut() -> None:
    """What a tool call says counts like text."""

    async def row() -> AsyncGenerator[Piece, None]:
        for _ in range(ENDLESS):
            yield Piece(fragments=(ToolFragment(0, "a", "memory_write", "x" * 1000),))

    assert await taken(row(), AnswerLimits(max_chars=50_000)) <= 51


async def test_calls_without_end_are_cut() -> None:
    """Calls count although there is nothing in them."""

    async def row() -> AsyncGenerator[Piece, None]:
        for number in range(ENDLESS):
            yield Piece(fragments=(ToolFragment(number, str(number), "f", ""),))

    assert await taken(row(), AnswerLimits(max_chars=50_000)) < 5000


async def test_a_long_call_is_still_a_call() -> None:
    """A memory document of the usual size, a token at a time, is taken whole."""

    async def row() -> AsyncGenerator[Piece, None]:
        yield Piece(fragments=(ToolFragment(0, "a", "memory_write", '{"content": "'),))
        for _ in range(8000):
            yield Piece(fragments=(ToolFragment(0, "", "", "word"),))
        yield Piece(fragments=(ToolFragment(0, "", "", '"}'),), finish="tool_calls")

    [call] = [chunk async for chunk in answer(row(), limits=AnswerLimits(), model="m", stream=True)]

    assert not isinstance(call, str)
    assert len(str(call)) > 32_000


def test_an_event_in_small_bites_costs_what_it_weighs() -> None:
    """The line in hand is not copied for each byte: that took half an hour of the processor."""
    decoder = SseDecoder()
    for _ in range(1_500_000):
        assert not list(decoder.feed(b"x"))
    with pytest.raises(ValueError, match="does not end"):
        list(decoder.feed(b"x" * 3_000_000))


@pytest.mark.parametrize(
    "reply",
    [
        Raw(b"[" * 200_000),
        Raw(b"data: " + b"[" * 200_000 + b"\n\n", "text/event-stream"),
        Raw(gzip.compress(b'{"choices": []}'), "application/json"),
    ],
    ids=["whole", "streamed", "packed"],
)
async def test_what_cannot_be_read_is_an_error_of_the_model(reply: Raw) -> None:
    """Every exception is one that the next model of the pool can answer for."""
    async with FakeOpenAI() as fake:
        fake.plan(reply)
        client = OpenAIClient("openai/m", api_base=fake.api_base, clock=LoopClock())
        with pytest.raises(ModelError):
            async for _ in await client.chat([Message(role="user", content="hi")], []):
                pass
        await client.aclose()
        assert fake.headers[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("count", [-5, 10**30, 1e300, True, "many", None])
def test_token_counts_that_cannot_be_are_none(count: object) -> None:
    """They would break the sum of the day, or the commit of the answer."""
    usage = {"prompt_tokens": count, "completion_tokens": 7}
    tokens = parse_piece({"choices": [], "usage": usage}).tokens

    assert tokens is not None
    assert (tokens.prompt in (0, 1), tokens.completion) == (True, 7)
