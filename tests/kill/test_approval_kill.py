"""Drafts and deaths: the owner is asked once, and after one yes the answer is sent once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kill.scenario import Nursery, Scenario

ANN, BOB = "@ann:hs.test", "@bob:hs.test"
MOMENTS = [
    "accepted",
    "inbox.accept.before",
    "inbox.accept.after",
    "turns.claim.after",
    "outbox.new_drafts.after",
    "turns.complete.before",
    "turns.complete.after",
    "sending",
    "uncertain",
    "taken",
    "outbox.record_send.after",
]
DECIDING = ["outbox.approve.before", "outbox.approve.after", "outbox.row.after"]


def seen(world: Scenario, person: str) -> list[str]:
    """What somebody sees of the bot, in order."""
    world.server.refresh()
    return [each.text for each in world.server.seen(f"dm-{person}")]


def notices(world: Scenario) -> list[str]:
    """The names of the drafts about which the owner has been asked."""
    return [name for text in seen(world, ANN) for name in re.findall(r"^\*\*(d\d+)\*\*", text)]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("moment", MOMENTS + DECIDING)
def test_the_owner_is_asked_once_and_one_yes_is_one_answer(
    moment: str, number: int, nursery: Nursery, tmp_path: Path
) -> None:
    """Killed while the owner is asked, and killed while the decision is taken, at any moment of both."""
    world = Scenario(tmp_path, nursery, approval="strangers")
    world.server.say(ANN, "!help", native_id="$help")
    world.live_until_quiet()
    world.say(BOB)
    if moment in MOMENTS:
        world.live(die=f"{moment}#{number}")
    world.live_until_quiet()

    (name,) = notices(world)
    assert seen(world, BOB) == []
    world.server.say(ANN, f"!approve {name}", native_id="$yes")
    world.live(die=f"{moment}#{number}")
    world.live_until_quiet()

    assert [text.strip() for text in seen(world, BOB)] == ["re: #1"]
    assert notices(world) == [name]
    decisions = [text for text in seen(world, ANN) if text.startswith(f"`{name}` is approved")]
    assert len(decisions) == 1


def test_asking_whenever_it_is_found_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """Without one name for one item, the owner is asked again after each start."""
    world = Scenario(tmp_path, nursery, approval="strangers", control="asks_anew")
    world.server.say(ANN, "!help", native_id="$help")
    world.live_until_quiet()
    world.say(BOB)
    world.live_until_quiet()
    (first,) = set(notices(world))
    world.say(BOB)
    world.live_until_quiet()

    assert " ".join(seen(world, ANN)).count(f"**{first}**") >= 2
