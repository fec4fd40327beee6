"""
One guest asked something slow in each of thirteen threads, and the question of another guest waited for 69 s: places
went round among conversations, and thirteen of fourteen were the first guest's.
"""

from __future__ import annotations

import anyio
import pytest

from gateway.settings import Settings
from gateway.supervision.turn_watchdog import TurnWatchdog
from tests.clock import ManualClock
from tests.doubles.loopback import LoopbackServer
from tests.integration.command_world import ANN, BOB, CID, EVE, Mind, settled
from tests.integration.gateway_world import Scenario, world

THREADS = 13
SETTINGS = {"owner": {"aliases": [{"channel": "matrix", "address": ANN}]}, "gateway": {"drain_seconds": 0}}
PLACES = Settings().gateway.max_concurrent_turns


def opened(root, mind: Mind, server: LoopbackServer):
    return world(root, server=server, queue="merge", name="matrix", settings=SETTINGS, models={"demo": mind})


async def running(one: Scenario, count: int) -> None:
    """Wait until so many turns run, and no more."""
    with anyio.fail_after(60):
        while (await one.inbox()).get("running") != count:
            await anyio.sleep(0.02)
    await anyio.sleep(0.1)
    assert (await one.inbox())["running"] == count


def crowd(server: LoopbackServer) -> None:
    for number in range(THREADS):
        server.say(EVE, "slow", conversation=f"thread {number}")


@pytest.mark.parametrize("restarted", [False, True])
async def test_another_guest_is_answered_while_one_has_thirteen_threads(restarted: bool, tmp_path):
    """None of the thirteen ever ends; the other guest has a place all the same, and so has the owner."""
    mind, server = Mind(), LoopbackServer()
    async with opened(tmp_path, mind, server) as one:
        crowd(server)
        await running(one, PLACES // 2)
        if not restarted:
            assert (await one.asked("hello", person=BOB)).text.startswith("answer")
            assert (await one.asked("hello", person=ANN)).text.startswith("answer")
            assert (await one.inbox())["running"] == PLACES // 2
            mind.gate.set()
            await settled(one, settled=THREADS + 2)
            return
    mind = Mind()
    async with opened(tmp_path, mind, server) as one:  # whose the threads are is known after a start, too
        await running(one, PLACES // 2)
        assert (await one.asked("hello", person=BOB)).text.startswith("answer")
        mind.gate.set()
        await settled(one, settled=THREADS + 1)


async def test_places_go_round_among_people(tmp_path):
    """Three people with some questions each: between two turns of one of them everybody else has had one."""
    mind, server = Mind(), LoopbackServer()
    settings = {**SETTINGS, "gateway": {"drain_seconds": 0, "max_concurrent_turns": 1}}
    async with world(
        tmp_path, server=server, queue="merge", name="matrix", settings=settings, models={"demo": mind}
    ) as one:
        server.say(CID, "slow", conversation="first")
        await running(one, 1)
        for person, count in ((EVE, 6), (BOB, 2), (CID, 2)):
            for number in range(count):
                server.say(person, f"question of {person}", conversation=f"{person} {number}")
        with anyio.fail_after(60):
            while (await one.inbox()).get("ready") != 10:
                await anyio.sleep(0.02)
        mind.gate.set()
        await settled(one, settled=11)
    order = [
        next(person for person in (EVE, BOB, CID) if person in question)
        for question in mind.asked[1:]
        if "question of" in question
    ]
    assert order[:6] == [EVE, BOB, CID, EVE, BOB, CID]


async def test_the_watch_does_not_take_it_for_a_stand_still(tmp_path):
    """Places that are left to others are no sign that no turn begins."""
    mind, server, clock = Mind(), LoopbackServer(), ManualClock()
    async with opened(tmp_path, mind, server) as one:
        crowd(server)
        await running(one, PLACES // 2)
        parts = one.built
        watchdog = TurnWatchdog(
            parts.dispatcher, parts.store.turns.open_sessions, allowed_s=10_000, clock=clock, look_every_s=60
        )
        for _ in range(10):
            clock.advance(60)
            await watchdog.check_once()
            assert watchdog.reason() is None
        mind.gate.set()
        await settled(one, settled=THREADS)
