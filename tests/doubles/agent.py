"""Doubles around the agent: a scripted model, a small memory, tools, a channel and a journal."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import anyio

from agent_core.agent import AgentLoop, TurnLimits
from agent_core.messages import SessionKey
from agent_core.models import (
    MemoryScope,
    Message,
    ModelAnswer,
    ModelChunk,
    ScopeKind,
    Session,
    ToolCall,
    ToolDefinition,
    ToolResult,
    Usage,
)
from agent_core.prompt_budget import TokenEstimate
from agent_core.provenance import Origins
from agent_core.tools.effects import Effect
from agent_core.tools.tool_registry import ToolRegistry
from tests.clock import LoopClock

Step = str | ToolCall | Usage | float | Exception


def call(name: str, id: str = "1", **arguments: Any) -> ToolCall:  # noqa: A002 - short for many tests
    """A tool call."""
    return ToolCall(id=id, name=name, arguments=arguments)


def session(turn: str = "t1", conversation: str = "room") -> Session:
    """A session of the owner."""
    return Session(SessionKey("test", conversation), MemoryScope(ScopeKind.OWNER), turn=turn)


class StreamingModel:
    """A model whose ``answer`` is an asynchronous generator of chunks."""

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self.answer(messages, tools)


class ModelScript:
    """
    Gives the scripted answers in order: each a list of chunks, waits (float) and errors, or a function of the
    request. Keeps every request.
    """

    def __init__(
        self, *answers: Sequence[Step] | Step | Callable[[Sequence[Message]], Sequence[Step]]
    ) -> None:
        self.answers = deque(answers)
        self.requests: list[list[Message]] = []
        self.tools: list[list[str]] = []
        self.streamed: list[bool] = []
        self.open = 0

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        self.requests.append(list(messages))
        self.tools.append([tool.name for tool in tools])
        self.streamed.append(stream)
        answer = self.answers.popleft() if self.answers else "nothing more"
        steps = answer(messages) if callable(answer) else answer
        return self._play(steps if isinstance(steps, list | tuple) else [steps])

    async def _play(self, steps: Sequence[Step]) -> AsyncIterator[ModelChunk]:
        self.open += 1
        try:
            for step in steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await anyio.sleep(step)
                else:
                    yield step
        finally:
            self.open -= 1


class ListMemory:
    """A memory of prompts that keeps exchanges in a list."""

    def __init__(self) -> None:
        self.estimate = TokenEstimate()
        self.asked: list[dict[str, Any]] = []
        self.kept: list[tuple[str, str, str, str]] = []

    async def build_messages(
        self, session_id: str, system_prompt: str, user_message: str, **more: Any
    ) -> list[Message]:
        self.asked.append({"session_id": session_id, **more})
        old = "old " * (10 if more["context_tokens"] is not None else 1000)
        return [
            Message(role="system", content=system_prompt),
            Message(role="assistant", content=old),
            Message(role="user", content=user_message),
        ]

    async def persist_exchange(
        self, session_id: str, user_message: str, assistant_reply: str, *, turn: str = "", **more: Any
    ) -> None:
        self.kept.append((session_id, user_message, assistant_reply, turn))


class Sink:
    """A `ChannelPort` that keeps everything."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.partials: list[str] = []

    async def send(self, text: str) -> None:
        self.sent.append(text)

    async def partial(self, text: str) -> None:
        self.partials.append(text)


class FakeTool:
    """A tool that gives a text, or does what ``effect`` does. Counts its runs. By the policy it only reads."""

    effect = Effect.READ

    def __init__(
        self, name: str = "look", effect: Callable[..., Any] | str = "found", **properties: str
    ) -> None:
        self.name = name
        self.description = f"{name}s."
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
            "required": list(properties),
        }
        self.runs: list[dict[str, Any]] = []
        self._effect = effect

    async def execute(self, **arguments: Any) -> ToolResult:
        self.runs.append(arguments)
        if isinstance(self._effect, str):
            return ToolResult(content=self._effect)
        result = self._effect(**arguments)
        return await result if hasattr(result, "__await__") else result


class FakeJournal:
    """
    A `StepJournal` in memory. ``crash_after`` raises at the n-th write, before (or after) it holds.
    """

    def __init__(self) -> None:
        self.steps: dict[tuple[int, str], Any] = {}
        self.writes = 0
        self.crash_at: int | None = None

    def _write(self, key: tuple[int, str], value: Any) -> None:
        self.writes += 1
        if self.writes == self.crash_at:
            raise SystemExit("killed before the write")
        self.steps[key] = value

    async def model_answer(self, number: int, digest: str) -> Any:
        return self.steps.get((number, digest))

    async def record_model_answer(
        self, number: int, digest: str, answer: ModelAnswer, *, origins: Origins = ()
    ) -> None:
        self._write((number, digest), (answer, origins))

    async def tool_result(self, number: int, digest: str) -> ToolResult | None:
        found = self.steps.get((number, digest))
        return ToolResult(content="outcome unknown", is_error=True) if found == "started" else found

    async def record_tool_start(self, number: int, digest: str, call: ToolCall, **about: Any) -> None:
        self._write((number, digest), "started")

    async def record_tool_result(self, number: int, digest: str, result: ToolResult) -> None:
        self._write((number, digest), result)


class Journey:
    """An agent with its doubles."""

    def __init__(self, *answers: Any, tools: Sequence[FakeTool] = (), **limits: Any) -> None:
        self.model = ModelScript(*answers)
        self.memory = ListMemory()
        self.registry = ToolRegistry()
        for tool in tools:
            self.registry.register(tool)
        self.sink = Sink()
        self.clock = LoopClock()
        self.loop = AgentLoop(
            self.memory,
            self.registry,
            self.model,
            system_prompt=lambda: "Be good.",
            limits=TurnLimits(**limits),
            clock=self.clock,
        )

    async def run(self, text: str = "question", **more: Any) -> Any:
        return await self.loop.run(
            more.pop("session", session()), text, more.pop("channel", self.sink), **more
        )

    def results(self, request: int = -1) -> list[str]:
        """The tool results that the model saw in its n-th request."""
        return [message.content for message in self.model.requests[request] if message.role == "tool"]


def broken(error):
    """What a tool does that raises ``error``."""

    def effect(**_):
        raise error

    return effect
