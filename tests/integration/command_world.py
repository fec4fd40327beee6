"""What the tests of commands have in common: a model that can be held, and a gateway with an owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from agent_core.errors import ModelUnavailable
from agent_core.models import ToolResult, Usage
from tests.doubles.agent import StreamingModel, call
from tests.doubles.loopback import Delivered
from tests.integration.gateway_world import Scenario, world

__all__ = [
    "ANN",
    "BOB",
    "CID",
    "DM",
    "EVE",
    "SETTINGS",
    "Hanging",
    "Held",
    "Mind",
    "asked",
    "settled",
    "talking",
    "texts",
]

ANN, BOB, CID, EVE = (f"@{name}:hs.test" for name in ("ann", "bob", "cid", "eve"))
DM = f"dm-{ANN}"
SETTINGS = {"owner": {"aliases": [{"channel": "matrix", "address": ANN}]}}


class Mind(StreamingModel):
    """A model that keeps what it is asked, waits at ``gate`` if the question says "slow", and can be away."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.shown: list[str] = []
        self.gate = anyio.Event()
        self.thinking = anyio.Event()
        self.cut_off = 0
        self.away = False
        self.tool = ""

    async def answer(self, messages, tools):
        if self.away:
            raise ModelUnavailable("away")
        question = messages[-1].content
        self.asked.append(question)
        self.shown.append("\n".join(message.content for message in messages))
        if "tool" in question and self.tool:
            yield call(self.tool)
            yield Usage(prompt_tokens=100, completion_tokens=10, calls=1, model="mind")
            return
        self.thinking.set()
        if "slow" in question:
            try:
                await self.gate.wait()
            except BaseException:
                self.cut_off += 1
                raise
        yield f"answer {len(self.asked)}"
        yield Usage(prompt_tokens=100, completion_tokens=10, calls=1, model="mind")


class Hanging:
    """A tool that never comes back, and tells that it was started and left."""

    name, description = "hang", "Hangs."
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}}

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.left = 0

    async def execute(self, **arguments: Any) -> ToolResult:
        self.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.left += 1


class Held:
    """A store in which one call waits, before it is made or after it has been made, until it is let go; only one ``about`` something."""

    def __init__(self, inner: Any, name: str, *, after: bool, about: str = "") -> None:
        self.inner, self.name, self.after, self.about = inner, name, after, about
        self.reached, self.go = anyio.Event(), anyio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name != self.name or self.reached.is_set():
            return method

        async def held(*arguments: Any, **named: Any) -> Any:
            if self.about and self.about not in str(arguments):
                return await method(*arguments, **named)
            if self.after:
                result = await method(*arguments, **named)
                if name == "claim" and result is None:
                    return None
            self.reached.set()
            await self.go.wait()
            return result if self.after else await method(*arguments, **named)

        return held


@asynccontextmanager
async def talking(
    root: Path, mind: Mind, *, queue: str = "merge", settings: Mapping[str, Any] = SETTINGS, **more: Any
) -> AsyncIterator[Scenario]:
    async with world(
        root, queue=queue, name="matrix", settings=settings, models={"demo": mind}, **more
    ) as one:
        yield one


async def settled(one: Scenario, **wanted: int) -> None:
    """Wait until the inbox has these counts and nothing is open."""
    with anyio.fail_after(60):
        while True:
            counts = await one.inbox()
            if all(counts.get(state, 0) == count for state, count in wanted.items()) and not (
                {"ready", "running", "answered"} & counts.keys()
            ):
                return
            await anyio.sleep(0.02)


async def asked(one: Scenario, text: str, *, person: str = ANN) -> Delivered:
    """Say something directly and wait for what is answered."""
    return await one.asked(text, person=person)


def texts(one: Scenario, person: str = ANN) -> list[str]:
    return [message.text for message in one.server.seen(f"dm-{person}")]
