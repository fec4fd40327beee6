"""
What was said in a room while its past was closed to newcomers was told to those who came after a moderator had
opened it, or had another, open room take its place: a homeserver shows them nothing of it.
"""

from __future__ import annotations

import pytest

from tests.doubles.homeserver import member
from tests.incidents.test_late_joiner import CAROL, Clock
from tests.unit.channels.matrix.test_inbound import ALICE, BOT, ROOM, rooms_with

NEW = "!new:hs.test"


def visibility(value):
    content = {"history_visibility": value}
    return {"type": "m.room.history_visibility", "state_key": "", "content": content}


def answer(room_id, *state):
    return {"rooms": {"join": {room_id: {"state": {"events": list(state)}}}}}


def closed(*values):
    """A room with these visibilities, one after the other, and with Alice."""
    rooms = rooms_with(ALICE)
    for value in values:
        rooms.update(answer(ROOM, visibility(value)))
    return rooms


@pytest.mark.parametrize("first", ["joined", "invited"])
@pytest.mark.parametrize("opened", ["shared", "world_readable"])
def test_opening_a_room_opens_what_is_said_from_then_on(first, opened):
    """Carol begins with her joining, Alice sees everything; also when both happen before anything is read."""
    for at_once in (True, False):
        one = Clock(closed(first, *([opened] if at_once else [])))
        secret = one.said()
        one.joinings._rooms.update(answer(ROOM, visibility(opened)))
        one.comes()

        assert one.since() > secret
        assert one.since(ALICE) is None


def test_it_is_remembered_over_a_restart():
    """The registry of rooms begins empty then, and the room is open."""
    one, again = Clock(closed("joined")), Clock(closed("shared"))
    secret = one.said()
    [kept] = one.joinings.position().values()
    again.joinings.load(kept)
    again.comes()

    assert again.since() > secret


@pytest.mark.parametrize("known_before", [True, False])
@pytest.mark.parametrize("kicked", [True, False])
def test_an_open_room_in_the_place_of_a_closed_one(known_before, kicked):
    """Who is only in the new room begins there, even if the bot is put out of the old one afterwards."""
    one = Clock(closed("joined"))
    rooms = one.joinings._rooms
    secret = one.said()
    rooms.update(answer(NEW, *map(member, (BOT, ALICE, CAROL)), visibility("shared")))
    if known_before:
        one.joinings.note_join(NEW, one.now)
    rooms.successors.follow(ROOM, NEW)
    one.joinings.note_replacement(one.now)
    if kicked:
        rooms.update({"rooms": {"leave": {ROOM: {}}}})
        one.joinings.forget(ROOM)
    again = Clock(rooms)
    again.joinings.load(one.joinings._dump())

    assert again.joinings.visible_from(NEW, CAROL) > secret
    assert kicked or again.joinings.visible_from(NEW, ALICE) is None


def test_rooms_that_were_always_open_stay_so():
    """Neither a newcomer nor a successor hides anything there."""
    one = Clock(closed("shared"))
    rooms = one.joinings._rooms
    rooms.update(answer(NEW, *map(member, (BOT, CAROL)), visibility("shared")))
    rooms.successors.follow(ROOM, NEW)
    one.joinings.note_replacement(one.now)
    one.comes()

    assert (one.said(), one.since(), one.joinings.visible_from(NEW, CAROL)) == (None, None, None)
