"""A whole gateway with one account on a real homeserver, and a model that answers as it is told."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio

from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.system.home import open_home
from tests.daemon import one_model
from tests.doubles.agent import ModelScript
from tests.integration.matrix_bot import call
from tests.integration.matrix_talk import shown
from tests.running_gateway import running


class Harness:
    """A running gateway with one Matrix account, and a model that answers as it is told."""

    def __init__(self, built, model, user_id):
        self.built = built
        self.model = model
        self.user_id = user_id

    async def room(self, peer, *others, direct=True):
        room = await call(peer.create_room, [self.user_id], is_direct=direct)
        with anyio.fail_after(60):
            while self.user_id not in await call(peer.members, room):
                await anyio.sleep(0.05)
        for other in others:
            await call(peer.invite, room, other.user_id)
            await call(other.join, room)
        return room

    async def answers(self, peer, room, count, *, within_s=60):
        """What the person sees of the bot, as soon as there is so much of it."""
        with anyio.move_on_after(within_s):
            while len(found := await self.seen(peer, room)) < count:
                await anyio.sleep(0.05)
            return found
        raise AssertionError(f"waited in vain for {count}: {found}, asked {len(self.model.requests)}")

    async def seen(self, peer, room):
        events = await call(peer.history, room, limit=500)
        return shown([one for one in events if one.sender == self.user_id and one.content])

    async def asked(self, count, *, within_s=60):
        """The questions to the model, as soon as there are so many."""
        with anyio.fail_after(within_s):
            while len(self.model.requests) < count:
                await anyio.sleep(0.02)
        return [request[-1].content for request in self.model.requests]


@asynccontextmanager
async def open_house(
    url,
    bot,
    folder,
    *answers,
    allow=(),
    owner=None,
    approval="none",
    approvals=None,
    tools=(),
    model=None,
    **matrix,
):
    """Run a gateway in a folder for the length of the block; then drain it."""
    model = model or ModelScript(*answers)
    settings = {
        "llm": one_model("m"),
        "agents": {"heartbeat": {"enabled": False}},
        "tools": approvals or {},
        "owner": {"aliases": [owner.user_id] if owner is not None else []},
        "channels": {
            "matrix": {
                "homeserver": url,
                "user_id": bot.user_id,
                "password": bot.password,
                "allow_from": [one.user_id for one in allow],
                "trust_devices": "all",  # the people of the tests have no cross-signing
                **matrix,
            }
        },
    }
    built = await build(
        Settings.model_validate(settings),
        open_home(folder),
        Overrides(models={"m": model}, approval={"matrix": approval}, tools=tools),
    )
    async with running(built):
        yield Harness(built, model, bot.user_id)
