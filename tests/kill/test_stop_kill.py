"""
The whole gateway, killed around a stop: who has said "stop" gets no answer to what came before, and one to the stop.

The first question is being worked on while the stop arrives in a later batch.
"""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.kill.scenario import Nursery, Scenario

MOMENTS = [
    "inbox.accept.before#2",
    "inbox.accept.after#2",
    "turns.claim.after#2",
    "turns.complete.before#1",
    "turns.complete.after#1",
    "outbox.sending.before#1",
    "taken#1",
    "outbox.record_send.before#1",
]


def told(world: Scenario, native_ids: list[str]) -> list[str]:
    """People say these; the number 2 is the stop."""
    for number, text in enumerate(native_ids):
        world.server.say("ann", text, conversation="dm-ann", native_id=f"$say-{number}")
    return native_ids


def errors(folder: Path) -> dict[str, str | None]:
    with closing(sqlite3.connect(f"file:{folder / 'home' / 'gateway.db'}?mode=ro", uri=True)) as db:
        return dict(db.execute("SELECT native_id, error FROM inbox ORDER BY id").fetchall())


@pytest.mark.parametrize("moment", ["", *MOMENTS])
def test_a_stop_outlives_a_death(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """What came before it is answered never, the stop and what came after it once, and the stop tells how many."""
    # Slow enough that the first question is still being answered when the second batch has come.
    world = Scenario(tmp_path, nursery, pause_s=0.4, seed=7, max_attempts=50)
    told(world, ["#1", "#2", "#3", "!stop", "#4"])
    if moment:
        assert world.live(die=moment) == -signal.SIGKILL, f"{moment} was never passed"
        world.live(die=moment)
    world.live_until_quiet()

    world.server.refresh()
    seen = [each.text.strip() for each in world.server.seen("dm-ann")]
    assert len(seen) == 2, seen
    assert "3" in seen[0]
    assert "stop" in seen[0].lower()
    assert seen[1] == "re: #4"
    assert errors(tmp_path) == {
        "$say-0": "stopped",
        "$say-1": "stopped",
        "$say-2": "stopped",
        "$say-3": None,
        "$say-4": None,
    }


def test_without_a_stop_all_are_answered(nursery: Nursery, tmp_path: Path) -> None:
    """The control: it is the command that keeps them from being answered, not the death."""
    world = Scenario(tmp_path, nursery, pause_s=0.4, seed=7, max_attempts=50)
    told(world, ["#1", "#2", "#3", "stop, please #5", "#4"])
    assert world.live(die="inbox.accept.after#2") == -signal.SIGKILL
    world.live_until_quiet()
    world.server.refresh()
    assert len(world.server.seen("dm-ann")) == 5
