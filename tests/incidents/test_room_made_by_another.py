"""
A room that Bob had made for himself and the bot was taken for Alice's private one, as soon as the two were
alone in it: her memory was opened in a room of his, which he had made readable for the whole world.

And the other way round: when Alice had left her own room, Bob went on with her conversation.
"""

from __future__ import annotations

from typing import Any

import pytest

from agent_core.messages import Audience, InboundMessage
from channels.matrix.events.inbound_events import BotIdentity, read_event
from channels.matrix.rooms.room_state import Rooms
from tests.clock import EPOCH
from tests.doubles.homeserver import member, text

BOT, ALICE, BOB, ROOM = "@bot:hs.test", "@alice:hs.test", "@bob:hs.test", "!r:hs.test"
ME = BotIdentity(channel="matrix", user_id=BOT, group_policy="open")


def setting(kind: str, **content: str) -> dict[str, Any]:
    return {"type": f"m.room.{kind}", "state_key": "", "content": content}


def alone_with(person: str, *state: dict[str, Any]) -> Rooms:
    """What the bot knows of a room in which it is alone with somebody."""
    rooms = Rooms(BOT)
    room = {
        "state": {"events": [member(BOT), member(person), *state]},
        "summary": {"m.joined_member_count": 2, "m.invited_member_count": 0},
    }
    rooms.update({"rooms": {"join": {ROOM: room}}})
    return rooms


def said_by(person: str, rooms: Rooms) -> InboundMessage:
    message = read_event(text("$1", "who am I?", person), ROOM, me=ME, rooms=rooms, now=EPOCH)
    assert isinstance(message, InboundMessage)
    return message


@pytest.mark.parametrize("how", ["invitation", "m.direct"])
def test_a_room_is_private_for_the_one_it_was_made_for_alone(how: str) -> None:
    """Bob's private room is a group for Alice, whoever else is in it; for Bob it is what it is called."""
    for person, audience in ((BOB, Audience.DIRECT), (ALICE, Audience.GROUP)):
        rooms = alone_with(person)
        if how == "invitation":
            rooms.mark_direct(ROOM, BOB)
        else:
            content = {"type": "m.direct", "content": {BOB: [ROOM], ALICE: ["!other:hs.test"]}}
            rooms.update({"account_data": {"events": [content]}})

        assert said_by(person, rooms).audience is audience


@pytest.mark.parametrize(
    ("door", "audience"),
    [
        (setting("history_visibility", history_visibility="world_readable"), Audience.GROUP),
        (setting("join_rules", join_rule="public"), Audience.GROUP),
        (setting("join_rules", join_rule="restricted"), Audience.GROUP),
        (setting("history_visibility", history_visibility="shared"), Audience.DIRECT),
        (setting("join_rules", join_rule="invite"), Audience.DIRECT),
    ],
)
def test_where_everybody_can_look_in_nothing_is_private(door: dict[str, Any], audience: Audience) -> None:
    """A room that can be read or entered uninvited is a group, even with two members."""
    rooms = alone_with(ALICE, door)
    rooms.mark_direct(ROOM, ALICE)

    assert said_by(ALICE, rooms).audience is audience


def test_nobody_goes_on_with_a_conversation_that_was_another_s() -> None:
    """Alice leaves her room to Bob: what he says there begins a session of its own."""
    hers = alone_with(ALICE)
    hers.mark_direct(ROOM, ALICE)
    his = alone_with(BOB)
    his.mark_direct(ROOM, ALICE)

    assert said_by(BOB, his).session != said_by(ALICE, hers).session
