"""The own daemon of the benchmark on a real PostgreSQL answers everybody, and a channel that doubles is found out."""

from __future__ import annotations

import pytest

from tests.scale.world import Cost, Scenario
from tests.servers import skipped_without_tools

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("control", ["", "doubles"])
async def test_a_daemon_answers_everybody_once(control: str) -> None:
    """What is counted is there, too: round trips, statements, WAL. The control sends each answer under two keys."""
    with skipped_without_tools():
        async with Scenario.opened(accounts=2, model_s=0.05, turns=4) as world:
            async with world.daemons(1, control=control):
                before = await world.snapshot()
                await world.people.at_once(world.places(20), waiting=8, seconds=1.0)
                assert await world.settled() == (0, 0, 0, 0)
                cost = Cost.between(before, await world.snapshot())
            asked = world.people.ledger.asked
            assert {one.place[0] for one in asked.values()} == set(world.accounts)
            assert cost.calls["complete"][0] == len(asked)
            assert cost.round_trips > 20 * len(asked)
            assert cost.statements > cost.round_trips or not world.counts_statements
            assert cost.wal > 1000 * len(asked)
            problems = world.people.ledger.problems()
            assert any("was answered 2 times" in problem for problem in problems) is bool(control)
            assert bool(problems) is bool(control)
