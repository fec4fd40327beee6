"""
What makes the tools act in the kill tests: a model that makes the calls it is told, and moments inside the tools.

A message is ``#<number> do NAME {...}; NAME {...}``. The calls are made one after the other; one that only had to be
loaded is made again. The answer is ``re: #<number>`` with all results. It is a good model: what has an unknown
outcome it does not repeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio

from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition, Usage

_CALL = re.compile(r"(\w+) (\{.*?\})(?=;|$)", re.MULTILINE)


class WorkingModel:
    """An `LLMPort`."""

    def __init__(self, point: Callable[[str], None], pause: Callable[[], float]) -> None:
        self._point = point
        self._pause = pause

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self._answer(list(messages))

    async def _answer(self, messages: list[Message]) -> AsyncIterator[ModelChunk]:
        self._point("model.asked")
        await anyio.sleep(self._pause())
        last = max(place for place, message in enumerate(messages) if message.role == "user")
        question, tail = messages[last].content, messages[last + 1 :]
        _, found, wish = question.partition(" do ")
        wanted = [(name, json.loads(told)) for name, told in _CALL.findall(wish)] if found else []
        results = [each.content for each in tail if each.role == "tool"]
        done = [each for each in results if "was not loaded" not in each]
        if len(done) < len(wanted):
            name, arguments = wanted[len(done)]
            yield ToolCall(id=f"c{len(results)}", name=name, arguments=arguments)
        else:
            numbers = " ".join(re.findall(r"#\d+", question))
            yield f"re: {numbers}\n" + "\n".join(each[:300] for each in results)
        yield Usage(prompt_tokens=10, completion_tokens=5, calls=1, model="working")
        self._point("model.answered")


def strike_inside_tools(point: Callable[[str], None]) -> None:
    """
    In a process that is to die: moments before and after what the tools do, and a sandbox that counts as proved.

    It was: the tests of the sandbox prove it. Here each life would have to wait for the trial.
    """
    from agent_core.children import command_sandbox, order
    from agent_core.media.media_client import ProviderPictures
    from agent_core.tools.dav.dav_client import DavClient
    from agent_core.tools.files.journaled_files import JournaledFiles
    from agent_core.tools.web.web_fetch import WebFetchTool
    from gateway.proactive.appointment_reminders import AppointmentReminders

    def asynchronous(owner: Any, name: str, moment: str) -> None:
        inner = getattr(owner, name)

        async def struck(*arguments: Any, **named: Any) -> Any:
            point(f"{moment}.before")
            result = await inner(*arguments, **named)
            point(f"{moment}.after")
            return result

        setattr(owner, name, struck)

    def synchronous(owner: Any, name: str, moment: str) -> None:
        inner = getattr(owner, name)

        def struck(*arguments: Any, **named: Any) -> Any:
            point(f"{moment}.before")
            result = inner(*arguments, **named)
            point(f"{moment}.after")
            return result

        setattr(owner, name, struck)

    asynchronous(order, "run", "shell")
    asynchronous(WebFetchTool, "execute", "web")
    asynchronous(ProviderPictures, "make", "image")
    asynchronous(DavClient, "_sent", "calendar")
    asynchronous(AppointmentReminders, "_notify", "reminder")
    asynchronous(AppointmentReminders, "_notify_together", "reminders")
    synchronous(JournaledFiles, "replace", "files")
    made = command_sandbox.CommandSandbox.__init__
    held = command_sandbox.Proof(held=True, told="it was proved before")

    def begin(self: Any, folders: Any, **told: Any) -> None:
        made(self, folders, **told)
        self.proof = held

    async def prove(self: Any) -> command_sandbox.Proof:
        return held

    command_sandbox.CommandSandbox.__init__ = begin  # type: ignore[method-assign]
    command_sandbox.CommandSandbox.prove = prove  # type: ignore[method-assign]
