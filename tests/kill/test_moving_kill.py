"""
`squidbot migrate --to` under SIGKILL, between two lives of a gateway that were killed, too: whatever the dead one
left, the same command brings it to an end, and people get what they would have got.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import ConfigInvalid
from gateway.operations.migration import migrate_operation
from gateway.operations.migration.migrate_operation import HomeAccounts
from gateway.store.copied_home import EmbeddedTables
from gateway.store.opening import opened_queue
from gateway.store.postgres.copying_into_postgres import PostgresTables
from gateway.system.clock import SystemClock
from gateway.system.home import Home
from tests.kill.gateway_child import STATE_KEY
from tests.kill.scenario import Scenario
from tests.kill.tally import TALLY, die_at_call
from tests.kill.tally import chance as chance_of
from tests.kill.test_gateway_kill import judged, talk
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

STEPS: list[tuple[Any, str, int, bool]] = [
    (EmbeddedTables, "set_marker", 1, True),
    (EmbeddedTables, "set_marker", 1, False),
    (PostgresTables, "_take", 1, False),
    (PostgresTables, "add", 4, False),
    (PostgresTables, "add", 9, True),
    (PostgresTables, "set_next_numbers", 1, False),
    (PostgresTables, "add_history", 2, False),
    (PostgresTables, "add_record", 1, False),
    (PostgresTables, "add_versions", 1, False),
    (PostgresTables, "set_secret", 1, False),
    (HomeAccounts, "copy", 1, False),
    (EmbeddedTables, "set_marker", 2, True),  # it is committed there, and not noted here
    (EmbeddedTables, "set_marker", 2, False),
]
"""What is called, at which of its calls the process dies, and whether before it."""
IDS = [f"{name}-{count}-{'before' if before else 'after'}" for _, name, count, before in STEPS]


def move(
    home: Home,
    url: str,
    prepare: Callable[[], None] = lambda: None,
    after_s: float = 60.0,
) -> bool:
    """One try in a process of its own; returns whether it was killed."""
    child = os.fork()
    if not child:
        try:
            prepare()
            migrate_operation.to_postgres(
                home, home.root / "workspace", url, SystemClock(), state_key=STATE_KEY
            )
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    until = time.monotonic() + after_s
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() >= until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(ended[1])
    assert code in (0, -signal.SIGKILL)
    TALLY["of a move"] += code != 0
    return code != 0


def left_behind(world: Scenario, moments: list[str]) -> Home:
    """A home whose gateway was killed at each of these moments, with people talking meanwhile."""
    for _ in range(3):
        talk(world)
    world.live()
    for moment in moments:
        talk(world)
        world.live(die=moment)
    talk(world)
    return Home(world.folder / "home")


def goes_on(world: Scenario, home: Home, url: str) -> None:
    """The old settings are refused, the new ones go on, and the oracle finds nothing."""
    with pytest.raises(ConfigInvalid, match="was moved to"):
        anyio.run(opened, home)
    shutil.rmtree(home.root / "sessions")  # as the manual says: remove it when all is well
    (home.root / "sessions").mkdir()
    world.run = replace(world.run, store=url)
    world.live_until_quiet()
    judged(world)


async def opened(home: Home, url: str | None = None) -> None:
    """Open the queue, as a start does."""
    await (await opened_queue(home.database, url, clock=SystemClock())).aclose()


def url_of(postgres: PostgresServer) -> str:
    return postgres.url(postgres.new_database())


@pytest.mark.parametrize("step", STEPS, ids=IDS)
def test_killed_at_a_step(
    step: tuple[Any, str, int, bool], nursery, postgres: PostgresServer, tmp_path: Path
):
    """Rows ready, running and sending are carried; the second try ends it."""
    owner, name, count, before = step
    world, url = Scenario(tmp_path, nursery, consolidate_above=4), url_of(postgres)
    moments = ["outbox.sending.after#2", "turns.complete.before#3", "memory.append_message.after#2"]
    home = left_behind(world, moments)
    assert move(home, url, lambda: die_at_call(owner, name, count, before=before)), "it was never passed"
    assert not move(home, url)
    goes_on(world, home, url)


def test_killed_at_any_moment(nursery, postgres: PostgresServer, tmp_path: Path):
    """As often as it takes."""
    chance, kills, number = chance_of("move"), 0, 0
    while number < 4 or kills < 8:
        number += 1
        assert number <= 12
        world, url = Scenario(tmp_path / str(number), nursery, pause_s=0.02), url_of(postgres)
        world.live_until_quiet()  # on a slow machine the lives below may end before there is a queue
        for _ in range(3):
            world.burst(chance, 8)
            world.live(kill_after_s=chance.uniform(0.1, 0.6), seed=chance.random())
        world.burst(chance, 4)
        home = Home(world.folder / "home")
        for _ in range(4):
            kills += move(home, url, after_s=chance.uniform(0.01, 0.35))
        assert not move(home, url)
        goes_on(world, home, url)
