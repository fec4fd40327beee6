"""
SIGKILL of the whole gateway while conversations are consolidated behind their answers, with people going on talking.

In the end every line of every history is in the summary once and before the cursor, or after it.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import anyio
import pytest

from agent_core.messages import SessionKey
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.kill.oracle import problems
from tests.kill.scenario import Nursery, Scenario
from tests.kill.scripted import numbers_in
from tests.kill.tally import chance as chance_of

PLACES = ("dm-ann", "dm-bob")
KILLS = int(os.environ.get("SQUIDBOT_KILLS", "0")) or 8
MOMENTS = [
    "model.consolidating",
    "model.consolidated",
    "memory.load_segment.after",
    "memory.sync_history.before",
    "memory.sync_history.after",
    "memory.save_consolidation.before",
    "memory.save_consolidation.after",
    "usage.add.before",
    "usage.add.after",
]


def talk(world: Scenario) -> None:
    for _ in range(3):
        world.say("ann", "fact")
        world.say("bob")


def wrong(world: Scenario) -> list[str]:
    """Conversations whose summary is not exactly what stands before their cursor."""
    return [place for place in PLACES if not anyio.run(_sound, world, place)]


async def _sound(world: Scenario, place: str) -> bool:
    memory = JsonlMemory(world.folder / "home", clock=ManualClock())
    session = str(SessionKey("loopback", place))
    page = await memory.load_segment(session, start=0, max_messages=10_000)
    before = [
        f"{message.role[0]}{number}"
        for message, position in zip(page.messages, page.positions, strict=True)
        if position < page.cursor
        for number in numbers_in(message.content)
    ]
    summary = await memory.load_session_summary(session)
    return re.findall(r"\b[ua]\d+\b", summary) == before


def consolidated(world: Scenario) -> int:
    async def cursors() -> int:
        memory = JsonlMemory(world.folder / "home", clock=ManualClock())
        return sum(
            [await memory.load_consolidated_cursor(str(SessionKey("loopback", place))) for place in PLACES]
        )

    return anyio.run(cursors)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_while_consolidating_skips_and_doubles_nothing(
    moment: str, nursery: Nursery, tmp_path: Path
) -> None:
    """Dead at the moment, and later at its second passing; then all is answered, filed and consolidated once."""
    world = Scenario(tmp_path, nursery, consolidate_above=4)
    talk(world)
    assert world.live(die=moment) == -signal.SIGKILL, f"{moment} was never passed: {world.log()[-3000:]}"
    assert wrong(world) == []
    talk(world)
    world.live(die=f"{moment}#2")
    assert wrong(world) == []
    talk(world)
    world.live_until_quiet()

    assert problems(world.evidence()) == [], world.log()[-3000:]
    assert wrong(world) == []
    assert consolidated(world) > 4


@pytest.mark.timeout(max(300, 5 * KILLS))
def test_random_deaths_while_consolidating(nursery: Nursery, tmp_path: Path) -> None:
    """Killed from outside at any time."""
    chance = chance_of("consolidation")
    world = Scenario(tmp_path, nursery, consolidate_above=3, pause_s=0.02)
    for seed in range(6 * KILLS):
        if world.deaths >= KILLS:
            break
        talk(world)
        world.live(kill_after_s=0.25 + chance.random() * 0.3, seed=seed)
        assert wrong(world) == []
        if seed % 2:  # however slow the machine is, no question dies three times and is given up
            world.live_until_quiet()
    world.live_until_quiet()

    assert problems(world.evidence()) == [], world.log()[-3000:]
    assert wrong(world) == []
    assert world.deaths >= KILLS
    assert consolidated(world) > 10


def test_two_writes_are_caught(nursery: Nursery, tmp_path: Path) -> None:
    """Negative control: where summary and cursor are saved one after the other, a death doubles a segment."""
    world = Scenario(tmp_path, nursery, consolidate_above=4, control="consolidates_in_two_writes")
    talk(world)
    assert world.live(die="control.between") == -signal.SIGKILL
    world.live_until_quiet()
    assert wrong(world) != []
