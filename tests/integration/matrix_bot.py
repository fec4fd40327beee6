"""A Matrix account for the channel in integration tests, and what a test does with people and rooms."""

from __future__ import annotations

import secrets
import time
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import LinkState
from channels.matrix.assembly import connect_by_nio, nio_machines
from channels.matrix.config import MatrixConfig
from gateway.system.clock import SystemClock
from tests.doubles.accounts import matrix_channel
from tests.doubles.inbox import MemoryInbox, running
from tests.integration.secret_peer import SecretPeer


async def call(function, *args, **kwargs):
    """
    The peers block; they run in a thread. Those with keys of their own block the loop for a moment instead: nio binds
    its tables to one store at a time in the whole process, so two threads would write into each other's.
    """
    if function is SecretPeer or isinstance(getattr(function, "__self__", None), SecretPeer):
        return function(*args, **kwargs)
    return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), abandon_on_cancel=True)


class Bot:
    """A Matrix account for the channel, its state folder and its inbox, which survive the channel."""

    def __init__(self, credentials, url, folder, **settings):
        self.credentials = credentials
        self.user_id = credentials.user_id
        self.url = url
        self.folder = folder
        self.settings = settings
        self.inbox = MemoryInbox()
        self.marks = 0
        self.attachments = None
        self.connect = settings.pop("connect", None)
        """Makes the connection in place of the channel's own."""

    def config(self, **changes):
        settings = {
            "homeserver": self.url,
            "user_id": self.user_id,
            "password": self.credentials.password,
            "trust_devices": "all",  # the people of the tests have no cross-signing
            **self.settings,
            **changes,
        }
        return MatrixConfig(**settings)

    def channel(self, *, encryption=True, **changes):
        """``encryption=False``: a channel that has none, as if what it needs were not there."""
        return matrix_channel(
            "matrix",
            self.config(**changes),
            state_dir=self.folder,
            clock=SystemClock(),
            connect=self.connect if encryption else connect_by_nio,
            machines=nio_machines if self.connect and encryption else None,
            attachments=self.attachments,
        )

    @asynccontextmanager
    async def up(self, **changes):
        """A channel that runs and has caught up."""
        channel = self.channel(**changes)
        self.inbox.states.clear()
        try:
            async with running(channel, self.inbox) as run:
                channel.test_run = run
                with anyio.fail_after(60):
                    while self.inbox.state is not LinkState.UP and not run.ended.is_set():
                        await anyio.sleep(0.01)
                if run.error is not None:
                    raise run.error
                yield channel
        finally:
            await channel.aclose()

    def message(self, room, text="an answer", **fields):
        values = {
            "id": secrets.token_hex(8),
            "channel": "matrix",
            "account": self.user_id,
            "session": SessionKey("matrix", room),
            "text": text,
            "created_at": SystemClock().now(),
        }
        return OutboundMessage(**{**values, **fields})

    async def mark(self):
        self.marks += 1


async def joined_room(user, bot, *, version=None, direct=True, name=None):
    """A room with the bot in it; the channel runs and takes the invitation."""
    room = await call(user.create_room, [bot.user_id], is_direct=direct, room_version=version, name=name)
    with anyio.fail_after(60):
        while bot.user_id not in await call(user.members, room):
            await anyio.sleep(0.05)
    return room


async def bodies(user, room, sender):
    return [event.body for event in await call(user.history, room, limit=500) if event.sender == sender]


async def wait_until(user, condition, *, within_s=60):
    with anyio.fail_after(within_s):
        while not condition():
            await call(user.sync, 1.0)


def bot_joined(user, room, user_id):
    deadline = time.monotonic() + 15
    while user_id not in user.members(room):
        assert time.monotonic() < deadline
        time.sleep(0.05)
