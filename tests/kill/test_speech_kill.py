"""
The real daemon on a real Synapse and a real mail server, killed between turn, speech and sending.

The oracle reads what people got and what the provider of speech was asked: one text for each message, at most one voice
message, and none is asked for in a later life but what was in the daemon's hands when it died.
"""

from __future__ import annotations

import json
import random
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from devservers import Credentials, MailPeer, MailServer, MatrixPeer, SpeechServer, Synapse, text_of
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.kill.conftest import random_kills
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

KILLS = max(3, *random_kills()[1:])
NUMBER = re.compile(r"#(\d+)\b")
NO_BRAKE = dict.fromkeys(
    ("answers_per_hour", "thread_answers_per_hour", "max_identical_replies", "bounces_per_hour"), 0
)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 30 * KILLS, func_only=True)]


class People:
    """Somebody in a room and somebody with a mailbox, who number what they say; and what comes of that."""

    def __init__(self, peer: MatrixPeer, room: str, bot: Credentials, mail: MailPeer, bot_mail: str) -> None:
        self.peer = peer
        self.room = room
        self.bot = bot
        self.mail = mail
        self.bot_mail = bot_mail
        self.said = 0
        self.asked: list[tuple[int, int]] = []
        """Of each request for speech: in which life, and of which message."""
        self.in_hand: list[set[int]] = []
        """For each death the messages that were being spoken."""

    def say(self, chance: random.Random) -> None:
        """The next message."""
        self.said += 1
        if chance.random() < 0.6:
            self.peer.send(self.room, f"hello #{self.said}")
        else:
            self.mail.send(self.bot_mail, f"Mail {self.said}", f"hello #{self.said}")

    def came(self) -> Counter[tuple[str, int]]:
        """What came: ``text`` or ``voice``, and for which message."""
        found: Counter[tuple[str, int]] = Counter()
        for event in self.peer.history(self.room, limit=1000):
            if event.sender != self.bot.user_id:
                continue
            if event.content["msgtype"] == "m.audio":
                found["voice", number_of_sound(event.content["info"]["duration"])] += 1
            else:
                found["text", _number(event.body)] += 1
        for mail in self.mail.list():
            if list(mail.iter_attachments()):
                found["voice", self.number_of_voice(mail)] += 1
            else:
                found["text", _number(text_of(mail))] += 1
        return found

    def number_of_voice(self, mail: EmailMessage) -> int:
        """For which message a mail with a sound came."""
        return _number(text_of(mail))

    def problems(self) -> list[str]:
        """What must not be."""
        came = self.came()
        wrong = [f"#{n}: {came['text', n]} texts" for n in range(1, self.said + 1) if came["text", n] != 1]
        wrong += [
            f"#{n}: {came['voice', n]} voice messages"
            for n in range(1, self.said + 1)
            if came["voice", n] > 1
        ]
        wrong += [f"nobody said {what}" for what in came if not 1 <= what[1] <= self.said]
        last: dict[int, int] = {}
        for life, number in self.asked:
            before, last[number] = last.get(number, life), life
            # In a life between the two nobody may have come to ask for it.
            if before != life and number not in self.in_hand[before]:
                wrong.append(f"#{number}: paid again in life {life}, though it was not in flight")
            if sum(asked == (life, number) for asked in self.asked) > 1:
                wrong.append(f"#{number}: paid twice in life {life}")
        return wrong

    def unspoken(self) -> list[int]:
        """The messages without a voice message."""
        came = self.came()
        return [n for n in range(1, self.said + 1) if not came["voice", n]]


def _number(text: str) -> int:
    found = NUMBER.search(text)
    return int(found[1]) if found else -1


class Voice(SpeechServer):
    """Speaks for as many tenths of a second as the message has in its number, so that a sound says whose it is."""

    def seconds_of(self, text: str) -> float:
        return _number(text) / 10


def number_of_sound(duration_ms: int) -> int:
    """For which message a sound was made."""
    return round(duration_ms / 100)


def being_spoken(home: Path) -> set[int]:
    """What was in the hands of the daemon that died: these may be asked for again."""
    db = sqlite3.connect(home / "gateway.db")
    try:
        rows = db.execute(
            "SELECT payload FROM outbox WHERE channel = 'speech' AND state IN ('sending', 'uncertain')"
        ).fetchall()
    finally:
        db.close()
    return {_number(json.loads(payload)["text"]) for (payload,) in rows}


def settings(
    synapse: Synapse,
    mails: MailServer,
    voice: Voice,
    bot: Credentials,
    alice: MatrixPeer,
    post: MailPeer,
    bob: MailPeer,
) -> dict[str, Any]:
    return {
        "owner": {"aliases": [alice.user_id, bob.address]},
        "llm": {
            "providers": {"p": {"api_base": voice.api_base}},
            "models": {"demo": {"model": "demo/echo"}},
            "pools": {"main": ["demo"]},
        },
        "agents": {"heartbeat": {"enabled": False}},
        "voice": {"speak": {"when": "always", "provider": "p", "model": "openai/tts-x"}},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password, alice.user_id, batching="each"),
            "email": email_settings(
                mails, post.address, post.password, bob.address,
                batching="each", probe_grace_s=2, circuit_breaker=NO_BRAKE,
            ),
        },
    }  # fmt: skip


