"""
What a stranger can do to the owner's answers: events in a shared room, invitations, poison for the keys.

While the stranger floods, the owner asks squidbot and, in turn, the echo bot on bare nio, which is not in the
flooded room and is not invited. What the busy homeserver costs is in both, so the quotient of the two is what
the flood does to squidbot itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from devservers import MatrixPeer
from tests.bench.asker import Asker
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal, share

_QUIET = 15
_WARM_UP = 3
_EVENTS = 1_500
_INVITES = 150
_POISON = 200
"""The homeserver takes about ten of either in a second, so each flood lasts for minutes, and dozens of questions fall into it."""
_FEWEST = 10
"""So many questions are asked at least; after a flood that is over sooner, while its traces are worked off."""
_BODIES = (
    {"algorithm": "m.olm.v1.curve25519-aes-sha2", "sender_key": "A" * 43, "ciphertext": {"*": {"type": 0}}},
    {"algorithm": "m.olm.v1.curve25519-aes-sha2", "sender_key": 5, "ciphertext": []},
    {"algorithm": "m.megolm.v1.aes-sha2"},
    {"algorithm": None},
    {},
)
Flood = Callable[[], Awaitable[None]]


async def floods(rig: Rig, asker: Asker, places: dict[str, str], bot: str) -> list[Figure]:
    """
    One figure for each kind of flood.

    Args:
        rig: The servers.
        asker: The owner, who asks.
        places: An encrypted room of the owner with each bot, by the bot's name; ``squidbot`` is one of them.
        bot: Squidbot's user id.
    """
    stranger = rig.synapse.register(f"stranger-{secrets.token_hex(4)}", "stranger")
    events, invites, poison = (count // 10 if rig.quick else count for count in (_EVENTS, _INVITES, _POISON))
    room = await asker.share_room(bot, stranger.user_id)
    await asker.wait_for(room, bot)
    await asyncio.to_thread(MatrixPeer.of(rig.synapse.url, stranger).join, room)
    token = stranger.access_token

    quiet: dict[str, list[float]] = {name: [] for name in places}
    await _ask(asker, places, quiet, "quiet", _WARM_UP + _QUIET)
    kinds: list[tuple[str, Flood]] = [
        (f"sends {events} messages to a shared room", lambda: asker.flood(token, room, events)),
        (f"invites the bot into {invites} rooms", lambda: _invite(asker, token, bot, invites)),
        (f"sends {poison} invalid to-device events", lambda: _poison(asker, token, bot, poison)),
    ]
    figures = []
    for what, flood in kinds:
        rig.say(f"a stranger {what}, while the owner asks")
        took: dict[str, list[float]] = {name: [] for name in places}
        running = asyncio.ensure_future(flood())
        while not running.done() or len(took["squidbot"]) < _FEWEST:
            await _ask(asker, places, took, secrets.token_hex(4), 1)
        await running
        figures.append(_figure(what, quiet, took))
    return figures


async def _ask(
    asker: Asker, places: dict[str, str], took: dict[str, list[float]], word: str, count: int
) -> None:
    for number in range(count):
        for name, place in places.items():
            took[name].append(await asker.ask(place, f"{word} {number}."))


async def _invite(asker: Asker, token: str, bot: str, count: int) -> None:
    body = {"invite": [bot], "is_direct": True, "preset": "private_chat"}
    await asker.as_somebody(token, [("POST", "/createRoom", body)] * count)


async def _poison(asker: Asker, token: str, bot: str, count: int) -> None:
    calls: list[tuple[str, str, object]] = []
    for number in range(count):
        path = f"/sendToDevice/m.room.encrypted/poison-{number}"
        calls.append(("PUT", path, {"messages": {bot: {"*": _BODIES[number % len(_BODIES)]}}}))
    await asker.as_somebody(token, calls)


def _figure(what: str, quiet: dict[str, list[float]], took: dict[str, list[float]]) -> Figure:
    slower = {name: share(took[name], 0.5) / share(quiet[name][_WARM_UP:], 0.5) for name in took}
    others = [factor for name, factor in slower.items() if name != "squidbot"]
    return Figure(
        f"answer time while a stranger {what}, relative to without: p50",
        slower["squidbot"] / max(others),
        "x",
        Goal("<", 2),
        group="flood",
        note=f"beyond what the busy homeserver itself costs; with it {slower['squidbot']:.1f}x, a bot that the "
        f"stranger does not know {max(others):.1f}x; {len(took['squidbot'])} questions",
    )
