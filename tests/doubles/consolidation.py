"""Models that consolidate, in every way in which a model can, and a memory that dies or refuses when it is told to."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio

from agent_core.memory.manager import MemoryManager
from agent_core.models import Message, ModelChunk, ToolDefinition, Usage
from agent_core.ports import LLMPort
from tests.doubles.in_memory_storage import InMemoryMemory

S = "terminal/local"

_MATERIAL = re.compile(r"<(conversation|summary)>\n(.*)\n</\1>", re.DOTALL)


class Died(BaseException):
    """The process is gone: nothing in the program catches this."""


def material_in(messages: Sequence[Message]) -> tuple[str, str]:
    """What a consolidation model was given: ``conversation`` or ``summary``, and the text."""
    found = _MATERIAL.search(messages[-1].content)
    assert found is not None, messages[-1].content
    return found[1], found[2]


class ScriptedLLM:
    """
    Answers with the given texts in turn, the last one for ever. An exception is raised, a number is a wait, a
    function is asked with the request. Keeps every request.
    """

    def __init__(self, *answers: str | Exception | float | Callable[[Sequence[Message]], str]) -> None:
        self._answers = list(answers)
        self.requests: list[list[Message]] = []

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        self.requests.append(list(messages))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return self._stream(answer, messages)

    async def _stream(self, answer: Any, messages: Sequence[Message]) -> AsyncIterator[ModelChunk]:
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await anyio.sleep(answer)
            answer = "late"
        text = answer(messages) if callable(answer) else answer
        for start in range(0, len(text), 1000):
            yield text[start : start + 1000]
        yield Usage(
            prompt_tokens=sum(len(each.content) for each in messages) // 4,
            completion_tokens=len(text) // 4,
            calls=1,
        )


class TokenKeeper(ScriptedLLM):
    """A model that keeps every word like ``m17`` of what it reads, and nothing else."""

    def __init__(self) -> None:
        super().__init__(
            lambda messages: " ".join(re.findall(r"\bm\d+\b", material_in(messages)[1])) or "nothing"
        )


class FaultyMemory:
    """A `MemoryPort` around another. ``fault`` is called with the name of a method and ``before`` or ``after``."""

    def __init__(self, inner: Any, fault: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        async def faulty(*arguments: Any, **named: Any) -> Any:
            self._fault(name, "before")
            result = await method(*arguments, **named)
            self._fault(name, "after")
            return result

        return faulty


def manager_of(
    storage: object, llm: LLMPort | None, threshold: int = 5, ratio: float = 0.4, **more: object
) -> MemoryManager:
    return MemoryManager(
        storage,  # type: ignore[arg-type]
        llm=llm,
        consolidation_threshold=threshold,
        keep_recent_ratio=ratio,
        **more,  # type: ignore[arg-type]
    )


async def say(storage: InMemoryMemory, *texts: str) -> None:
    for text in texts:
        await storage.append_message(S, Message(role="user", content=text))


async def talk(storage: InMemoryMemory, turns: int, text: str = "m{}") -> None:
    """So many questions with their answers, numbered on."""
    start = (await storage.load_history(S)).total
    for number in range(start, start + 2 * turns, 2):
        await storage.append_message(
            S,
            Message(role="user", content=text.format(number), turn=f"t{number}"),
            Message(role="assistant", content=text.format(number + 1), turn=f"t{number}"),
        )


async def prompt(manager: MemoryManager) -> list[str]:
    """What stands between system text and question in the next prompt."""
    return [each.content for each in (await manager.build_messages(S, "sys", "new"))[1:-1]]
