"""A check-in through the whole gateway: it reaches the owner's own conversation, or nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agent_core.messages import OutboundKind
from channels.base import DeliveryFailed
from channels.heartbeat.channel import HeartbeatChannel
from channels.heartbeat.config import HeartbeatConfig
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.supervision.gateway import Gateway
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import LoopbackChannel, LoopbackServer


class Watchman(StreamingModel):
    """A model that says what it is told to say at every check-in, and echoes otherwise."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.ticks = 0

    async def answer(self, messages, tools):
        tick = "buy milk" in messages[-1].content
        self.ticks += tick
        yield self.says if tick else "noted"


@asynccontextmanager
async def running(root: Path, server: LoopbackServer, model: Watchman) -> AsyncIterator[Gateway]:
    settings = Settings.model_validate(
        {"owner": {"aliases": [{"channel": "matrix", "address": "@ann:hs.test"}]}}
    )
    home = open_home(root)
    (home.root / "workspace" / "HEARTBEAT.md").write_text("- [ ] buy milk\n")
    schedule = HeartbeatConfig(interval_minutes=0.01).schedule()
    clock = SystemClock()
    checklist = home.root / "workspace" / "HEARTBEAT.md"
    built = await build(
        settings,
        home,
        Overrides(
            channels={"matrix": (LoopbackChannel(server, name="matrix"), "each")},
            heartbeat=lambda log: HeartbeatChannel(schedule, checklist=checklist, clock=clock, log=log),
            allow_from={"matrix": ("*",)},
            models={"demo": model},
        ),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        try:
            yield built
        finally:
            built.stop()


async def settled_ticks(built: Gateway) -> int:
    rows = await built.store.inbox.rows(limit=200)
    return sum(row.message.kind == "tick" and row.state == "settled" for row in rows)


async def until(condition, within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not await condition():
            await anyio.sleep(0.05)


async def test_an_alert_reaches_the_owner_where_the_owner_has_written(tmp_path):
    """After the owner has written directly, an alert comes into that conversation as an alert."""
    server, model = LoopbackServer(), Watchman("The milk is out.")
    async with running(tmp_path, server, model):
        server.say("@bob:hs.test", "hello")
        server.say("@ann:hs.test", "hello")
        await until(lambda: _any_alert(server))
    alerts = [message for message in server.delivered if message.kind is OutboundKind.ALERT]
    assert {message.conversation for message in alerts} == {"dm-@ann:hs.test"}
    assert {message.text for message in alerts} == {"The milk is out."}


async def _any_alert(server: LoopbackServer) -> bool:
    return any(message.kind is OutboundKind.ALERT for message in server.delivered)


@pytest.mark.parametrize("says", ["HEARTBEAT_OK", "HEARTBEAT_OK, all is well."])
async def test_nothing_to_say_is_silence(tmp_path, says):
    """The token ends a check-in without a message to anybody, and the tick is settled."""
    server, model = LoopbackServer(), Watchman(says)
    async with running(tmp_path, server, model) as built:
        server.say("@ann:hs.test", "hello")

        async def two_ticks() -> bool:
            return model.ticks >= 2 and await settled_ticks(built) >= 2

        await until(two_ticks)
    assert [message.kind for message in server.delivered] == [OutboundKind.REPLY]


async def test_another_persons_message_makes_no_target(tmp_path):
    """Who has written is not who is told: an alert goes into the conversation that was made for the owner."""
    server, model = LoopbackServer(), Watchman("The milk is out.")
    async with running(tmp_path, server, model):
        server.say("@bob:hs.test", "hello")
        await until(lambda: _any_alert(server))
    alerts = [message for message in server.delivered if message.kind is OutboundKind.ALERT]
    assert {message.conversation for message in alerts} == {"dm-@ann:hs.test"}


async def test_without_a_conversation_nobody_is_asked_and_nothing_is_spent(tmp_path, monkeypatch):
    """Where none can be made for the owner, ticks are settled without a model call."""

    async def refused(*_, **__):
        raise DeliveryFailed("nobody of this name")

    monkeypatch.setattr(LoopbackChannel, "direct_session", refused)
    server, model = LoopbackServer(), Watchman("The milk is out.")
    async with running(tmp_path, server, model) as built:
        server.say("@bob:hs.test", "hello")

        async def two_ticks() -> bool:
            return await settled_ticks(built) >= 2

        await until(two_ticks)
    assert model.ticks == 0
    assert all(message.kind is OutboundKind.REPLY for message in server.delivered)