def wait_for_a_moment(chance: random.Random, voice: Voice, asked: int) -> str:
    """Let time pass until a moment between turn, speech and sending; says which."""
    moment = chance.choice(["turn", "asked", "asked", "given", "given"])
    deadline = time.monotonic() + 8
    if moment == "turn":
        time.sleep(chance.uniform(0, 2))
        return moment
    given = len(voice.given)
    while time.monotonic() < deadline and len(voice.asked) <= asked:
        time.sleep(0.005)
    if moment == "asked":
        time.sleep(chance.uniform(0, voice.wait_s))
        return moment
    while time.monotonic() < deadline and len(voice.given) <= given:
        time.sleep(0.002)
    time.sleep(chance.choice([0, chance.uniform(0, 0.05), chance.uniform(0, 0.4)]))
    return moment


def kill_at_moments(daemon: Daemon, people: People, voice: Voice, chance: random.Random, kills: int) -> None:
    """So many deaths, each among messages that are being answered and spoken."""
    noted = 0

    def note() -> None:
        nonlocal noted
        for request in voice.asked[noted:]:
            people.asked.append((len(people.in_hand), _number(request["input"])))
        noted = len(voice.asked)

    for _ in range(kills):
        asked = len(voice.asked)
        for _ in range(chance.randint(1, 2)):
            people.say(chance)
        moment = wait_for_a_moment(chance, voice, asked)
        daemon.kill()
        assert daemon.ended() == -signal.SIGKILL
        TALLY[f"of the daemon while answers are spoken (after {moment})"] += 1
        time.sleep(0.1)  # what had been sent has been counted
        note()
        people.in_hand.append(being_spoken(daemon.home))
        daemon.start()
    deadline = time.monotonic() + 60 + 2 * kills
    while (people.unspoken() or people.problems()) and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(2)  # a second one would come now
    note()


@pytest.fixture
def world(
    synapse: Synapse, mail_server: MailServer, fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer], fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path,
):  # fmt: skip
    def make(voice: Voice) -> tuple[Daemon, Callable[[Daemon], People]]:
        bot, alice = fresh_credentials("bot"), fresh_user("alice")
        post, bob = fresh_mailbox("bot"), fresh_mailbox("bob")
        daemon = Daemon(tmp_path / "home", settings(synapse, mail_server, voice, bot, alice, post, bob))

        def settled(daemon: Daemon) -> People:
            room = alice.create_room(invite=[bot.user_id], is_direct=True)
            daemon.wait_until(lambda: bot.user_id in alice.members(room))
            return People(alice, room, bot, bob, post.address)

        return daemon, settled

    return make


def test_killed_between_turn_speech_and_sending(world: Any) -> None:
    """One text and one voice message each; nothing is paid twice but what was in flight."""
    chance = chance_of("speech")
    with Voice(wait_s=0.3) as voice:
        daemon, settle = world(voice)
        with daemon:
            daemon.up()
            people = settle(daemon)
            kill_at_moments(daemon, people, voice, chance, KILLS)
            assert people.problems() == [], daemon.log()[-6000:]
            assert people.unspoken() == []
            again = len(people.asked) - len({number for _, number in people.asked})
            print(
                f"{KILLS} kills, {people.said} messages, {len(voice.asked)} times spoken, {again} of them again"
            )
            daemon.wait_until(lambda: daemon.work("inbox", "settled") == people.said)
            assert daemon.work("outbox", "unknown", "dead") == 0
            daemon.terminate()
            assert daemon.ended() == 0


def test_the_oracle_sees_a_voice_message_in_two_commits(world: Any) -> None:
    """The control: where a kill comes between the two, the same is said twice."""
    with Voice(wait_s=0.05) as voice:
        daemon, settle = world(voice)
        daemon.module = "tests.kill.twice_speaking_daemon"
        with daemon:
            daemon.up()
            people = settle(daemon)
            people.said = 1
            people.peer.send(people.room, "hello #1")
            daemon.wait_until(lambda: people.came()["voice", 1] == 1)
            daemon.kill()
            people.asked.append((0, 1))
            people.in_hand.append(being_spoken(daemon.home))
            daemon.start()
            daemon.wait_until(lambda: people.came()["voice", 1] == 2)
            assert people.problems() == ["#1: 2 voice messages"]


def test_the_oracle_sees_what_is_lost_and_what_is_paid_twice() -> None:
    """The control of the rest: no text, a stranger's text, a second payment in one life, one of what was done."""

    class Told(People):
        def came(self) -> Counter[tuple[str, int]]:
            return Counter({("text", 1): 1, ("voice", 1): 1, ("text", 9): 1})

    told = Told(*[None] * 5)  # type: ignore[arg-type]
    told.said = 2
    told.asked, told.in_hand = [(0, 1), (1, 1), (1, 2), (1, 2)], [{2}]
    assert told.problems() == [
        "#2: 0 texts",
        "nobody said ('text', 9)",
        "#1: paid again in life 1, though it was not in flight",
        "#2: paid twice in life 1",
        "#2: paid twice in life 1",
    ]
