"""A whole gateway with a heartbeat and a schedule on loopback channels, in virtual or real time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio

from agent_core.llm.demo.demo_model import DemoModel
from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition
from channels.heartbeat import channel as heartbeat_channel
from channels.heartbeat.channel import HeartbeatChannel
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.supervision.gateway import Gateway
from gateway.system.home import open_home
from tests.clock import EPOCH, ManualClock
from tests.doubles.loopback import Delivered, LoopbackChannel, LoopbackServer
from tests.running_gateway import running

__all__ = ["ANN", "ANN_MAIL", "BOB", "CountingModel", "Harness", "Weeks", "house"]

ANN, BOB, ANN_MAIL = "@ann:hs.test", "@bob:hs.test", "ann@mail.test"


Say = str | float | ToolCall | Exception | tuple[float, str]
"""What a model does at a check-in: say it, take so many seconds and say nothing (or this), call a tool, fail."""


class CountingModel:
    """Says what it is told to say at check-ins, is the demo model otherwise, and counts what it is asked."""

    def __init__(self, *says: Say) -> None:
        self.says = list(says)
        self.asked: list[Sequence[Message]] = []
        self.ticks = 0
        self._demo = DemoModel()

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        self.asked.append(tuple(messages))
        tick = any("This is the regular check-in" in each.content for each in messages)
        if not tick or not self.says:
            return await self._demo.chat(messages, tools, stream=stream)
        self.ticks += 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, Exception):
            raise said

        async def answer() -> AsyncIterator[ModelChunk]:
            if isinstance(said, float):
                await anyio.sleep(said)
            elif isinstance(said, tuple):
                await anyio.sleep(said[0])
                yield said[1]
            else:
                yield said

        return answer()


class Weeks:
    """A clock that the heartbeat's waiting moves: so many days pass as quickly as they are lived."""

    def __init__(self, days: float) -> None:
        self.clock = ManualClock()
        self.end = EPOCH + timedelta(days=days)
        self.over = anyio.Event()
        self.began = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        await self.began.wait()
        await anyio.sleep(0)
        if self.clock.now() >= self.end:
            self.over.set()
            await anyio.sleep_forever()
        self.clock.advance(seconds)

    async def pass_by(self) -> None:
        self.began.set()
        await self.over.wait()


@dataclass(slots=True)
class Harness:
    """A running gateway, its servers and what they have shown."""

    built: Gateway
    chat: LoopbackServer
    mail: LoopbackServer
    model: CountingModel
    checklist: Path
    ended: anyio.Event

    @property
    def plans(self) -> Any:
        """Jobs, ledger and digest."""
        return self.built.proactive.plans

    async def ledger(self, name: str = "heartbeat") -> list[tuple[str, str]]:
        """Outcome and reason of each line, oldest first."""
        return [(one.outcome.value, one.reason) for one in reversed(await self.plans.ledger(name=name))]

    async def until(self, condition: Callable[[], Any], *, within_s: float = 60.0) -> None:
        """Wait until ``condition`` gives something true; it may be asynchronous."""
        with anyio.fail_after(within_s):
            while True:
                found = condition()
                if hasattr(found, "__await__"):
                    found = await found
                if found:
                    return
                await anyio.sleep(0.03)

    async def asked(self, person: str, text: str, **more: Any) -> str:
        """Say something in the chat and wait for the next message there."""
        place = more.get("conversation") or f"dm-{person}"
        before = len(self.chat.seen(place))
        self.chat.say(person, text, **more)
        return (await self.chat.answers(before + 1, conversation=place))[-1].text

    def alerts(self) -> list[Delivered]:
        """The proactive messages of both servers."""
        return [
            one for one in (*self.chat.delivered, *self.mail.delivered) if one.kind in ("alert", "notice")
        ]


@asynccontextmanager
async def house(
    root: Path,
    *says: Say,
    heartbeat: Mapping[str, Any] | None = None,
    schedule: Mapping[str, Any] | None = None,
    checklist: str | None = "- [ ] buy milk\n",
    chat: LoopbackServer | None = None,
    mail: LoopbackServer | None = None,
    clock: Any = None,
    sleep: Callable[[float], Any] | None = None,
    allow: Mapping[str, tuple[str, ...]] | None = None,
    groups: Sequence[str] = (),
    budget: Mapping[str, Any] | None = None,
    model: Any = None,
    owner: Sequence[tuple[str, str]] = (("matrix", ANN), ("email", ANN_MAIL)),
    more: Mapping[str, Any] | None = None,
    mailbox: Any = None,
    **overrides: Any,
) -> AsyncIterator[Harness]:
    """Run one on ``root``: a chat ("matrix") and mail ("email"), with the owner Ann on both. ``mailbox``: a real one."""
    config = {"interval_minutes": 0.01, "timezone": "UTC", **(heartbeat or {})}
    settings = Settings.model_validate(
        {
            "owner": {"aliases": [{"channel": channel, "address": address} for channel, address in owner]},
            "llm": {"budget": dict(budget or {})},
            "agents": {
                "heartbeat": config,
                "schedule": {"min_interval_minutes": 0.01, "timezone": "UTC", **(schedule or {})},
            },
            **(more or {}),
        }
    )
    beat = settings.agents.heartbeat
    home = open_home(root)
    path = home.root / "workspace" / "HEARTBEAT.md"
    if checklist is not None:
        path.write_text(checklist)
    chat, mail, model = chat or LoopbackServer(), mail or LoopbackServer(), model or CountingModel(*says)
    chat.groups.update(groups)
    from gateway.system.clock import SystemClock

    clock = clock or SystemClock()
    channels: dict[str, Any] = {
        "matrix": (LoopbackChannel(chat, name="matrix"), "each"),
        "email": (mailbox or LoopbackChannel(mail, name="email", email_style=True), "each"),
    }
    if beat.enabled:
        overrides["heartbeat"] = lambda log: HeartbeatChannel(
            beat.schedule(),
            checklist=path,
            clock=clock,
            watches=beat.watch,
            log=log,
        )
    built = await build(
        settings,
        home,
        Overrides(
            clock=clock,
            channels=channels,
            allow_from=allow or {"matrix": ("*",), "email": ("*",)},
            models={"demo": model},
            **overrides,
        ),
    )
    with patch.object(heartbeat_channel, "sleep", sleep or anyio.sleep):
        async with running(built) as ended:
            yield Harness(built, chat, mail, model, path, ended)
