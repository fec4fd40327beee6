"""
A message to somebody else, and a reminder by command, whatever moment the process is killed at: said once after the yes,
kept once.
"""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import pytest

from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.kill.scenario import Nursery, Scenario
from tests.kill.test_tools_kill import ANN, DECIDING, PLACE, approve_all, seen

MOMENTS = [
    f"{name}.{when}"
    for name in (
        "turns.record_step_start",
        "outbox.post",
        "turns.record_step_result",
        "turns.complete",
        "outbox.record_send",
    )
    for when in ("before", "after")
]


def told(world: Scenario) -> list[str]:
    """What Bob has got besides the answer to what he has asked."""
    world.server.refresh()
    return [each.text for each in world.server.seen("dm-bob") if not each.text.startswith("re:")]


@pytest.mark.parametrize("moment", [*MOMENTS, *DECIDING])
def test_it_is_sent_once(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """Killed at a moment before and after the yes: Bob gets it once, and nothing before the yes."""
    world = Scenario(tmp_path, nursery, tools=True, max_attempts=20)
    world.say("bob")
    world.live_until_quiet()
    world.say(ANN, 'do send_message {"to": "matrix:bob", "text": "she is late"}')
    answered: set[str] = set()
    world.live(die=moment)
    world.live_until_quiet()
    assert told(world) == []
    while approve_all(world, answered):
        for count in (1, 2):
            world.live(die=f"{moment}#{count}")
        world.live_until_quiet()
    assert world.deaths
    assert len(answered) == 1
    assert told(world) == [f"{ANN} says: she is late"]
    assert len([text for text in seen(world) if text.startswith("re: #2")]) == 1


@pytest.mark.parametrize(
    "moment", ["jobs.add_job.before", "jobs.add_job.after", "turns.complete.before", "turns.complete.after"]
)
def test_a_reminder_is_kept_once(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """One job and one answer."""
    world = Scenario(tmp_path, nursery, tools=True, max_attempts=20)
    world.server.say(ANN, "!remind in 5h rest", conversation=PLACE, native_id="$remind")
    assert world.live(die=moment) == -signal.SIGKILL
    world.live_until_quiet()

    async def jobs() -> list[str]:
        path = world.folder / "home" / "gateway.db"
        async with await SqliteQueue.open(path, clock=SystemClock()) as store:
            return [job.text for job in await store.jobs.jobs()]

    assert anyio.run(jobs) == ["rest"]
    assert len(seen(world)) == 1
