"""
A guest who may write opened a dozen threads and asked something slow in each. All places for turns were taken,
the others stood in a line, and the owner stood behind them: for minutes, and for hours with more threads.
"""

from __future__ import annotations

import anyio

from tests.doubles.loopback import LoopbackServer
from tests.integration.command_world import ANN, BOB, EVE, Mind, settled
from tests.integration.gateway_world import Scenario, world

GUESTS = 12
PLACES = 4
SETTINGS = {
    "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
    "gateway": {"max_concurrent_turns": PLACES, "drain_seconds": 0},
}


def opened(root, mind: Mind, server: LoopbackServer):
    """A gateway with few places."""
    return world(root, server=server, queue="merge", name="matrix", settings=SETTINGS, models={"demo": mind})


async def all_taken(one: Scenario) -> None:
    """Wait until every place is taken and the others wait."""
    with anyio.fail_after(60):
        while True:
            counts = await one.inbox()
            if (counts.get("running"), counts.get("ready")) == (PLACES, GUESTS - PLACES):
                return
            await anyio.sleep(0.02)


async def test_the_owner_is_answered_while_guests_take_every_place(tmp_path):
    """However many guests wait for however long, the owner's question is answered now, and theirs later."""
    mind, server = Mind(), LoopbackServer()
    async with opened(tmp_path, mind, server) as one:
        for number in range(GUESTS):
            server.say((EVE, BOB)[number % 2], "slow", conversation=f"thread {number}")
        await all_taken(one)
        assert (await one.asked("hello", person=ANN)).text.startswith("answer")
        assert (await one.inbox())["running"] == PLACES
        mind.gate.set()
        await settled(one, settled=GUESTS + 1)


async def test_the_owner_comes_first_after_a_restart(tmp_path):
    """What the owner asked before a restart does not stand behind guests after it."""
    server = LoopbackServer()
    async with opened(tmp_path, Mind(), server) as one:
        assert (await one.asked("hello", person=ANN)).text == "answer 1"
    mind = Mind()
    async with opened(tmp_path, mind, server) as one:
        for number in range(GUESTS):
            server.say((EVE, BOB)[number % 2], "slow", conversation=f"thread {number}")
        await all_taken(one)
        server.say(ANN, "slow, too")
        with anyio.fail_after(60):
            while (await one.inbox()).get("running") != PLACES + 1:
                await anyio.sleep(0.02)
    again = Mind()
    async with opened(tmp_path, again, server) as one:
        with anyio.fail_after(60):
            while not any("slow, too" in question for question in again.asked):
                await anyio.sleep(0.02)
        again.gate.set()
        await settled(one, settled=GUESTS + 2)
