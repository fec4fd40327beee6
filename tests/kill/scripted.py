"""
The mind and the hand of the bot in the kill tests: a model that follows what messages say, and a tool with an
effect that can be counted.

A message is ``#<number>`` and words: ``effect`` wants the tool run once with that number, ``fact`` wants
``- fact <number>`` in the memory document, ``slow`` takes a while, ``deadly`` passes the moment ``model.deadly``. The answer is ``re: #<number>``, with all
numbers of a merged turn. The model behaves as a good one should: it believes results, merges after a
conflict, and looks before it repeats a write whose outcome is unknown.

It consolidates a conversation to who said which number: ``u3 a3``.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from agent_core.llm.demo.rules import memory_in
from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition, ToolResult, Usage
from tests.kill.points import append_line

_WANTED = re.compile(r"#(\d+)([a-z ]*)")
_SAID = re.compile(r"^(USER|ASSISTANT): (.*)$", re.MULTILINE)
_CURRENT = re.compile(r"call memory_write again\.\n\n(.*)", re.DOTALL)


def numbers_in(text: str) -> list[int]:
    """The numbers of the messages that a text names, in order."""
    return [int(number) for number, _ in _WANTED.findall(text)]


class EffectTool:
    """Writes down that it was run; running it twice with one number is what must never happen."""

    name = "effect"
    description = "Does something that must not be done twice."
    effect = "persist"
    parameters = {  # noqa: RUF012 - as the port has it
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
    }

    def __init__(self, log: Path, point: Callable[[str], None], pause: Callable[[], float]) -> None:
        self._log = log
        self._point = point
        self._pause = pause

    def targets(self, arguments: Any) -> list[str]:
        """What it would fetch, where its effect is that."""
        return ["https://effect.test/"]

    async def execute(self, **arguments: Any) -> ToolResult:
        self._point("tool.start")
        append_line(self._log, str(arguments["number"]))
        await anyio.sleep(self._pause())
        self._point("tool.effect")
        return ToolResult(content=f"did {arguments['number']}")


class ScriptedModel:
    """An `LLMPort`."""

    def __init__(self, point: Callable[[str], None], pause: Callable[[], float]) -> None:
        self._point = point
        self._pause = pause

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self._answer(list(messages))

    async def _answer(self, messages: list[Message]) -> AsyncGenerator[ModelChunk, None]:
        if messages[-1].content.startswith(("<conversation>", "<recorded>")):
            async for piece in self._consolidated(messages[-1].content):
                yield piece
            return
        self._point("model.asked")
        await anyio.sleep(self._pause())
        last = max(place for place, message in enumerate(messages) if message.role == "user")
        question, tail = messages[last].content, messages[last + 1 :]
        wanted = [(int(number), set(words.split())) for number, words in _WANTED.findall(question)]
        if any("slow" in words for _, words in wanted):
            await anyio.sleep(random.random() * 0.05)
        if any("deadly" in words for _, words in wanted):
            self._point("model.deadly")
        called = {call.id for message in tail for call in message.tool_calls}
        effects = [number for number, words in wanted if "effect" in words and f"e{number}" not in called]
        if effects:
            for number in effects:
                yield ToolCall(id=f"e{number}", name="effect", arguments={"number": number})
        elif document := _document(messages, tail, [number for number, words in wanted if "fact" in words]):
            yield ToolCall(id=f"m{len(called)}", name="memory_write", arguments={"content": document})
        else:
            for number, _ in wanted:
                yield f"re: #{number} "
                await anyio.sleep(0)
        yield Usage(prompt_tokens=10, completion_tokens=5, calls=1, model="scripted")
        self._point("model.answered")

    async def _consolidated(self, asked: str) -> AsyncGenerator[ModelChunk, None]:
        self._point("model.consolidating")
        await anyio.sleep(self._pause())
        if "A summary of this part exists" not in asked:  # otherwise it is asked for more: it has no more
            said = _SAID.findall(asked.partition("<conversation>")[2].partition("</conversation>")[0])
            yield " ".join(f"{who[0].lower()}{number}" for who, text in said for number in numbers_in(text))
        yield Usage(prompt_tokens=10, completion_tokens=5, calls=1, model="scripted")
        self._point("model.consolidated")


def _document(messages: Sequence[Message], tail: Sequence[Message], facts: Sequence[int]) -> str:
    """What is to be written into the memory; empty if it is all there."""
    known = memory_in(messages).splitlines()
    results = [message.content for message in tail if message.role == "tool"]
    if "Saved." in results:
        return ""
    for result in results:
        if told := _CURRENT.search(result):
            known += [line for line in told[1].splitlines() if line not in known]
    missing = [f"- fact {number}" for number in facts if f"- fact {number}" not in known]
    return "\n".join([*known, *missing]) if missing else ""
