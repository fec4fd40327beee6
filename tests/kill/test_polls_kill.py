"""
Polls of a person with the real daemon, which is killed around their ends, in a plain and an encrypted room.

Each poll is answered once, its result reaches the conversation once, whatever is killed, and no result is answered.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from devservers import Credentials, MatrixPeer, Synapse
from tests.daemon import Daemon, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.integration.test_everyday_on_a_phone import HonestModel
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

KILLS = min(int(os.environ.get("SQUIDBOT_KILLS", "0")) or 4, 30)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 30 * KILLS, func_only=True)]
KIND, WORDS = "org.matrix.msc3381.poll", "org.matrix.msc1767.text"
ENDED = re.compile(r"\[The poll “poll (\d+)\?” has ended. Votes: ([^\]]*)\]")


class Asker:
    """A person alone with the bot, who makes polls."""

    def __init__(self, url: str, account: Credentials, bot: str, folder: Path, *, encrypted: bool) -> None:
        self.bot = bot
        self.peer = MatrixPeer.of(url, account)
        self.secret = SecretPeer(url, account, folder) if encrypted else None
        made = self.secret.create_room(bot) if self.secret else None
        self.room = made or self.peer.create_room([bot], is_direct=True)

    def send(self, kind: str, content: dict[str, Any], text: str = "") -> str:
        if self.secret is not None:
            return str(self.secret.send(self.room, text, to=self.bot, kind=kind, **content))
        return str(self.peer.send_event(self.room, kind, {**content, **({"body": text} if text else {})}))

    def start(self, number: int) -> str:
        answers = [{"id": "a", WORDS: "six"}, {"id": "b", WORDS: "seven"}]
        return self.send(
            f"{KIND}.start", {f"{KIND}.start": {"question": {WORDS: f"poll {number}?"}, "answers": answers}}
        )

    def about(self, poll: str, what: str, content: dict[str, Any]) -> None:
        relation = {"m.relates_to": {"rel_type": "m.reference", "event_id": poll}}
        self.send(f"{KIND}.{what}", {**relation, f"{KIND}.{what}": content})

    def answers(self) -> list[str]:
        """What the bot has said."""
        if self.secret is not None:
            return [each["body"] for _, each in self.secret.read(self.room) if "m.new_content" not in each]
        return [one.body for one in self.peer.history(self.room, limit=500) if one.sender == self.bot]


def problems(prompt: str, polls: int) -> list[str]:
    """What is wrong with the results in a prompt: missing, doubled, or other votes."""
    found = ENDED.findall(prompt)
    counted = Counter(int(number) for number, _ in found)
    wrong = [f"poll {number}: {counted[number]} times" for number in range(polls) if counted[number] != 1]
    return wrong + [f"poll {number}: {votes}" for number, votes in found if votes != "seven: 1"]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_the_result_of_a_poll_is_known_once(
    synapse: Synapse, fresh_credentials: Callable[[str], Credentials], tmp_path: Path, encrypted: bool
) -> None:
    """One kill for each poll, up to a second after its end."""
    bot, ann = fresh_credentials("bot"), fresh_credentials("ann")
    chance = chance_of(f"polls {encrypted}")
    with HonestModel({}) as model:
        settings = {
            "owner": {"aliases": [ann.user_id]},
            "llm": {
                "providers": {"own": {"api_base": model.api_base, "api_key": "k"}},
                "models": {"honest": {"model": "openai/honest", "provider": "own"}},
                "pools": {"main": ["honest"]},
                "default_pool": "main",
            },
            "agents": {"heartbeat": {"enabled": False}},
            "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password, batching="each")},
        }
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.up()
            asker = Asker(synapse.url, ann, bot.user_id, tmp_path / "ann", encrypted=encrypted)
            daemon.wait_until(lambda: bot.user_id in asker.peer.members(asker.room))
            for number in range(KILLS):
                poll = asker.start(number)
                daemon.wait_until(lambda wanted=number + 1: len(asker.answers()) >= wanted)
                for choice in "ab":
                    asker.about(poll, "response", {"answers": [choice]})
                asker.about(poll, "end", {})
                time.sleep(chance.uniform(0, 1))
                daemon.kill()
                TALLY["of the daemon around the end of a poll"] += 1
                daemon.up()
            asker.send("m.room.message", {"msgtype": "m.text"}, "what has come of them?")
            daemon.wait_until(lambda: len(asker.answers()) >= KILLS + 1)
            time.sleep(1)
            said = asker.answers()
            if asker.secret is not None:
                asker.secret.close()
    assert problems(shown(model.asked), KILLS) == []
    assert len(said) == KILLS + 1, said


def shown(asked: Sequence[dict[str, Any]]) -> str:
    """The prompt of the newest question."""
    return json.dumps(asked[-1]["messages"], ensure_ascii=False)


def test_what_is_missing_or_doubled_is_seen() -> None:
    """The control of the oracle."""
    one, two = (f"[The poll “poll {number}?” has ended. Votes: seven: 1]" for number in range(2))
    assert problems(f"{one} {two}", 2) == []
    assert problems(one, 2) == ["poll 1: 0 times"]
    assert problems(f"{one} {one} {two}", 2) == ["poll 0: 2 times"]
    assert problems(one.replace("seven", "six"), 1) == ["poll 0: six: 1"]
