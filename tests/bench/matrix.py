"""
From a question to its answer through a real homeserver: squidbot, and beside it an echo bot on bare nio.

One person asks both in turn, plainly and encrypted, in one room and in twenty at once; the clock runs from the
start of the sending until the person's client has the answer in clear. What Synapse and the person's client
take is in both figures, so the difference is what squidbot adds.
"""

from __future__ import annotations

import asyncio
import secrets
import time

from tests.bench.asker import Asker
from tests.bench.flood import floods
from tests.bench.rig import Daemon, Rig
from tests.bench.table import Figure, Goal, share

_WARM_UP = 3
_ROOMS = 20
_OFFLINE = 120
_IDLE_S = 20.0
Rooms = dict[str, dict[bool, list[str]]]
"""By bot, and by whether they are encrypted."""


def measure(rig: Rig) -> list[Figure]:
    """Everything about Matrix."""
    daemon = rig.daemon(mail=False, batching="each")
    daemon.start()
    floor = rig.synapse.register(f"floor-{secrets.token_hex(4)}", "floor")
    rig.helper(
        "tests.bench.echo_matrix",
        *("--homeserver", rig.synapse.url, "--user-id", floor.user_id),
        *("--access-token", floor.access_token, "--device-id", floor.device_id),
        *("--store", str(rig.made_folder("floor-keys"))),
    )
    return asyncio.run(_ask_all(rig, daemon, floor.user_id))


async def _ask_all(rig: Rig, daemon: Daemon, floor: str) -> list[Figure]:
    person = rig.person()
    async with Asker(
        rig.synapse.url, person.user_id, person.access_token, person.device_id, rig.made_folder("asker")
    ) as asker:
        bots = {"squidbot": f"@{daemon.name}:{rig.synapse.server_name}", "floor": floor}
        rooms: Rooms = {}
        for name, bot in bots.items():
            rooms[name] = {
                secret: [await asker.room_with(bot, encrypted=secret) for _ in range(_ROOMS)]
                for secret in (False, True)
            }
        figures: list[Figure] = []
        for secret in (False, True):
            figures += await _one_by_one(rig, asker, rooms, secret=secret)
            figures += await _at_once(rig, asker, rooms, secret=secret)
        places = {name: by_kind[True][1] for name, by_kind in rooms.items()}
        figures += await floods(rig, asker, places, bots["squidbot"])
        figures.append(await _offline(rig, asker, daemon, rooms["squidbot"][True][0]))
        figures += await _idle(rig, daemon)
        await asyncio.to_thread(daemon.stop)
        return [*figures, *await _typing(rig, asker)]


async def _one_by_one(rig: Rig, asker: Asker, rooms: Rooms, *, secret: bool) -> list[Figure]:
    count = 10 if rig.quick else 50
    rig.say(f"{count} questions one by one, {_word(secret)}")
    took: dict[str, list[float]] = {name: [] for name in rooms}
    for number in range(_WARM_UP + count):
        for name, by_kind in rooms.items():
            took_s = await asker.ask(by_kind[secret][0], f"question {number}.")
            if number >= _WARM_UP:
                took[name].append(took_s * 1000)
    return _figures(f"{_word(secret)}, one room", took)


async def _at_once(rig: Rig, asker: Asker, rooms: Rooms, *, secret: bool) -> list[Figure]:
    rounds = 3 if rig.quick else 10
    rig.say(f"{rounds} rounds of questions in {_ROOMS} rooms at once, {_word(secret)}")
    took: dict[str, list[float]] = {name: [] for name in rooms}
    for number in range(1 + rounds):
        for name, by_kind in rooms.items():
            asked = [asker.ask(room, f"round {number}.") for room in by_kind[secret]]
            found = await asyncio.gather(*asked)
            if number >= 1:
                took[name] += [one * 1000 for one in found]
    return _figures(f"{_word(secret)}, {_ROOMS} rooms at once", took, at_once=True)


async def _typing(rig: Rig, asker: Asker) -> list[Figure]:
    count = 6 if rig.quick else 20
    daemon = rig.daemon({"models": {"slow": {"model": "demo/demo"}}, "pools": {"main": ["slow"]}}, mail=False)
    await asyncio.to_thread(daemon.start)
    room = await asker.room_with(f"@{daemon.name}:{rig.synapse.server_name}", encrypted=True)
    rig.say(f"{count} questions until typing is seen")
    took = [
        await asker.typing_after(room, f"!slow 1 question {number}.") * 1000
        for number in range(_WARM_UP + count)
    ][_WARM_UP:]
    await asyncio.to_thread(daemon.stop)
    what = "typing seen after an encrypted question, with a model that takes a second"
    return [
        Figure(f"{what}: p50", share(took, 0.5), "ms"),
        Figure(f"{what}: p95", share(took, 0.95), "ms", Goal("<", 150)),
    ]


async def _offline(rig: Rig, asker: Asker, daemon: Daemon, room: str) -> Figure:
    daemon.kill()
    rig.say(f"{_OFFLINE} encrypted messages while the daemon is away")
    for number in range(_OFFLINE):
        await asker.send(room, f"offline {number}.")
    last = asker.when(
        lambda where, event: where == room and f"offline {_OFFLINE - 1}." in str(event["content"].get("body"))
    )
    begun = time.perf_counter()
    await asyncio.to_thread(daemon.start)
    took_s = await asyncio.wait_for(last, 120) - begun
    return Figure(
        f"{_OFFLINE} encrypted messages of an absence, from the start of the process until all are answered",
        took_s,
        "s",
        Goal("<", 15),
    )


async def _idle(rig: Rig, daemon: Daemon) -> list[Figure]:
    seconds = 5.0 if rig.quick else _IDLE_S
    await asyncio.sleep(3.0)
    rig.say(f"watching the idle daemon for {seconds:.0f} s")
    cpu_s, begun = daemon.cpu_s, time.perf_counter()
    await asyncio.sleep(seconds)
    percent = (daemon.cpu_s - cpu_s) / (time.perf_counter() - begun) * 100
    return [
        Figure(
            f"resident memory with encryption, {2 * _ROOMS} rooms, after all this",
            daemon.rss_mb,
            "MB",
            Goal("<", 100),
        ),
        Figure("processor time while idle, with encryption", percent, "%", Goal("<", 0.5)),
    ]


def _figures(what: str, took: dict[str, list[float]], *, at_once: bool = False) -> list[Figure]:
    figures = []
    for part, label in ((0.5, "p50"), (0.95, "p95")):
        ours, floor = share(took["squidbot"], part), share(took["floor"], part)
        goal = Goal("<", 1.3 * floor) if label == "p50" else None
        if at_once and label == "p95":
            goal = Goal("<", 1.2 * floor)
        figures.append(
            Figure(
                f"question to answer, {what}: {label}",
                ours,
                "ms",
                goal,
                floor=floor,
                floor_is="an echo bot on bare nio",
            )
        )
    return figures


def _word(secret: bool) -> str:
    return "encrypted" if secret else "plain"
