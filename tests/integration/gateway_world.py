"""A whole gateway inside of the test, on a loopback server: for faults that can be seen from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from agent_core.messages import Amendment, InboundMessage
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.supervision.gateway import Gateway
from gateway.system.home import open_home
from tests.doubles.loopback import Delivered, LoopbackChannel, LoopbackServer
from tests.running_gateway import running


@dataclass(slots=True)
class Scenario:
    """A running gateway and its server. ``ended`` is set when `Gateway.run` has returned."""

    server: LoopbackServer
    built: Gateway
    ended: anyio.Event

    async def asked(self, text: str, *, person: str = "ann", within_s: float = 60.0) -> Delivered:
        """Say something and wait for the next message in that conversation."""
        place = f"dm-{person}"
        before = len(self.server.seen(place))
        self.server.say(person, text)
        return (await self.server.answers(before + 1, conversation=place, within_s=within_s))[-1]

    async def hand_over(self, *messages: InboundMessage, amendments: Sequence[Amendment] = ()) -> None:
        """Let the channel accept what the loopback server has no words for."""
        (watched,) = (w for w in self.built.supervisor._watched.values() if w.channel.name != "heartbeat")
        await watched.inbox.accept(messages, None, amendments)

    async def inbox(self) -> dict[str, int]:
        """How many messages are in which state."""
        return {
            state: count
            for state, count in (await self.built.store.maintenance.stats()).inbox.items()
            if count
        }


@asynccontextmanager
async def world(
    root: Path,
    *,
    server: LoopbackServer | None = None,
    queue: str = "each",
    name: str = "loopback",
    settings: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> AsyncIterator[Scenario]:
    """
    Run a gateway on ``root`` with the demo model, for the length of the block; then drain it.

    ``name`` is that of its channel: only a real one, such as ``matrix``, can have an owner.
    """
    server = server or LoopbackServer()
    built = await build(
        Settings.model_validate(settings or {}),
        open_home(root),
        Overrides(
            **{
                "channels": {name: (LoopbackChannel(server, name=name), queue)},
                "allow_from": {name: ("*",)},
                **overrides,
            },
        ),
    )
    async with running(built) as ended:
        yield Scenario(server, built, ended)
