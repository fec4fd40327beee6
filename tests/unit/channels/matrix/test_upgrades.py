"""Room upgrades: whose word counts, and where a session goes on."""

from __future__ import annotations

import json
from math import inf

import pytest

from channels.matrix.rooms.follow_upgrades import UpgradeFollower
from channels.matrix.rooms.invites import Invites
from channels.matrix.rooms.room_state import Room, Rooms
from channels.matrix.rooms.upgrades import Successors, may_replace, power_of
from tests.clock import LoopClock
from tests.doubles.homeserver import ScriptedHomeserver

BOT, ALICE, CAROL = "@bot:hs.test", "@alice:hs.test", "@carol:hs.test"
OLD, NEW = "!old:hs.test", "!new"


def create(sender=ALICE, version="11", **content):
    return {
        "type": "m.room.create",
        "state_key": "",
        "sender": sender,
        "content": {"room_version": version, **content},
    }


def levels(**content):
    return {"type": "m.room.power_levels", "state_key": "", "sender": ALICE, "content": content}


def tombstone(sender=ALICE, new=NEW):
    return {
        "type": "m.room.tombstone",
        "state_key": "",
        "sender": sender,
        "content": {"replacement_room": new},
    }


def room(*state):
    made = Room(OLD)
    for event in state:
        made.state(event)
    return made


@pytest.mark.parametrize(
    ("state", "user", "power"),
    [
        ([create(), levels(users={ALICE: 100, CAROL: "50"}, users_default=5)], ALICE, 100),
        ([create(), levels(users={ALICE: 100, CAROL: "50"}, users_default=5)], CAROL, 50),
        ([create(), levels(users={ALICE: 100}, users_default=5)], "@x:y", 5),
        ([create(), levels(users={ALICE: {"no": "number"}, CAROL: True})], ALICE, 0),
        ([create(), levels(users={ALICE: {"no": "number"}, CAROL: True})], CAROL, 0),
        ([create(), levels(users=[1], users_default="x")], ALICE, 0),
        ([create()], ALICE, 100),
        ([create()], CAROL, 0),
        # Creators of newer rooms stand in no list of powers.
        ([create(version="12"), levels(users={})], ALICE, inf),
        ([create(version="12", additional_creators=[CAROL]), levels(users={})], CAROL, inf),
        ([create(version="11", additional_creators=[CAROL]), levels(users={})], CAROL, 0),
        ([create(version="12", additional_creators=CAROL), levels(users={})], "@carol", 0),
        ([], ALICE, 0),
    ],
)
def test_powers(state, user, power):
    """The level in the list, its default, or the creator's; and nothing for what cannot be read."""
    assert power_of(room(*state), user) == power


@pytest.mark.parametrize(
    ("powers", "believed"),
    [
        ({"users": {ALICE: 100}}, True),
        ({"users": {ALICE: 50}}, True),
        ({"users": {ALICE: 49}}, False),
        ({"users": {ALICE: 50}, "events": {"m.room.tombstone": 100}}, False),
        ({"users": {ALICE: 50}, "state_default": 75}, False),
        # Rooms may let anybody write state; that does not make anybody's word enough.
        ({"users_default": 0, "state_default": 0, "events": {"m.room.tombstone": 0}}, False),
    ],
)
def test_whose_tombstone_is_believed(powers, believed):
    """Who has the power for it in the room, and at least a moderator's."""
    assert may_replace(room(create(sender=CAROL), levels(**powers)), ALICE) is believed


def test_a_chain_of_rooms_is_one_conversation():
    """The first room names the session, the last one has it; and it survives as a text."""
    kept = Successors()
    assert kept.follow("!a", "!b")
    assert kept.follow("!b", "!c")
    assert not kept.follow("!b", "!c")
    again = Successors()
    again.load(kept.dump())

    assert {again.first_of(room_id) for room_id in ("!a", "!b", "!c")} == {"!a"}
    assert {again.last_of(room_id) for room_id in ("!a", "!b", "!c")} == {"!c"}
    assert (again.first_of("!x"), again.last_of("!x")) == ("!x", "!x")


