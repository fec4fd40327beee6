"""The terminal keeps the parts of the contract that apply to a channel without a server."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager

import anyio
import pytest

from agent_core.messages import SessionKey
from channels.base import ChannelUnavailable
from channels.terminal import Answer, TerminalChannel
from tests.contract import channel as contract


class _Crashed(Exception):
    """The client breaks off."""


class TerminalFarSide(contract.FarSide):
    """A client with a screen per session: it reattaches, says again what is not accepted, and compares ids."""

    session = SessionKey("terminal", "main")
    other_session = SessionKey("terminal", "other")
    account = "local"

    def __init__(self, group) -> None:
        super().__init__()
        self._group = group
        self._typed = {}
        self._shown = {"main": {}, "other": {}}
        self._links = []
        self._next = "show"
        self._channel = None

    def channel(self):
        for link in self._links:
            link.close()
        self._links.clear()
        self._next = "show"
        self._channel = TerminalChannel()
        self._attach("main")
        self._attach("other")
        return self._channel

    def _attach(self, name):
        link = self._channel.attach(name)
        self._links.append(link)
        self._group.start_soon(self._watch, link, name)

    async def _watch(self, link, name):
        try:
            async with link:
                async for event in link:
                    if isinstance(event, Answer):
                        self._shown[name].setdefault(event.id, event.text)
                        if self._next == "crash":
                            self._next = "show"
                            raise _Crashed
                        if self._next == "stall":
                            self._next = "show"
                            # Longer than it takes to cut the delivery, shorter than the next one waits.
                            await anyio.sleep(0.3)
        except _Crashed:
            self._attach(name)

    async def say(self, text, *, session=None):
        self._group.start_soon(self._say, text, session or self.session)

    async def _say(self, text, session):
        native_id = secrets.token_hex(8)
        before = list(self._typed.values())[-1:]
        self._typed[native_id] = accepted = anyio.Event()
        for event in before:
            await event.wait()
        while not accepted.is_set():
            try:
                link = next(link for link in self._links if link.session == session)
                await link.say(text, native_id=native_id)
            except (StopIteration, ChannelUnavailable):
                await anyio.sleep(0.01)
            else:
                accepted.set()

    async def seen(self, session=None):
        await anyio.sleep(0.02)
        return list(self._shown[(session or self.session).conversation].values())

    async def lose_answer(self):
        self._next = "crash"

    async def stall_answer(self):
        self._next = "stall"


class TestTerminal(
    contract.ReceivingContract,
    contract.DeliveryContract,
    contract.LostAnswerContract,
    contract.PrivacyContract,
    contract.CloseContract,
):
    @asynccontextmanager
    async def far_side(self):
        async with anyio.create_task_group() as group:
            far = TerminalFarSide(group)
            failure = None
            try:
                yield far
            except (Exception, pytest.fail.Exception) as error:
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _is_known_to_wait(self, far):
        """What a person is about to type is nothing that waits: this channel is UP from the start."""
        return False
