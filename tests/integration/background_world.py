"""A model that starts background jobs, and a house with a gateway for it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio

from agent_core.models import (
    Message,
    ToolCall,
)
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import LoopbackServer
from tests.integration.gateway_world import Scenario, world

ANN, BOB = "@ann:hs.test", "@bob:hs.test"
IS_JOB = "[This is the background job"


class Worker(StreamingModel):
    """
    Starts a job for ``start TEXT``; what a job is told to do it does by waiting for ``gate`` and saying so.

    ``seen`` are the names of the tools of each request, of conversations and of jobs.
    """

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.gate.set()
        self.began: list[str] = []
        self.tools: dict[str, set[str]] = {"job": set(), "conversation": set()}
        self.prompts: list[str] = []
        self.in_job: Callable[[str, Sequence[Message]], Any] | None = None

    async def answer(self, messages, tools):
        last = messages[-1]
        wish = next(message.content for message in reversed(messages) if message.role == "user")
        self.prompts.append("\n".join(message.content for message in messages))
        is_job = IS_JOB in wish
        names = self.tools["job" if is_job else "conversation"]
        names |= {tool.name for tool in tools}
        for tool in tools:  # those that could be found are there, too
            if tool.name == "find_tools":
                names |= set(tool.description.rpartition("Available: ")[2].rstrip(".").split(", "))
        fresh = last.role != "tool" or "was not loaded" in last.content
        said = wish.splitlines()[-1]
        if is_job:
            if self.in_job is not None and fresh and (step := self.in_job(said, messages)):
                yield step
                return
            self.began.append(said)
            await self.gate.wait()
            yield f"done: {said}" if last.role != "tool" else f"done: {said} ({last.content})"
        elif not fresh:
            yield f"so: {last.content}"
        elif found := re.search(r"start (.*)", said):
            yield ToolCall(id="1", name="start_job", arguments={"goal": found[1], "name": "a task"})
        elif found := re.search(r"behind (.*)", said):
            yield ToolCall(id="1", name="run_in_background", arguments={"command": found[1]})
        elif found := re.search(r"(jobs|job_output|stop_job) ?(\w*)$", said):
            arguments = {"id": found[2]} if found[2] else {}
            yield ToolCall(id="1", name=found[1], arguments=arguments)
        else:
            yield f"heard: {said}"


@asynccontextmanager
async def house(
    root: Path,
    model: Worker,
    server: LoopbackServer | None = None,
    allow: str = "owner",
    tools: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[Scenario]:
    async with world(
        root,
        server=server,
        name="matrix",
        settings={
            "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
            "tools": {"jobs": {"allow": allow}, **tools},
            **settings,
        },
        models={"demo": model},
    ) as one:
        yield one


def texts(one: Scenario, person: str = ANN) -> list[str]:
    return [message.text for message in one.server.seen(f"dm-{person}")]


async def until(what: Callable[[], bool], within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not what():
            await anyio.sleep(0.02)


def started_in(text: str) -> str:
    found = re.search(r"Started as (\w{6})", text)
    assert found, text
    return found[1]


async def until_idle(one: Scenario) -> None:
    with anyio.fail_after(60):
        while {"ready", "running"} & set(await one.inbox()):
            await anyio.sleep(0.02)
