"""
The real daemon in encrypted rooms, killed at random moments while people write.

The oracle is the people's own clients: every message has exactly one answer, in its room and in order, every
answer can be read, and nothing was said in clear. `queue: each`, so that each answer names its message.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from devservers import Credentials, Synapse
from tests.daemon import Daemon, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.kill.oracle import Evidence, Saying, problems
from tests.kill.tally import TALLY

KILLS = int(os.environ.get("SQUIDBOT_KILLS", "0")) or 5
SEED = int(os.environ.get("SQUIDBOT_KILL_SEED", "0")) + 11
pytestmark = [pytest.mark.integration, pytest.mark.timeout(120 + 12 * KILLS, func_only=True)]
SETTLED_S = 2.0
STUCK_S = 40.0
NUMBER = re.compile(r"echo: #(\d+)$")


class People:
    """Two people with encrypted rooms of their own; everything they say is numbered."""

    def __init__(self, synapse: Synapse, people: list[Credentials], bot: Credentials, folder: Path) -> None:
        self.bot = bot
        self.peers = [SecretPeer(synapse.url, one, folder / one.user_id[1:8]) for one in people]
        self.rooms = {peer.create_room(bot.user_id): peer for peer in self.peers}
        self.said: list[Saying] = []

    def say(self, chance: random.Random) -> None:
        """Somebody says the next thing."""
        room, peer = chance.choice(list(self.rooms.items()))
        number = len(self.said) + 1
        peer.send(room, f"#{number}", to=self.bot.user_id)
        self.said.append(Saying(number, room, "", ""))

    def answers(self) -> int:
        """How many events the bot has sent, readable or not."""
        return sum(len(self._events(room, peer)) for room, peer in self.rooms.items())

    def wait_for_answers(self) -> None:
        """Until there is one to everything, or there have been no more of them for a while."""
        before, since = -1, time.monotonic()
        while (now := self.answers()) < len(self.said) and time.monotonic() - since < STUCK_S:
            if now != before:
                before, since = now, time.monotonic()
            time.sleep(0.2)

    def seen(self) -> list[tuple[str, str]]:
        """Room and text of everything that the bot has said; what is wrong with it in the place of the text."""
        found = []
        for room, peer in self.rooms.items():
            peer.read(room)  # takes the keys that have come
            for event in self._events(room, peer):
                if event["type"] != "m.room.encrypted":
                    found.append((room, "in clear"))
                    continue
                try:
                    text = str(peer.machine.decrypt(room, event)["content"].get("body"))
                except Exception as error:
                    text = f"undecryptable: {type(error).__name__}"
                number = NUMBER.search(text)
                found.append((room, f"re: #{number[1]}" if number else text))
        return found

    def _events(self, room: str, peer: SecretPeer) -> list[dict]:
        """What the bot has said in a room, oldest first."""
        found, token = [], ""
        while True:
            query = f"dir=b&limit=500{f'&from={token}' if token else ''}"
            answer = peer.peer.call("GET", f"/rooms/{quote(room)}/messages?{query}")
            found += [
                event
                for event in answer["chunk"]
                if event["sender"] == self.bot.user_id
                and event["type"] in ("m.room.encrypted", "m.room.message")
            ]
            token = answer.get("end", "")
            if not token or not answer["chunk"]:
                return found[::-1]


def test_sigkill_at_random_moments_in_encrypted_rooms(
    synapse: Synapse, fresh_credentials: Callable[[str], Credentials], tmp_path: Path
) -> None:
    """Whatever the moment: nothing lost, nothing doubled, nothing unreadable at the person, nothing in clear."""
    chance = random.Random(SEED)
    people, bot = [fresh_credentials("nia"), fresh_credentials("uma")], fresh_credentials("bot")
    settings = {
        "owner": {"aliases": [people[0].user_id]},
        "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(
                synapse, bot.user_id, bot.password, *(one.user_id for one in people), queue="each"
            ),
        },
    }  # fmt: skip
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        town = People(synapse, people, bot, tmp_path)
        daemon.wait_until(
            lambda: all(bot.user_id in peer.peer.members(room) for room, peer in town.rooms.items())
        )
        for _ in range(KILLS):
            for _ in range(chance.randint(1, 5)):
                town.say(chance)
            # From the first instruction of the start over the catching up to the middle of the answers.
            time.sleep(
                chance.choice([chance.uniform(0, 0.3), chance.uniform(0.8, 1.6), chance.uniform(1.0, 2.2)])
            )
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL, daemon.log()[-3000:]
            TALLY["of the daemon in encrypted rooms"] += 1
            town.say(chance)
            daemon.start()
        town.wait_for_answers()
        time.sleep(SETTLED_S)  # a second answer would come now

        wrong = [
            problem
            for problem in problems(Evidence(said=town.said, seen=town.seen(), deaths=KILLS))
            if "history" not in problem
        ]
        assert wrong == [], daemon.log()[-6000:]
        assert daemon.work("outbox", "unknown", "dead") == 0
        daemon.terminate()
        assert daemon.ended() == 0
    for peer in town.peers:
        peer.close()


def test_the_oracle_sees_what_cannot_be_read() -> None:
    """Negative control: an answer that is not readable, or said in clear, is no answer."""
    said = [Saying(1, "!a", "", "")]
    for text in ("undecryptable: NoKey", "in clear"):
        assert problems(Evidence(said=said, seen=[("!a", text)]))
    assert not [one for one in problems(Evidence(said=said, seen=[("!a", "re: #1")])) if "history" not in one]
