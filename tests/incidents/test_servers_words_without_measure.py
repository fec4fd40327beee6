"""
What a homeserver says was taken without measure. Tombstones that name rooms of 60 kB were all remembered, tried and
committed (36 MB after 600 of them), pages of a room's past that lead in a circle were asked for a thousand times, and an
event that names another room was read as one of the room in whose answer it stood.
"""

from __future__ import annotations

import json

import pytest

from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.rooms.follow_upgrades import UpgradeFollower
from channels.matrix.rooms.invites import Invites
from channels.matrix.rooms.room_state import Rooms
from tests.clock import LoopClock
from tests.doubles.homeserver import ScriptedHomeserver, text
from tests.doubles.inbox import running
from tests.incidents.test_crowd_of_one_server import CAROL, Crowd

pytestmark = pytest.mark.virtual_time
MALLORY, ROOM = "@mallory:evil.test", "!r:evil.test"


@pytest.fixture
def it(tmp_path):
    return Crowd(tmp_path)


def in_state(kind, **content):
    return {"type": kind, "state_key": "", "sender": MALLORY, "content": content}


class Upgrades:
    def __init__(self):
        self.rooms = Rooms("@bot:hs.test")
        self.invites = Invites(
            ScriptedHomeserver(), self.rooms, LoopClock(), user_id="@bot:hs.test", may_invite=lambda _: True
        )
        self.following = UpgradeFollower(self.rooms, self.invites, may_invite=lambda _: True)
        powers = in_state("m.room.power_levels", users={MALLORY: 100})
        self.says(in_state("m.room.create", room_version="11"), powers)

    def says(self, *state):
        self.rooms.update({"rooms": {"join": {ROOM: {"state": {"events": list(state)}}}}})
        self.following.learn()

    @property
    def open(self):
        return [one["room_id"] for one in json.loads(self.invites.dump())]


@pytest.mark.parametrize("name", ["!x" + "z" * 60_000, "!x\x1b[31m", "!x\ny", "#alias:evil.test", "x", "!"])
def test_a_replacement_that_is_no_room(name):
    """It is no room id, so nothing is tried and nothing remembered."""
    world = Upgrades()
    world.says(in_state("m.room.tombstone", replacement_room=name))
    assert world.open == []
    assert not world.following._decided


def test_one_tombstone_after_the_other():
    """The newest counts; of those before it nothing is left."""
    world = Upgrades()
    for number in range(600):
        world.says(in_state("m.room.tombstone", replacement_room=f"!x{number}:evil.test"))
    assert world.open == ["!x599:evil.test"]
    assert world.following._decided == {ROOM: ("!x599:evil.test", "joining")}


def gap(it, *replies):
    it.server.on("GET", "/messages$", *replies)
    timeline = {"events": [text("$last", "well?", CAROL)], "limited": True, "prev_batch": "p"}
    it.server.sync_body(rooms={"join": {ROOM: {"timeline": timeline}}})


async def test_pages_that_lead_in_a_circle(it):
    """Each is asked for once; what stands in them and after them is taken."""
    pages = [HttpAnswer(200, {"chunk": [text(f"${end}", end, CAROL)], "end": end}) for end in "ABCAB"]
    gap(it, *pages)
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda _: "$last" in it.ids, within_s=60)

    assert [call.query["from"] for call in it.server.asked("GET", "/messages$")] == ["s0", "A", "B", "C"]
    assert it.ids == ["$A", "$B", "$C", "$last"]


async def test_an_event_that_names_another_room(it):
    """In a page and in an answer of /sync it is nothing; one that names this room, or none, is heard."""
    elsewhere = {"room_id": "!secret:hs.test"}
    odd = [5, None, {}, {"type": "m.room.message"}, text("$" + "x" * 300, "long", CAROL)]
    chunk = [text("$1", "no", CAROL) | elsewhere, text("$2", "yes", CAROL) | {"room_id": ROOM}, *odd]
    gap(it, HttpAnswer(200, {"chunk": [*chunk, text("$2", "again", CAROL)]}))
    it.says(text("$3", "no", CAROL) | elsewhere, text("$4", "yes", CAROL), room=ROOM)
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda _: "$4" in it.ids, within_s=60)

    assert it.ids == ["$2", "$last", "$4"]
    assert it.inbox.texts[0] == "yes"
