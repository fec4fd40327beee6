"""
Notices that a message cannot be read were sent one after the other: one to a room whose server hangs held up those to all
others. And of edits that came before their messages the newest two hundred of all people together were kept: a flood of
one person's pushed out another's, who was answered by what they had not meant.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import anyio
import pytest

from agent_core.messages import Amendment
from channels.base import ChannelMisconfigured, ChannelUnavailable
from channels.matrix.crypto.undecryptable import PATIENCE_S, WAITING
from channels.matrix.events.edits import EarlyEdits
from channels.matrix.receive.decryption import Decryption
from tests.clock import LoopClock
from tests.doubles.homeserver import ANYBODY

pytestmark = pytest.mark.virtual_time
NIA, MALLORY = "@nia:hs.test", "@mallory:evil.test"
SLOW, GOOD = "!slow:evil.test", "!good:hs.test"


class Setup:
    """The part that tells people; ``tells`` says what comes of it by room: a time, or an error."""

    def __init__(self, tells):
        async def idle():
            await anyio.sleep_forever()

        self.keys = SimpleNamespace(repair=anyio.lowlevel.checkpoint, to_repair=anyio.Event())
        others = SimpleNamespace(learn=lambda *_: None, run=idle)
        self.clock = LoopClock()
        self.reading = Decryption(
            None, None, self.keys, others, self.clock, user_id="@bot:hs.test", rules=ANYBODY
        )
        self.tells = tells
        self.begun = []
        self.told = []
        self.saved = []

    def waits(self, room_id, event_id, sender=NIA):
        now = self.clock.now().timestamp() - PATIENCE_S
        self.reading._waiting.add(room_id, event_id, "s", sender=sender, now=now)

    async def tell(self, room_id, _text, once, _people):
        self.begun.append((room_id, once))
        does = self.tells.get(room_id, 0)
        if isinstance(does, list):
            does = does.pop(0) if does else 0
        if isinstance(does, Exception):
            raise does
        await anyio.sleep(does)
        self.told.append(room_id)

    async def save(self, positions):
        self.saved.append(
            {one["event_id"] for one in json.loads(positions()[WAITING])["references"] if one["told"]}
        )

    async def run_for(self, seconds):
        with anyio.move_on_after(seconds):
            await self.reading.run(self.tell, self.save)


async def test_a_slow_room_holds_up_no_other():
    """Each is told in its own time, once, and only then does that count as said."""
    it = Setup({SLOW: 1000})
    it.waits(SLOW, "$slow", MALLORY)
    it.waits(GOOD, "$good")
    await it.run_for(900)

    assert it.told == [GOOD]
    assert it.saved == [{"$good"}]
    assert [room for room, _ in it.begun] == [SLOW, GOOD]


async def test_what_comes_meanwhile_in_the_slow_room_gets_no_notice_beside():
    """One notice at a time for a room and reason, however many messages come."""
    it = Setup({SLOW: 50})
    it.waits(SLOW, "$0", MALLORY)
    async with anyio.create_task_group() as group:
        group.start_soon(it.run_for, 100)
        await anyio.sleep(10)
        it.waits(SLOW, "$1", MALLORY)
        it.reading._wake()
        await anyio.sleep(30)
        assert [room for room, _ in it.begun] == [SLOW]

    assert [room for room, _ in it.begun] == [SLOW]  # the second one was about the same
    assert not it.reading._waiting.next_at()


async def test_what_could_not_be_said_is_said_later():
    """Under the same key, so that it is seen once; a room that refuses is not asked again."""
    it = Setup(
        {
            SLOW: [ChannelUnavailable("not now"), ChannelUnavailable("not now")],
            GOOD: ChannelMisconfigured("no"),
        }
    )
    it.waits(SLOW, "$slow", MALLORY)
    it.waits(GOOD, "$good")
    await it.run_for(60)

    assert it.told == [SLOW]
    assert sorted(room for room, _ in it.begun) == [GOOD, SLOW, SLOW, SLOW]
    assert len({once for room, once in it.begun if room == SLOW}) == 1
    assert it.saved[-1] == {"$slow", "$good"}


def edit(number, sender):
    return Amendment(kind="replace", native_id=f"${sender}{number}", sender=sender, text="meant")


@pytest.mark.parametrize("owner", [NIA, "@else:hs.test"])
def test_edits_of_one_person_push_out_their_own(owner):
    """Known as the owner or not, and the newest of the flood are kept."""
    early = EarlyEdits(lambda person: person == owner)
    early.keep(GOOD, edit(0, NIA))
    for number in range(1000):
        early.keep(SLOW, edit(number, MALLORY))

    assert early.take(GOOD, f"${NIA}0", NIA) == "meant"
    assert early.take(SLOW, f"${MALLORY}999", MALLORY) == "meant"
    assert early.take(SLOW, f"${MALLORY}1", MALLORY) is None


def test_edits_of_a_crowd_do_not_push_out_the_owner_s():
    """The control: another's are among those that go."""
    for owner, kept in [(NIA, "meant"), ("@else:hs.test", None)]:
        early = EarlyEdits(lambda person, owner=owner: person == owner)
        early.keep(GOOD, edit(0, NIA))
        for number in range(1000):
            early.keep(SLOW, edit(0, f"@{number}:evil.test"))

        assert early.take(GOOD, f"${NIA}0", NIA) == kept
