"""
Two addresses that become one person, whatever moment the process is killed at: linked once or not at all, the
person and the owner are told once, and each message has one answer.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.routing.links import TOPIC, LinkBook, read_book
from tests.kill.conftest import random_kills
from tests.kill.scenario import Nursery, Scenario
from tests.kill.tally import chance as chance_of

ANN, BOB, CID = "@ann:hs.test", "@bob:hs.test", "@cid:hs.test"
RANDOM_KILLS, _ = random_kills()
MOMENTS = [
    "accepted",
    "taken",
    *(
        f"{name}.{when}"
        for name in (
            "turns.claim",
            "state.swap",
            "state.write",
            "outbox.post",
            "turns.complete",
            "outbox.record_send",
        )
        for when in ("before", "after")
    ),
]


def begin(folder: Path, nursery: Nursery, **run: object) -> Scenario:
    """The owner has a conversation in which to be told."""
    world = Scenario(folder, nursery, owned=("matrix",), owner=ANN, max_attempts=20, **run)
    world.say(ANN)
    world.live_until_quiet()
    return world


def command(world: Scenario, person: str, text: str) -> None:
    world.server.say(
        person, text, conversation=f"dm-{person}", native_id=f"$command-{len(world.server.said)}"
    )


def seen(world: Scenario, person: str, part: str) -> list[str]:
    """What a person has seen with this part."""
    world.server.refresh()
    return [each.text for each in world.server.seen(f"dm-{person}") if part in each.text]


def book(world: Scenario) -> LinkBook:
    with closing(sqlite3.connect(world.folder / "home/gateway.db")) as db:
        found = db.execute("SELECT value FROM state WHERE topic = ?", (TOPIC,)).fetchall()
    return read_book(found[0][0] if found else None)


def die(world: Scenario, *deaths: object) -> None:
    """Lives that end so, and one that goes on until all is quiet; a link is whole or not there."""
    for death in deaths:
        world.live(**({"die": death} if isinstance(death, str) else {"kill_after_s": death}))
        assert book(world).mains() in ({}, {CID: BOB})
    world.live_until_quiet()


def story(world: Scenario, *deaths: object) -> None:
    """Bob names Cid's address, whose code and yes come from there; with deaths after each message."""
    command(world, BOB, f"!link {CID}")
    die(world, *deaths)
    [told] = seen(world, BOB, "within 15 minutes")
    [code] = re.findall(r"`!link (\d{4}-\d{4})`", told)
    command(world, CID, f"!link {code}")
    die(world, *deaths)
    assert book(world).mains() == {}
    command(world, CID, "!link yes")
    die(world, *deaths)
    for __ in range(20):  # alerts go out by themselves, and nobody waits for them
        if seen(world, ANN, f"`!unlink {CID}`"):
            break
        world.live_until_quiet()


def problems(world: Scenario) -> list[str]:
    found = {
        "codes": seen(world, BOB, "within 15 minutes"),
        "shown": seen(world, CID, "`!link yes`"),
        "done": seen(world, CID, "Done: you are"),
        "told": seen(world, BOB, "is linked with you now"),
        "owner": seen(world, ANN, f"`!unlink {CID}`"),
    }
    wrong = [f"{name}: {texts}" for name, texts in found.items() if len(texts) != 1]
    wrong += [] if book(world).mains() == {CID: BOB} else [f"linked: {book(world)}"]
    return wrong + ([f"requests: {book(world).requests}"] if book(world).requests else [])


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_moment(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """There, and there again in the next life, after each of the three messages."""
    world = begin(tmp_path, nursery)
    story(world, moment, f"{moment}#2")
    assert world.deaths
    assert problems(world) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_random(nursery: Nursery, tmp_path: Path) -> None:
    """Seeded moments and kills from outside."""
    chance, number, hits = chance_of("links"), 0, 0
    while hits < max(12, RANDOM_KILLS):
        number += 1
        assert number < 5 * RANDOM_KILLS
        world = begin(tmp_path / str(number), nursery, pause_s=0.02, seed=number)
        story(world, f"{chance.choice(MOMENTS)}#{chance.randint(1, 2)}", chance.uniform(0.05, 0.6))
        hits += world.deaths
        assert problems(world) == [], (number, world.deaths)


def test_what_is_posted_again_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """The control: without the record of what was posted, the person is told twice."""
    world = begin(tmp_path, nursery, control="posts_again")
    story(world, "outbox.post.after")
    assert any(one.startswith("told: ") for one in problems(world))
