"""Typing that a worker has told of, on virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent_core.messages import SessionKey
from channels.base import Capabilities, Redelivery
from gateway.routing.typing_for_workers import TypingForWorkers

ROOMS = [SessionKey("matrix", f"!{number}:hs") for number in range(150)]


@pytest.fixture
def anyio_backend(virtual_backend):
    return virtual_backend


class Channel:
    """Shows typing; one room of it hangs, one has a defect."""

    def __init__(self, typing: bool = True) -> None:
        self.capabilities = Capabilities(Redelivery.SAME_KEY, typing=typing)
        self.shown: list[tuple[SessionKey, bool]] = []

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        if session == ROOMS[1]:
            await anyio.sleep_forever()
        if session == ROOMS[2]:
            raise RuntimeError("a defect")
        self.shown.append((session, on))


async def shown(
    channel: Channel, *hints: tuple[SessionKey, bool], ours: bool = True
) -> list[tuple[SessionKey, bool]]:
    channels: Any = {"matrix": channel}
    hinting = TypingForWorkers(channels, lambda _: ours)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hinting.run)
        await anyio.sleep(0.1)
        for session, on in hints:
            hinting.show(session, on)
        await anyio.sleep(11)
        hinting.show(ROOMS[3], True)
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    return channel.shown


async def test_the_newest_hint_of_a_room_is_shown_and_none_holds_up_others() -> None:
    """One that hangs is left after ten seconds, one that fails costs nothing."""
    hints = [(ROOMS[0], True), (ROOMS[1], True), (ROOMS[2], True), (ROOMS[0], False)]
    assert await shown(Channel(), *hints) == [(ROOMS[0], False), (ROOMS[3], True)]


async def test_hints_are_bounded_and_only_for_accounts_of_this_process() -> None:
    """A channel that shows no typing is not asked either."""
    assert len(await shown(Channel(), *((room, True) for room in ROOMS[3:]))) == 101
    assert await shown(Channel(), (ROOMS[0], True), ours=False) == []
    assert await shown(Channel(typing=False), (ROOMS[0], True)) == []
