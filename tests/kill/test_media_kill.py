"""The real daemon on a real Synapse, killed at random moments while files come in and go out."""

from __future__ import annotations

import hashlib
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devservers import Credentials, MatrixPeer, Synapse
from tests.daemon import Daemon, matrix_settings
from tests.integration.test_matrix_media import about, fetch, upload
from tests.kill.conftest import random_kills
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

_, KILLS = random_kills()
KILLS = max(3, KILLS)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 30 * KILLS, func_only=True)]
NUMBER = re.compile(r"(\d+)\.bin")


class Person:
    """Sends numbered files, each to be sent back, and reads what comes."""

    def __init__(self, peer: MatrixPeer, bot: Credentials) -> None:
        self.peer = peer
        self.bot = bot
        self.room = peer.create_room(invite=[bot.user_id], is_direct=True)
        self.contents: list[bytes] = []

    def send(self, chance: random.Random) -> None:
        """The next file; its caption wants it back."""
        content = chance.randbytes(chance.choice([0, 1000, 400_000])) + str(len(self.contents)).encode()
        name = f"{len(self.contents)}.bin"
        url = upload(self.peer, content)
        self.peer.send_event(
            self.room, "m.room.message", about("m.file", "!sendfile", filename=name, url=url)
        )
        self.contents.append(content)

    def seen(self) -> list[tuple[str, int]]:
        """What the bot has said, in order: ``text`` or ``file``, and the number of the file it is about."""
        found = []
        for event in self.peer.history(self.room, limit=1000):
            if event.sender == self.bot.user_id:
                number = NUMBER.search(event.body)
                kind = "file" if event.content["msgtype"] == "m.file" else "text"
                found.append((kind, int(number[1]) if number else -1))
        return found

    def got_back(self) -> dict[int, bytes]:
        """The content of every file that came."""
        return {
            int(NUMBER.search(event.body)[1]): fetch(self.peer, event.content["url"])[1]
            for event in self.peer.history(self.room, limit=1000)
            if event.sender == self.bot.user_id and event.content["msgtype"] == "m.file"
        }


def wanted(count: int) -> list[tuple[str, int]]:
    """For each file one text and the file, in this order."""
    return [(kind, number) for number in range(count) for kind in ("text", "file")]


def test_the_comparison_sees_what_is_doubled_lost_and_out_of_order() -> None:
    """The control: a file twice, a text without its file, an answer before an earlier one."""
    right = wanted(2)
    assert [*right, right[-1]] != wanted(2)
    assert right[:-1] != wanted(2)
    assert [*right[2:], *right[:2]] != wanted(2)


def test_every_file_comes_back_once_whatever_dies(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
) -> None:
    """One text and one file for each file that was sent, in order, with the content that was sent; no orphans."""
    chance = chance_of("files")
    bot, alice = fresh_credentials("bot"), fresh_user("alice")
    settings = {
        "owner": {"aliases": [alice.user_id]},
        "llm": {"models": {"demo": {"model": "demo/demo"}}, "pools": {"main": ["demo"]}},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password, alice.user_id, batching="each")
        },
    }
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        person = Person(alice, bot)
        daemon.wait_until(lambda: bot.user_id in alice.members(person.room))
        for _ in range(KILLS):
            for _ in range(chance.randint(1, 3)):
                person.send(chance)
            time.sleep(chance.choice([chance.uniform(0, 0.3), chance.uniform(0.7, 2)]))
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL
            TALLY["of the daemon while files are on their way"] += 1
            person.send(chance)
            daemon.start()
        count = len(person.contents)
        daemon.wait_until(lambda: len(person.seen()) >= 2 * count, within_s=90)
        time.sleep(2)  # a second one would come now

        assert person.seen() == wanted(count), daemon.log()[-4000:]
        assert person.got_back() == dict(enumerate(person.contents))
        daemon.wait_until(lambda: daemon.work("inbox", "settled") == count)
        daemon.terminate()
        assert daemon.ended() == 0

    kept = {
        path.stem: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (daemon.home / "attachments").rglob("*")
        if path.is_file() and path.parent.name != "tmp"
    }
    assert all(name == digest for name, digest in kept.items())
    assert set(kept) == {hashlib.sha256(content).hexdigest() for content in person.contents}
