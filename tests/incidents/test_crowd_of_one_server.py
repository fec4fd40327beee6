"""
Whoever runs a homeserver has as many accounts and rooms there as they like: where such a server was let in as a whole
(``@*:evil.test``), its people together kept everybody else waiting for minutes, though none of them alone could. Their
slow files took all the lanes, rooms of which our own server could learn nothing were asked about one after the other,
and the gap of a room that they had flooded was read before what the owner had said elsewhere.
"""

from __future__ import annotations

import anyio
import pytest

from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.receive.decryption import Decryption
from tests.clock import LoopClock
from tests.doubles.homeserver import ANYBODY, member, text
from tests.doubles.inbox import running
from tests.incidents.test_slow_server_of_another import BOT, MINE, OWNER, Setup, file

pytestmark = pytest.mark.virtual_time
CAROL = "@carol:good.test"


class Crowd(Setup):
    def channel(self, **settings):
        patterns = [OWNER, "@*:evil.test", "@*:good.test"]
        return super().channel(allow_from=patterns, is_owner=OWNER.__eq__, **settings)

    async def waits_for(self, event_id):
        """How long it takes until this is accepted, in virtual seconds."""
        async with running(self.channel(), self.inbox):
            begun = anyio.current_time()
            await self.inbox.until(lambda _: event_id in self.ids, within_s=3600)
            return anyio.current_time() - begun


@pytest.fixture
def it(tmp_path):
    return Crowd(tmp_path)


@pytest.mark.parametrize("who", [OWNER, CAROL])
async def test_the_files_of_a_crowd_hold_up_nobody_elses(it, who):
    """400 people of one server send a file each from servers that never answer: it was nine minutes."""
    for start in range(0, 400, 40):
        numbers = range(start, start + 40)
        it.says(*[file(f"$e{n}", f"@u{n}:evil.test", f"m{n}.slow.test") for n in numbers])
    it.says(file("$mine", who, "good.test"), room=MINE)

    assert await it.waits_for("$mine") < 5


async def test_the_owner_waits_for_nobody_of_the_same_server_either(it):
    """However many lanes the other people of the owner's own server have at work."""
    it.says(*[file(f"$e{n}", f"@u{n}:evil.test", f"m{n}.slow.test") for n in range(40)])
    it.says(*[file(f"$g{n}", f"@u{n}:good.test", f"g{n}.slow.test") for n in range(40)])
    it.says(file("$mine", OWNER, "good.test"), room=MINE)

    assert await it.waits_for("$mine") < 5


def crowded_rooms(joined, *, limited):
    rooms = {}
    for n in range(60):
        events = [*joined, text(f"$e{n}", "hello", f"@u{n}:evil.test")]
        rooms[f"!r{n}:evil.test"] = {
            "state": {"events": [member(BOT), member(f"@u{n}:evil.test")]},
            "timeline": {"events": events, "limited": limited, "prev_batch": "p"},
        }
    return rooms


async def test_many_rooms_of_which_our_server_knows_nobody(it):
    """It waits for the server that has let the bot in: 60 rooms of it were four minutes."""
    it.server.hanging = "/members"
    it.server.sync_body(rooms={"join": crowded_rooms([], limited=False)})
    it.says(text("$mine", "hello", OWNER), room=MINE)

    assert await it.waits_for("$mine") < 10


async def test_rooms_that_come_one_after_the_other(it):
    """After the first that hung, the next ones are waited for no longer than for a moment."""
    it.server.hanging = "/members"
    for room_id, room in crowded_rooms([], limited=False).items():
        it.server.sync_body(rooms={"join": {room_id: room}})
    it.says(text("$mine", "hello", OWNER), room=MINE)

    assert await it.waits_for("$mine") < 60 * 2.5 + 5  # it was 60 times 4 seconds


async def test_many_rooms_whose_past_is_at_a_server_that_hangs(it):
    """Let into 60 of them at once: it was eight minutes."""
    it.server.hanging = "/messages"
    it.server.sync_body()
    it.server.sync_body(rooms={"join": crowded_rooms([member(BOT, before="invite")], limited=True)})
    it.says(text("$mine", "hello", OWNER), room=MINE)

    assert await it.waits_for("$mine") < 20


