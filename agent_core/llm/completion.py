"""
Collects a stream into one complete answer, for callers that need the whole. An answer that broke off in the
middle, that cannot be read or has nothing in it, is asked for once more. That is safe: tool calls come only
with a complete answer, so none has run, and the next answer replaces the text that was shown. An answer that
came too slowly is not asked for again, because it would take as long once more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import cast

import structlog

from agent_core.errors import ModelError, ModelRefused, ModelUnreadable, StreamBroken
from agent_core.llm.model_errors import empty_answer, endless_answer
from agent_core.models import AnswerEnd, Message, ModelAnswer, ModelChunk, ToolCall, ToolDefinition, Usage
from agent_core.ports import LLMPort
from agent_core.text import is_visible

_log = structlog.get_logger(__name__)


async def ask(
    llm: LLMPort,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    stream: bool,
    max_chars: int,
    partial: Callable[[str], Awaitable[None]] | None = None,
) -> ModelAnswer:
    """
    Ask for one answer; the text so far goes to ``partial`` while it grows.

    Raises ModelRefused for a second empty answer or one over ``max_chars``, ModelUnreadable for a second
    unreadable or a slow one, and the model's own ModelError.
    """
    try:
        return await _ask_once(llm, messages, tools, stream=stream, max_chars=max_chars, partial=partial)
    except ModelError as error:
        if not _may_pass(error):
            raise
        _log.warning("model.asked_again", error=str(error))
    return await _ask_once(llm, messages, tools, stream=stream, max_chars=max_chars, partial=partial)


def _may_pass(error: ModelError) -> bool:
    if isinstance(error, ModelUnreadable):
        return error.kind != "slow" and not error.fields.get("final")
    return isinstance(error, StreamBroken) or bool(error.fields.get("empty"))


async def _ask_once(
    llm: LLMPort,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    stream: bool,
    max_chars: int,
    partial: Callable[[str], Awaitable[None]] | None,
) -> ModelAnswer:
    text = ""
    calls: list[ToolCall] = []
    usage: Usage | None = None
    end = AnswerEnd()
    chunks = await llm.chat(messages, tools, stream=stream)
    async with aclosing(cast("AsyncGenerator[ModelChunk, None]", chunks)) as answer:
        async for chunk in answer:
            match chunk:
                case str():
                    text += chunk
                    if len(text) > max_chars:
                        raise endless_answer("the model", f"{max_chars} characters")
                    if chunk and partial is not None:
                        await partial(text)
                case ToolCall():
                    calls.append(chunk)
                case Usage():
                    usage = chunk
                case AnswerEnd():
                    end = chunk
    if not is_visible(text) and not calls:
        raise _nothing(usage)
    return ModelAnswer(text, tuple(calls), usage, end.is_cut, end.reasoning)


def _nothing(usage: Usage | None) -> ModelRefused:
    return empty_answer(usage.model if usage and usage.model else "the model", None)
