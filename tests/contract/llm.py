"""
What every `LLMPort` promises, as tests. A subclass gives a ``rig`` that makes its model behave so and so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import Protocol

import anyio
import pytest

from agent_core.errors import (
    ContextTooLong,
    ModelAuthFailed,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
    StreamBroken,
)
from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition, Usage
from agent_core.ports import LLMPort

TOOLS = [
    ToolDefinition(
        name="memory_write",
        description="Replace the memory.",
        parameters={"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]},
    )
]


class Situation(Enum):
    """What the model is to do next."""

    TALK = "answers with more than one piece of text"
    CALL = "calls memory_write with content '- tea'"
    GARBAGE = "calls memory_write with arguments that are no JSON"
    EMPTY = "answers with nothing"
    AUTH = "refuses the key"
    RATE = "has too many requests and asks for two seconds"
    LONG = "finds the conversation too long"
    AWAY = "is not available"
    CUT = "breaks off after a first piece of text"
    ENDLESS = "goes on and on"


class Rig(Protocol):
    """A model and a way to put it into a situation."""

    llm: LLMPort

    async def arrange(self, situation: Situation) -> list[Message]:
        """Arrange the situation for the next request and return what to ask."""
        ...


async def collect(
    llm: LLMPort, messages: Sequence[Message], tools: Sequence[ToolDefinition] = TOOLS, *, stream: bool = True
) -> list[ModelChunk]:
    """All chunks of one answer."""
    chunks: AsyncIterator[ModelChunk] = await llm.chat(messages, tools, stream=stream)
    return [chunk async for chunk in chunks]


def order_of(chunks: Sequence[ModelChunk]) -> str:
    """``t`` for text, ``c`` for a call, ``u`` for usage."""
    return "".join("t" if isinstance(c, str) else "c" if isinstance(c, ToolCall) else "u" for c in chunks)


class LLMContract:
    """The promises. ``rig`` is a fixture of the subclass."""

    async def test_text_comes_in_pieces_and_the_usage_last(self, rig: Rig):
        """A streamed answer is several pieces of text and then exactly one usage with numbers in it."""
        chunks = await collect(rig.llm, await rig.arrange(Situation.TALK))

        order = order_of(chunks)
        assert order.startswith("tt")
        assert order.strip("t") == "u"
        usage = chunks[-1]
        assert isinstance(usage, Usage)
        assert usage.prompt_tokens > 0
        assert usage.completion_tokens > 0
        assert usage.calls == 1

    async def test_without_streaming_the_same_is_said(self, rig: Rig):
        """``stream=False`` gives the same text, tool calls and usage."""
        streamed = await collect(rig.llm, await rig.arrange(Situation.TALK))
        whole = await collect(rig.llm, await rig.arrange(Situation.TALK), stream=False)

        assert order_of(whole) == "tu"
        assert whole[0] == "".join(c for c in streamed if isinstance(c, str))
        assert whole[-1] == streamed[-1]

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_tool_call_comes_complete(self, rig: Rig, stream: bool):
        """A tool call is handed out once, with its arguments parsed, after all text."""
        chunks = await collect(rig.llm, await rig.arrange(Situation.CALL), stream=stream)

        calls = [chunk for chunk in chunks if isinstance(chunk, ToolCall)]
        assert [(call.name, call.arguments) for call in calls] == [("memory_write", {"content": "- tea"})]
        assert calls[0].id
        assert "ct" not in order_of(chunks)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_garbage_as_arguments_is_a_call_that_cannot_be_made(self, rig: Rig, stream: bool):
        """It has no arguments, and says what the model is told instead of a result."""
        chunks = await collect(rig.llm, await rig.arrange(Situation.GARBAGE), stream=stream)
        (call,) = [chunk for chunk in chunks if isinstance(chunk, ToolCall)]
        assert (call.name, call.arguments) == ("memory_write", {})
        assert "no JSON" in call.unreadable

    @pytest.mark.parametrize("stream", [True, False])
    async def test_an_empty_answer_is_an_error(self, rig: Rig, stream: bool):
        """Neither text nor tool call is `ModelRefused`, marked as worth another try, with a sentence for people."""
        with pytest.raises(ModelRefused) as caught:
            await collect(rig.llm, await rig.arrange(Situation.EMPTY), stream=stream)

        assert caught.value.fields["empty"] is True
        assert "empty answer" in caught.value.public

    @pytest.mark.parametrize(
        ("situation", "kind", "temporary"),
        [
            (Situation.AUTH, ModelAuthFailed, False),
            (Situation.RATE, ModelRateLimited, True),
            (Situation.LONG, ContextTooLong, False),
            (Situation.AWAY, ModelUnavailable, True),
        ],
    )
    @pytest.mark.parametrize("stream", [True, False])
    async def test_errors_are_ours(
        self, rig: Rig, situation: Situation, kind: type, temporary: bool, stream: bool
    ):
        """Each failure has its class, says whether later can help, and has a public text without details."""
        with pytest.raises(ModelError) as caught:
            await collect(rig.llm, await rig.arrange(situation), stream=stream)

        error = caught.value
        assert type(error) is kind
        assert error.temporary is temporary
        assert error.public
        assert "127.0.0.1" not in error.public
        if situation is Situation.RATE:
            assert isinstance(error, ModelRateLimited)
            assert error.retry_after_s == 2.0

    async def test_a_broken_stream_says_what_came_before(self, rig: Rig):
        """After text was handed out a broken connection is `StreamBroken`, with that text."""
        chunks = await rig.llm.chat(await rig.arrange(Situation.CUT), TOOLS)
        said = ""
        with pytest.raises(StreamBroken) as caught:
            async for chunk in chunks:
                assert isinstance(chunk, str)
                said += chunk

        assert said
        assert caught.value.partial == said

    async def test_it_can_be_left_at_any_moment(self, rig: Rig):
        """Closing an answer in the middle returns soon, and the model answers the next question."""
        chunks = await rig.llm.chat(await rig.arrange(Situation.ENDLESS), TOOLS)
        async for _ in chunks:
            break
        with anyio.fail_after(60):
            await chunks.aclose()  # type: ignore[attr-defined]

        assert order_of(await collect(rig.llm, await rig.arrange(Situation.TALK))).startswith("t")

    async def test_cancellation_goes_through(self, rig: Rig):
        """A cancelled question ends at once, and the model answers the next one."""
        messages = await rig.arrange(Situation.ENDLESS)
        with anyio.fail_after(60), anyio.move_on_after(0.3) as scope:
            await collect(rig.llm, messages)

        assert scope.cancelled_caught
        assert order_of(await collect(rig.llm, await rig.arrange(Situation.TALK))).startswith("t")

    async def test_an_error_does_not_stay(self, rig: Rig):
        """After a failure the same object answers the next question."""
        with pytest.raises(ModelError):
            await collect(rig.llm, await rig.arrange(Situation.AWAY))

        assert "t" in order_of(await collect(rig.llm, await rig.arrange(Situation.TALK)))
