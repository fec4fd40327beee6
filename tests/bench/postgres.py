"""
The queue in PostgreSQL, and several daemons on it: what it costs, and what a second daemon brings.

The goals are for the queue alone (accepted, claimed, a handler of 10 ms, the answer committed), as for the embedded one
in `tests.bench.throughput`; what the whole daemon takes beside is shown without one. ``make scale-bench`` says more.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import anyio

from devservers.errors import ToolsMissing
from tests.bench.rig import Rig, in_child
from tests.bench.table import Figure, Goal, share
from tests.postgres_server import PostgresServer
from tests.scale.world import Cost, Scenario, server_cpu_s

_HANDLER_S = 0.01
_WAITING = 5_000


def measure(rig: Rig) -> list[Figure]:
    """First the queue alone, then daemons."""
    try:
        with PostgresServer.start(fsync=True) as server:
            figures = _queue(rig, server)
        return [*figures, *anyio.run(_daemons, rig)]
    except ToolsMissing as missing:
        return [Figure("the queue in PostgreSQL", None, "", note=str(missing))]


def _queue(rig: Rig, server: PostgresServer) -> list[Figure]:
    load = {"sessions": 50, "messages": 4} if rig.quick else {}
    waiting = 500 if rig.quick else _WAITING
    rig.say("messages through the queue in PostgreSQL")
    before_s = server_cpu_s(server)
    flood = _run(server, load)
    server_ms = (server_cpu_s(server) - before_s) / flood["messages"] * 1000
    calm = _run(server, {"sessions": 10, "messages": 20, "handler_s": 0.0, "pause_s": 0.02})
    rig.say(f"the same beside a session in which {waiting:,} messages wait")
    hot = _run(server, {"sessions": 20, "messages": 15, "pause_s": 0.02, "waiting": waiting})
    cpu_ms = flood["cpu_ms_per_message"] + server_ms
    return [
        Figure(
            "from acceptance to the committed answer: p50",
            calm["complete_ms"]["p50"],
            "ms",
            Goal("<", 10),
            note=f"one message after the other; p99 {calm['complete_ms']['p99']} ms",
        ),
        Figure(
            "messages to their committed answers, handler 10 ms",
            flood["msg_s"],
            "/s",
            Goal(">=", 150),
            note=f"accepting one: p99 {flood['accept_ms']['p99']} ms",
        ),
        Figure("order violations", flood["order_violations"] + hot["order_violations"], "", Goal("=", 0)),
        Figure(
            "processor time of a message, client and server",
            cpu_ms,
            "ms",
            Goal("<", 6),
            note=f"{flood['cpu_ms_per_message']:.1f} + {server_ms:.1f} ms",
        ),
        Figure(
            f"wait for a turn while {waiting:,} messages wait in another session: p99",
            hot["dispatch_ms"]["p99"],
            "ms",
            Goal("<", 50),
            note=f"p50 {hot['dispatch_ms']['p50']} ms",
        ),
    ]


def _run(server: PostgresServer, load: dict[str, Any]) -> dict[str, Any]:
    url = server.with_tables()
    result: dict[str, Any] = in_child("tests.bench.store", json.dumps({"url": url, **load}))
    with server.admin() as db, contextlib.suppress(Exception):
        db.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")
    return result


async def _daemons(rig: Rig) -> list[Figure]:
    seconds = 3.0 if rig.quick else 10.0
    sessions = 100 if rig.quick else 1_000
    async with Scenario.opened(accounts=4, model_s=_HANDLER_S, turns=4, statements=False) as world:
        places = world.places(sessions)
        rig.say("one daemon, a model of 10 ms")
        async with world.daemons(1):
            before, said = await world.snapshot(), len(world.people.ledger.asked)
            whole = await world.people.at_once(places, waiting=16, seconds=seconds)
            await world.settled()
            cost, count = Cost.between(before, await world.snapshot()), len(world.people.ledger.asked) - said
            calm = await world.people.paced(places, rate=5, seconds=seconds)
            left = await world.settled()
        rig.say("a daemon and two standbys at rest")
        async with world.daemons(3):
            await anyio.sleep(seconds)
            before = await world.snapshot()
            await anyio.sleep(2 * seconds)
            rest = Cost.between(before, await world.snapshot())
        problems = [*world.people.ledger.problems(), *(["rows left open"] if any(left) else [])]
    took = [one.answered_at - one.said_at for one in calm if one.answers]
    client, server = (1000 * part / count for part in (cost.clients_s, cost.server_s))
    return [
        Figure(
            "load at the database of a daemon and two standbys at rest",
            rest.server_s / rest.took_s * 100,
            "% of a core",
            Goal("<", 2),
            note=f"{sum(calls[0] for calls in rest.calls.values()) / rest.took_s:.1f} calls/s",
        ),
        Figure("answers of one whole daemon, model 10 ms, 4 turns at once", whole, "/s"),
        Figure(
            "processor time of its message, client and server",
            client + server,
            "ms",
            note=f"{client:.1f} + {server:.1f} ms; {cost.round_trips / count:.0f} round trips, WAL"
            f" {cost.wal / count / 1000:.0f} kB",
        ),
        Figure(
            "from a message to its answer: p50",
            share(took, 0.5) * 1000,
            "ms",
            note="model 10 ms, 5 messages/s",
        ),
        Figure(
            "lost, doubled or out of order", len(problems), "", Goal("=", 0), note="; ".join(problems[:2])
        ),
    ]