def test_circles_and_shared_successors_are_refused():
    """Two rooms cannot lead to the same one, and none to where it came from: sessions never mix."""
    kept = Successors()
    kept.follow("!a", "!b")
    assert not kept.follow("!b", "!a")
    assert not kept.follow("!a", "!a")
    assert not kept.follow("!x", "!b")
    assert kept.follow("!a", "!c")  # it was replaced by yet another one

    assert kept.last_of("!a") == "!c"
    assert kept.first_of("!b") == "!b"


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 5}', '"x"', None, ""])
def test_what_cannot_be_read_is_nothing(text):
    """A damaged value costs the memory of upgrades, not the start."""
    kept = Successors()
    kept.load(text)

    assert kept.last_of("a") == "a"


class Scenario:
    def __init__(self, *, allowed=(ALICE,)):
        self.rooms = Rooms(BOT)
        self.server = ScriptedHomeserver()
        self.invites = Invites(
            self.server, self.rooms, LoopClock(), user_id=BOT, may_invite=lambda one: one in allowed
        )
        self.following = UpgradeFollower(self.rooms, self.invites, may_invite=lambda one: one in allowed)

    def sync(self, room_id, *state, direct=None):
        body = {"rooms": {"join": {room_id: {"state": {"events": list(state)}}}}}
        if direct:
            body["account_data"] = {"events": [{"type": "m.direct", "content": direct}]}
        self.rooms.update(body)
        return self.following.learn()

    @property
    def open(self):
        return [(one["room_id"], one["replaces"], one["direct"]) for one in json.loads(self.invites.dump())]


POWERS = levels(users={ALICE: 100, CAROL: 100})


def test_an_upgrade_is_joined_and_then_followed():
    """First the room is gone into, and only when it names the old one the session goes on there."""
    world = Scenario()
    assert not world.sync(OLD, create(), POWERS, tombstone())
    assert world.following.asked
    assert world.open == [(NEW, OLD, False)]
    assert not world.sync(OLD)
    assert not world.following.asked  # once is enough
    assert world.sync(NEW, create(version="12", predecessor={"room_id": OLD}))

    assert world.rooms.conversation_of(NEW) == OLD
    assert world.rooms.room_of(OLD) == NEW


def test_a_direct_room_stays_one():
    """The partner who upgrades finds the new room marked as direct, for the bot and in its account."""
    world = Scenario()
    world.sync(OLD, create(), POWERS, tombstone(), direct={ALICE: [OLD]})
    assert world.open == [(NEW, OLD, True)]
    world.sync(NEW, create(version="12", predecessor={"room_id": OLD}))

    assert world.rooms.was_made_for(NEW, ALICE)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ([create(), levels(users={ALICE: 10}, events={"m.room.tombstone": 0}), tombstone()], "no power"),
        ([create(), POWERS, tombstone(sender=CAROL)], "may not invite"),
        ([create(), POWERS, tombstone(new=5)], "no room"),
        ([create(), POWERS, tombstone(new=OLD)], "itself"),
    ],
)
def test_nobody_leads_the_bot_away(state, why):
    """Without power, without the right to invite, or without sense a tombstone leads nowhere."""
    world = Scenario()
    world.sync(OLD, *state)

    assert world.open == [], why
    assert world.rooms.room_of(OLD) == OLD


def test_a_room_that_does_not_name_the_old_one_gets_no_session():
    """A tombstone alone would show one room's past to another that knows nothing of it."""
    world = Scenario()
    world.sync(NEW, create(version="12", predecessor={"room_id": "!else"}))
    world.sync(OLD, create(), POWERS, tombstone())

    assert world.rooms.conversation_of(NEW) == NEW


def test_somebody_with_power_upgrades_and_a_friend_invites():
    """The upgrade of a person who may not invite is followed once the bot is in the new room otherwise."""
    world = Scenario()
    world.sync(OLD, create(), POWERS, tombstone(sender=CAROL))
    assert world.open == []
    assert world.sync(NEW, create(version="12", predecessor={"room_id": OLD}))

    assert world.rooms.room_of(OLD) == NEW
