"""
The real daemon in encrypted rooms, killed at random moments while people write.

The oracle is the people's own clients: every message has exactly one answer, in its room and in order, every
answer can be read, and nothing was said in clear. `batching: each`, so that each answer names its message. Where
Node is there, one of the people has an Element-like client, and what it shows counts: unreadable, or with a shield,
is no answer. Of the others one takes each key as it comes and says everything with a new one, so that the sessions
between the devices go on in both directions; the other is away until the end, when more keys may wait than one sync brings.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from devservers import Credentials, MatrixPeer, Synapse
from tests.daemon import Daemon, matrix_settings
from tests.integration.element.client import Person, node_modules
from tests.integration.matrix_bot import call
from tests.integration.secret_peer import SecretPeer
from tests.kill.oracle import Evidence, Saying, problems
from tests.kill.tally import SEED, TALLY
from tests.kill.tally import chance as chance_of
from tests.npm_packages import NodeMissing

KILLS = int(os.environ.get("SQUIDBOT_KILLS", "0")) or 5
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 15 * KILLS, func_only=True)]
SETTLED_S = 2.0
STUCK_S = 60.0
SLOW_START_S = 30.0
NUMBER = re.compile(r"echo: #(\d+)$")


class People:
    """People with encrypted rooms of their own; everything they say is numbered."""

    def __init__(self, synapse: Synapse, people: list[Credentials], bot: Credentials, folder: Path) -> None:
        self.bot = bot
        self.peers = [SecretPeer(synapse.url, one, folder / one.user_id[1:8]) for one in people]
        self.rooms = {
            peer.create_room(bot.user_id, version=version): peer.peer
            for peer, version in zip(self.peers, ("11", "12"), strict=True)
        }
        self.said: list[Saying] = []
        self.uma: Person | None = None
        self.place = ""

    @contextlib.asynccontextmanager
    async def with_element(self, url: str, account: Credentials) -> AsyncIterator[str]:
        """Somebody with an Element-like client joins them, if there is Node; says who is there."""
        try:
            modules = node_modules()
        except NodeMissing as missing:
            yield f"of the daemon in encrypted rooms, nobody with an Element-like client ({missing})"
            return
        async with Person.up(modules, url, account) as self.uma:
            await self.uma.do("bootstrap", password=account.password)
            self.place = await self.uma.do("create", invite=[self.bot.user_id], encrypted=True)
            self.rooms[self.place] = MatrixPeer.of(url, account)
            yield "of the daemon in encrypted rooms, one with an Element-like client"

    async def say(self, chance: random.Random) -> None:
        """Somebody says the next thing."""
        room = chance.choice(list(self.rooms))
        number = len(self.said) + 1
        if room == self.place and self.uma is not None:
            await self.uma.do("send", room=room, text=f"#{number}")
        else:
            peer = next(one for one in self.peers if one.peer is self.rooms[room])
            if peer is self.peers[0]:
                await call(peer.take_keys)
                peer.new_key(room)
            await call(peer.send, room, f"#{number}", to=self.bot.user_id)
        self.said.append(Saying(number, room, "", ""))

    def newest(self) -> list[str]:
        """The newest event of the bot in each room."""
        only = quote(json.dumps({"senders": [self.bot.user_id]}))
        found = []
        for room, peer in self.rooms.items():
            chunk = peer.call("GET", f"/rooms/{quote(room)}/messages?dir=b&limit=1&filter={only}")["chunk"]
            found += [event["event_id"] for event in chunk]
        return found

    def answers(self) -> int:
        """How many events the bot has sent, readable or not."""
        return sum(len(self._events(room)) for room in self.rooms)

    async def wait_for_answers(self) -> None:
        """Until there is one to everything, or there have been no more of them for a while."""
        before, since = -1, time.monotonic()
        while (now := await call(self.answers)) < len(self.said) and time.monotonic() - since < STUCK_S:
            if now != before:
                before, since = now, time.monotonic()
            await anyio.sleep(0.2)

    async def seen(self) -> list[tuple[str, str]]:
        """Room and text of everything that the bot has said; what is wrong with it in the place of the text."""
        found = []
        for room in self.rooms:
            peer = next((one for one in self.peers if one.peer is self.rooms[room]), None)
            if peer is not None:
                await call(peer.read, room)  # takes the keys that have come
            for event in await call(self._events, room):
                if event["type"] != "m.room.encrypted":
                    found.append((room, "in clear"))
                    continue
                text = await self._shown(room, event) if peer is None else _decrypted(peer, room, event)
                number = NUMBER.search(text)
                found.append((room, f"re: #{number[1]}" if number else text))
        return found

    async def _shown(self, room: str, event: dict) -> str:
        """What the Element-like client shows of an event."""
        assert self.uma is not None
        seen = await self.uma.do("look", room=room, event=event["event_id"])
        if seen["unreadable"] or seen["shield"]:
            return f"undecryptable: {seen['unreadable'] or seen['reason']}"
        return str(seen["content"].get("body"))

    def _events(self, room: str) -> list[dict]:
        """What the bot has said in a room, oldest first."""
        found, token = [], ""
        while True:
            query = f"dir=b&limit=500{f'&from={token}' if token else ''}"
            answer = self.rooms[room].call("GET", f"/rooms/{quote(room)}/messages?{query}")
            found += [
                event
                for event in answer["chunk"]
                if event["sender"] == self.bot.user_id
                and event["type"] in ("m.room.encrypted", "m.room.message")
            ]
            token = answer.get("end", "")
            if not token or not answer["chunk"]:
                return found[::-1]


def _decrypted(peer: SecretPeer, room: str, event: dict) -> str:
    try:
        return str(peer.machine.decrypt(room, event)["content"].get("body"))
    except Exception as error:
        return f"undecryptable: {type(error).__name__}"


async def the_moment(chance: random.Random, town: People, before: list[str]) -> str:
    """
    Wait for the moment of death: while it starts, from its first instruction over the catching up, or in the middle of
    its answers, however slow this machine is. Says which it was.
    """
    if chance.random() < 0.4:
        await anyio.sleep(chance.uniform(0, 2.2))
        return "started"
    with anyio.move_on_after(SLOW_START_S):
        while await call(town.newest) == before:
            await anyio.sleep(0.05)
        await anyio.sleep(chance.uniform(0, 0.4))
        return "answering"
    return "late"


async def test_sigkill_at_random_moments_in_encrypted_rooms(
    synapse: Synapse, fresh_credentials: Callable[[str], Credentials], tmp_path: Path
) -> None:
    """Whatever the moment: nothing lost, nothing doubled, nothing unreadable at the person, nothing in clear."""
    chance = chance_of("encrypted rooms")
    names = [fresh_credentials(name) for name in ("nia", "ole", "uma")]
    people, bot = names[:2], fresh_credentials("bot")
    settings = {
        "owner": {"aliases": [people[0].user_id]},
        "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(
                synapse, bot.user_id, bot.password, *(one.user_id for one in names), batching="each"
            ),
        },
    }  # fmt: skip
    moments: Counter[str] = Counter()
    with Daemon(tmp_path / "home", settings) as daemon:
        await call(daemon.up)
        town = People(synapse, people, bot, tmp_path)
        async with town.with_element(synapse.url, names[2]) as who:
            await call(daemon.wait_until, lambda: all(_is_in(town, room) for room in town.rooms))
            before = await call(town.newest)
            for _ in range(KILLS):
                for _ in range(chance.randint(1, 5)):
                    await town.say(chance)
                moments[await the_moment(chance, town, before)] += 1
                daemon.kill()
                assert daemon.ended() == -signal.SIGKILL, daemon.log()[-3000:]
                TALLY[who] += 1
                before = await call(town.newest)
                moments["with questions open"] += await call(town.answers) < len(town.said)
                await town.say(chance)
                daemon.start()
            await town.wait_for_answers()
            await anyio.sleep(SETTLED_S)  # a second answer would come now

            seen = await town.seen()
        wrong = [
            problem
            for problem in problems(Evidence(said=town.said, seen=seen, deaths=KILLS))
            if "history" not in problem
        ]
        keys = [peer.keys_taken for peer in town.peers]
        print(
            f"{KILLS} kills, seed {SEED}, {len(town.said)} messages, {len(seen)} answers, {keys} keys, {dict(moments)}"
        )
        assert wrong == [], daemon.log()[-6000:]
        assert daemon.work("outbox", "unknown", "dead") == 0
        daemon.terminate()
        assert daemon.ended() == 0
    for peer in town.peers:
        peer.close()
    assert moments["answering"] >= KILLS // 3  # otherwise the moments were not those that are dangerous


def _is_in(town: People, room: str) -> bool:
    return town.bot.user_id in town.rooms[room].members(room)


def test_the_oracle_sees_what_cannot_be_read() -> None:
    """Negative control: an answer that is not readable, or said in clear, is no answer."""
    said = [Saying(1, "!a", "", "")]
    for text in ("undecryptable: NoKey", "in clear"):
        assert problems(Evidence(said=said, seen=[("!a", text)]))
    assert not [one for one in problems(Evidence(said=said, seen=[("!a", "re: #1")])) if "history" not in one]
