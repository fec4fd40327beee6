"""
Before room version 6 a number in an event may be of any size. A power level of four hundred digits raised where
tombstones are looked at, outside of what one event can spoil: the account was deaf as long as the room existed.
"""

from __future__ import annotations

import pytest

from channels.matrix.rooms.upgrades import may_moderate, may_redact, may_replace, power_of
from tests.unit.channels.matrix.test_upgrades import (
    ALICE,
    CAROL,
    NEW,
    OLD,
    Scenario,
    create,
    levels,
    room,
    tombstone,
)

HUGE = 10**400


@pytest.mark.parametrize("huge", [HUGE, str(HUGE), -HUGE])
def test_such_levels_are_compared_like_any_other(huge):
    """They are above or below all others, and nothing raises."""
    there = room(create(version="5"), levels(users={ALICE: 100, CAROL: huge}, redact=huge))

    assert (power_of(there, CAROL) > power_of(there, ALICE)) is (int(huge) > 0)
    assert may_redact(there, CAROL)
    assert may_redact(there, ALICE) is (int(huge) < 0)
    assert may_moderate(there, CAROL) is (int(huge) > 0)


@pytest.mark.parametrize(("needed", "joined"), [(HUGE, []), (100, [(NEW, OLD, False)])])
def test_a_room_with_such_a_level_is_one_of_many(needed, joined):
    """An answer with its tombstone is digested; what needs more power than anybody has is not followed."""
    world = Scenario()
    powers = levels(users={ALICE: 100}, events={"m.room.tombstone": needed})
    world.sync(OLD, create(version="5"), powers, tombstone())

    assert world.open == joined
    assert not may_replace(room(create(version="5"), levels(events={"m.room.tombstone": HUGE})), ALICE)
