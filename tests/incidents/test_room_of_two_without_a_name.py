"""
Somebody made a room for the bot without calling it direct, and nobody else was in it: the bot answered nothing there,
because nobody had mentioned it.
"""

from __future__ import annotations

import pytest

from agent_core.messages import Audience, InboundMessage
from channels.matrix.config import MatrixConfig
from channels.matrix.events.inbound_events import BotIdentity, read_event
from channels.matrix.events.room_policy import RoomRules
from channels.matrix.rooms.room_state import Rooms
from tests.clock import EPOCH
from tests.doubles.homeserver import member, text

BOT, ALICE, BOB, ROOM = "@bot:hs.test", "@alice:hs.test", "@bob:hs.test", "!r:hs.test"
ME = BotIdentity(channel="matrix", user_id=BOT)


def room_with(*members, count):
    rooms = Rooms(BOT)
    room = {"state": {"events": [member(BOT), *members]}, "timeline": {"events": []}}
    if count is not None:
        room["summary"] = {"m.joined_member_count": count, "m.invited_member_count": 0}
    rooms.update({"rooms": {"join": {ROOM: room}}})
    return rooms


def said(rooms, me=ME, sender=ALICE):
    message = read_event(text("$1", "hello", sender), ROOM, me=me, rooms=rooms, now=EPOCH)
    assert isinstance(message, InboundMessage)
    return message


@pytest.mark.parametrize("policy", ["mention", "allowlist", "open"])
def test_the_only_other_person_needs_no_mention(policy):
    """Whatever the policy for groups is; whose memory is used stays as it is."""
    me = BotIdentity(channel="matrix", user_id=BOT, group_policy=policy)
    message = said(room_with(member(ALICE), count=2), me)

    assert message.addressed
    assert message.audience is Audience.GROUP


@pytest.mark.parametrize(
    "rooms",
    [
        room_with(member(ALICE), member(BOB), count=3),
        room_with(member(ALICE), member(BOB, "invite"), count=3),
        room_with(member(ALICE), count=None),
    ],
    ids=["joined", "invited", "unknown"],
)
def test_a_third_person_ends_it(rooms):
    """Joined or invited; and what is not known is no room of two."""
    assert not said(rooms).addressed


def test_the_third_person_ends_it_at_once():
    """From the very event that says so, with or without a new count; and when they have gone it is as before."""
    rooms = room_with(member(ALICE), count=2)
    assert said(rooms).addressed
    rooms.update({"rooms": {"join": {ROOM: {"timeline": {"events": [member(BOB, "invite")]}}}}})
    assert not said(rooms).addressed
    counted = {"m.joined_member_count": 2, "m.invited_member_count": 0}
    gone = {"timeline": {"events": [member(BOB, "leave")]}, "summary": counted}
    rooms.update({"rooms": {"join": {ROOM: gone}}})
    assert said(rooms).addressed


def test_a_room_that_is_switched_off_stays_so():
    """Where the operator has said that the bot is silent, it is."""
    config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw", rooms={ROOM: {"policy": "off"}})
    me = RoomRules(config, lambda room_id: room_id).me_in(ROOM, ME, ALICE)

    assert not said(room_with(member(ALICE), count=2), me).addressed


def test_members_are_asked_for_where_it_can_matter():
    """After a restart the server counts nobody: a room in which two others are known is none of two."""
    assert room_with(member(ALICE), count=None).is_size_unknown(ROOM)
    assert room_with(count=None).is_size_unknown(ROOM)
    assert not room_with(member(ALICE), member(BOB), count=None).is_size_unknown(ROOM)
    assert not room_with(member(ALICE), count=2).is_size_unknown(ROOM)
