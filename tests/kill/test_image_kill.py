"""A picture, whatever moment the process is killed at: paid once, sent with the one answer, or called unknown."""

from __future__ import annotations

import anyio
import pytest

from devservers import ImageServer
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.kill.scenario import Nursery, Scenario
from tests.kill.test_tools_kill import ANN, PLACE

MOMENTS = [
    f"{name}.{when}"
    for name in (
        "turns.record_step_start",
        "image",
        "usage.add",
        "turns.record_step_result",
        "turns.complete",
    )
    for when in ("before", "after")
]
PRICE = 0.25


def wished(world: Scenario) -> None:
    world.say(ANN, 'do image {"prompt": "a heron"}')


def noted(world: Scenario) -> float:
    """What the usage says that pictures have cost."""

    async def look() -> float:
        path = world.folder / "home" / "gateway.db"
        async with await SqliteQueue.open(path, clock=SystemClock()) as store:
            rows = await store.usage.rows(days=1)
            return sum(row.usage.cost_usd or 0.0 for row in rows if row.purpose == "image")

    return anyio.run(look)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_it_is_paid_once(moment: str, number: int, nursery: Nursery, tmp_path) -> None:
    """Killed at a moment and again at it; the picture is in the answer, or the answer says that nobody knows."""
    with ImageServer() as server:
        world = Scenario(tmp_path, nursery, tools=True, max_attempts=20, image=server.api_base)
        wished(world)
        for _ in range(2):
            world.live(die=f"{moment}#{number}")
        world.live_until_quiet()
        paid = len(server.paid)
    world.server.refresh()
    answers = [each for each in world.server.seen(PLACE) if each.text.startswith("re: #1")]
    assert len(answers) == 1
    [answer] = answers
    assert paid <= 1
    assert bool(answer.attachments) or "unknown" in answer.text
    assert paid == 1 or not answer.attachments
    assert noted(world) <= PRICE * paid
    assert noted(world) == PRICE * paid or "unknown" in answer.text


def test_a_tool_that_is_repeated_pays_twice(nursery: Nursery, tmp_path) -> None:
    """Negative control: as if a call that was cut off could simply be made again."""
    with ImageServer() as server:
        world = Scenario(tmp_path, nursery, tools=True, image=server.api_base, control="repeats_pictures")
        wished(world)
        world.live(die="image.after")
        world.live_until_quiet()
        assert len(server.paid) == 2