async def test_a_flooded_room_comes_after_the_others(it):
    """What the owner said in another room of the same answer is there before the first page of the gap."""

    def page(call):
        number = len(it.server.asked("GET", "/messages$"))
        before_pages.append("$mine" in it.ids)
        chunk = [text(f"$p{number}-{one}", "x", "@u:evil.test") for one in range(100)]
        return HttpAnswer(200, {"chunk": chunk, **({"end": f"t{number}"} if number < 30 else {})})

    before_pages = []
    it.server.on("GET", "/messages$", page)
    flooded = {
        "timeline": {"events": [text("$last", "x", "@u:evil.test")], "limited": True, "prev_batch": "p"}
    }
    mine = {"timeline": {"events": [text("$mine", "hi", OWNER)], "limited": False, "prev_batch": "p"}}
    it.server.sync_body(rooms={"join": {"!r:evil.test": flooded, MINE: mine}})
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(3002, within_s=3600)

    assert before_pages == [True] * 30
    assert it.ids == ["$mine", *[f"$p{n}-{one}" for n in range(1, 31) for one in range(100)], "$last"]


class Keys:
    """As much of the keys as deciding whom to ask for needs; ``evil.test`` says nothing, for ten seconds."""

    signed_only = True

    def __init__(self):
        self.known, self.asked = set(), []

    def is_known(self, person):
        return person in self.known

    async def learn_devices(self, people):
        people = set(people) - self.known
        self.asked.append(sorted(people))
        if any(one.endswith(":evil.test") for one in people):
            await anyio.sleep(10)
        self.known |= {one for one in people if not one.endswith((":evil.test", ".none:good.test"))}


async def test_devices_of_a_crowd_whose_server_hangs():
    """With ``trust_devices: signed`` each of them cost ten seconds; now their server does, once in a minute."""
    keys, clock = Keys(), LoopClock()
    reading = Decryption(None, None, keys, None, clock, user_id=BOT, rules=ANYBODY, is_owner=OWNER.__eq__)

    async def met(*people):
        begun = anyio.current_time()
        await reading.learn_senders([{"type": "m.room.encrypted", "sender": one} for one in people])
        return anyio.current_time() - begun

    assert await met(*[f"@u{n}:evil.test" for n in range(30)], CAROL) == pytest.approx(10, abs=0.1)
    assert CAROL in keys.known
    for n in range(30, 60):
        assert await met(f"@u{n}:evil.test", f"@c{n}:good.test", OWNER) < 0.1
    assert {f"@c{n}:good.test" for n in range(30, 60)} | {OWNER} <= keys.known
    await met("@a.none:good.test")  # without any device; that says nothing about the others there
    await met("@late:good.test")
    assert "@late:good.test" in keys.known
    await anyio.sleep(61)
    assert await met("@u0:evil.test") == pytest.approx(10, abs=0.1)


def joins_and_says(number, *, limited):
    events = [member(f"@u{number}:evil.test", before="leave"), text(f"$e{number}", "x", "@u:evil.test")]
    return {
        "state": {"events": [member("@u:evil.test"), member(BOT)]},
        "timeline": {"events": events, "limited": limited, "prev_batch": "p"},
    }


@pytest.mark.parametrize("what", ["/messages", "/state/m.room"])
async def test_one_room_of_which_our_server_says_nothing(it, what):
    """
    With faster joins it may know a room only in part, for as long as another server likes. A flood there made the
    account deaf for good: eight tries of a minute each were more than the five minutes that a run may stand still.
    """
    room = "!r:evil.test"
    it.server.hanging = what

    async def same_again(request):  # an answer that was not taken comes again
        await anyio.lowlevel.checkpoint()
        while int(request.since[1:]) >= len(it.server.syncs):
            await anyio.sleep(0.1)
        return it.server.syncs[int(request.since[1:])]

    it.server.sync = same_again
    it.server.sync_body(rooms={"join": {room: joins_and_says(0, limited=what == "/messages")}})
    for number in range(1, 6):
        it.server.sync_body(rooms={"join": {room: joins_and_says(number, limited=False)}})
    it.says(text("$mine", "hello", OWNER), room=MINE)

    assert await it.waits_for("$mine") < 60
