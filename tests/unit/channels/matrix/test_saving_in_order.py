"""The positions of one account are committed one after the other, each as it is when it is its turn."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from channels.matrix.receive.sync_loop import OPEN_INVITES, SyncReceiver
from channels.matrix.rooms.invites import Invites
from channels.matrix.rooms.room_state import Rooms
from tests.clock import LoopClock

pytestmark = pytest.mark.virtual_time


class Inbox:
    """Keeps the positions; one that is slow stands for a store that is away for a moment."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.texts: list[str] = []
        self.back = anyio.Event()

    async def accept(self, _messages, positions) -> None:
        await self.back.wait()
        self.texts += positions.values()
        self.kept |= positions


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "control"])
async def test_a_notice_that_waits_for_a_commit_writes_no_older_text_over_a_newer(in_order):
    inbox, commit, waiting = Inbox(), anyio.Lock(), ["older"]
    receiver = SimpleNamespace(fetching=SimpleNamespace(commit=commit), _inbox=inbox)

    async def receive() -> None:
        async with commit:
            await inbox.back.wait()
            waiting[:] = ["newer"]
            inbox.kept["waiting"] = waiting[0]

    async def notice() -> None:
        if in_order:
            await SyncReceiver.save(receiver, lambda: {"waiting": waiting[0]})
        else:
            await inbox.accept([], {"waiting": waiting[0]})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(notice)
        await anyio.wait_all_tasks_blocked()
        inbox.back.set()
    assert (inbox.kept["waiting"] == "newer") is in_order


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "control"])
async def test_invitations_that_wait_for_a_commit_write_no_older_text_over_a_newer(in_order):
    """A list with one invitation waits behind a commit in which there are two."""
    inbox, commit = Inbox(), anyio.Lock()
    receiver = SimpleNamespace(fetching=SimpleNamespace(commit=commit), _inbox=inbox)
    receiver.save = lambda positions: SyncReceiver.save(receiver, positions)
    invites = Invites(
        SimpleNamespace(),
        Rooms("@bot:hs.test"),
        LoopClock(),
        user_id="@bot:hs.test",
        may_invite=lambda _: False,
    )

    async def save(dump) -> None:
        if in_order:
            await SyncReceiver.save_invites(receiver, dump)
        else:
            await inbox.accept([], {OPEN_INVITES: dump()})

    def invite(name: str) -> None:
        invites.follow("!old:hs.test", name, "@al:hs.test", direct=False, joined=True)
        invites.wake()

    async def receive() -> None:
        async with commit:
            await inbox.back.wait()
            invite("!two:hs.test")
            inbox.kept[OPEN_INVITES] = invites.dump()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(invites._keep, save)
        await anyio.wait_all_tasks_blocked()
        invite("!one:hs.test")
        await anyio.wait_all_tasks_blocked()
        inbox.back.set()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert ("!two:hs.test" in inbox.texts[0]) is in_order
    assert "!two:hs.test" in inbox.kept[OPEN_INVITES]
