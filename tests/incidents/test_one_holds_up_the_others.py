"""
One guest kept everybody else waiting: twenty open verifications were all there were, for all people together, and each
step of one waited for the steps of the others, whose servers did not answer.
"""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from channels.matrix.crypto.verification import MAX_OPEN, MAX_OPEN_EACH, METHOD, Verifications
from tests.clock import LoopClock

pytestmark = pytest.mark.virtual_time
BOT, OWNER, GUEST = "@bot:hs.test", "@owner:hs.test", "@guest:slow.test"


class Keys:
    """What a verification needs of the keys; the devices of people at a slow server never come."""

    device_id = "BOT"

    async def ready(self):
        return self

    async def learn_devices(self, people):
        if any("slow" in person for person in people):
            await anyio.sleep(60)

    async def send_to_device(self, kind, user_id, device_id, content):
        await anyio.lowlevel.checkpoint()


class Setup:
    def __init__(self):
        self.sent = []
        self.verifications = Verifications(
            Keys(), LoopClock(), user_id=BOT, allows=lambda _: True, send_in_room=self.send_in_room
        )

    async def send_in_room(self, room_id, kind, content):
        await anyio.lowlevel.checkpoint()
        self.sent.append((room_id, kind.removeprefix("m.key.verification.")))

    def ask(self, person, event_id, room="!r:hs.test"):
        content = {
            "msgtype": "m.key.verification.request",
            "to": BOT,
            "from_device": "D",
            "methods": [METHOD],
        }
        event = {"type": "m.room.message", "event_id": event_id, "sender": person, "content": content}
        self.verifications.learn(room, event)

    @asynccontextmanager
    async def running(self):
        async with anyio.create_task_group() as group:
            group.start_soon(self.verifications.run)
            yield
            group.cancel_scope.cancel()

    def open_of(self, person):
        return [key for key in self.verifications._open if key[0] == person]


async def test_the_steps_of_somebody_whose_server_is_slow_hold_up_nobody():
    """Fifty requests of a guest take an hour; the owner's is answered at once."""
    it = Setup()
    async with it.running():
        for number in range(200):
            it.ask(GUEST, f"$g{number}", "!guest:slow.test")
        await anyio.sleep(0.1)
        it.ask(OWNER, "$mine")
        await anyio.sleep(0.1)
        assert it.sent == [("!r:hs.test", "ready")]
        await anyio.sleep(3600)

    assert 10 < len(it.sent) <= 51  # the guest's own are bounded, too


async def test_the_verifications_of_a_person_are_that_persons_own():
    """However many somebody opens, there is a place for another, and for their own newest."""
    it = Setup()
    async with it.running():
        for number in range(45):
            it.ask("@mallory:hs.test", f"$m{number}")
        await anyio.sleep(1)
        it.ask(OWNER, "$mine")
        await anyio.sleep(1)
        newest = [key[1] for key in it.open_of("@mallory:hs.test")]

    assert newest == [f"$m{number}" for number in range(45 - MAX_OPEN_EACH, 45)]
    assert it.open_of(OWNER) == [(OWNER, "$mine")]


async def test_a_crowd_is_bounded_and_shares():
    """When there are too many altogether, those who have most give way."""
    it = Setup()
    async with it.running():
        for number in range(MAX_OPEN * 2):
            it.ask(f"@p{number % 150}:hs.test", f"${number}")
            await anyio.sleep(0.01)
        it.ask(OWNER, "$mine")
        await anyio.sleep(1)

    assert len(it.verifications._open) == MAX_OPEN
    assert len({user for user, _ in it.verifications._open}) == 151


async def test_what_was_asked_between_two_runs_is_answered_by_the_next():
    """A run that ended in the middle of somebody's step leaves nobody without one for good."""
    it = Setup()
    async with it.running():
        it.ask(GUEST, "$g")
        await anyio.sleep(1)
    it.ask(GUEST, "$g2")
    async with it.running():
        await anyio.sleep(120)

    assert it.sent == [("!r:hs.test", "ready")]
