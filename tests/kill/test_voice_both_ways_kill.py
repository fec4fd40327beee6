"""
The real daemon on a real Synapse and a real mail server, killed while voice messages come in and are answered by text
and by voice.

The oracle reads what people got, what both providers were asked, and at each death what was heard durably and what was
being spoken: one text for each message, at most one voice message, and nothing is paid again but what was in flight.
``SQUIDBOT_KILLS=600`` makes sixty deaths.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse
from devservers.transcription import Reply, TranscriptionServer
from tests.daemon import Daemon
from tests.integration.test_matrix_media import upload
from tests.integration.test_voice_messages import voice_event
from tests.kill.conftest import random_kills
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of
from tests.kill.test_speech_kill import People, Voice, _number, being_spoken, settings
from tests.kill.test_voice_kill import Paid
from tests.sounds import ogg_opus, wav

KILLS = max(3, random_kills()[1])
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 30 * KILLS, func_only=True),
]


class Talkers(People):
    """Somebody in a room and somebody with a mailbox who speak, and what they hear of it."""

    heard: Paid

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.mails: dict[str, int] = {}

    def say(self, chance: random.Random) -> None:
        self.said += 1
        words, lasts = f"hello #{self.said}", chance.uniform(1, 4)
        if chance.random() < 0.6:
            content = ogg_opus(lasts, says=words)
            self.peer.send_event(
                self.room, "m.room.message", voice_event(content, url=upload(self.peer, content))
            )
        else:
            sound = wav(lasts, says=words)
            sent = self.mail.send(
                self.bot_mail, f"Memo {self.said}", "", attachments=[("memo.wav", "audio/wav", sound)]
            )
            self.mails[sent] = self.said

    def number_of_voice(self, mail: EmailMessage) -> int:
        return self.mails[str(mail["In-Reply-To"])]  # what it says of itself is cut off

    def problems(self) -> list[str]:
        return [
            *super().problems(),
            *(f"{digest[:8]} was listened to again" for digest in self.heard.twice()),
        ]


class Scenario:
    """Both providers, the daemon, and those who talk with it."""

    def __init__(
        self, daemon: Daemon, ears: TranscriptionServer, voice: Voice, settle: Callable[[], Talkers]
    ) -> None:
        self.daemon, self.ears, self.voice, self._settle = daemon, ears, voice, settle
        self._noted = 0

    def begin(self) -> None:
        """Start the daemon; from now on there are people."""
        self.daemon.up(within_s=150)
        self.people = self._settle()
        self.people.heard = Paid(self.ears, self.daemon.home / "gateway.db")

    def note(self) -> None:
        """Add what was asked to the notes of this life."""
        for request in self.voice.asked[self._noted :]:
            self.people.asked.append((len(self.people.in_hand), _number(request["input"])))
        self._noted = len(self.voice.asked)

    def die(self, moment: str) -> None:
        """SIGKILL, and note what was in hand."""
        self.daemon.kill()
        assert self.daemon.ended() == -signal.SIGKILL
        TALLY[f"of the daemon between voices (after {moment})"] += 1
        time.sleep(0.1)  # what had been sent has been counted
        self.note()
        self.people.in_hand.append(being_spoken(self.daemon.home))
        self.people.heard.died()

    def wait_for(self, moment: str, chance: random.Random) -> None:
        """Let time pass until something has happened once more, and a little longer."""
        counts: dict[str, Callable[[], int]] = {
            "any time": lambda: -1,
            "listening": lambda: sum(self.ears.asked.values()),
            "a transcript": lambda: sum(self.ears.answered.values()),
            "speaking": lambda: len(self.voice.asked),
            "a sound": lambda: len(self.voice.given),
        }
        before = counts[moment]()
        if (
            before >= 0
        ):  # on a busy machine a daemon that dies as it starts would get nothing done in all its lives
            self.daemon.wait_until(lambda: before != counts[moment]() or self.daemon.is_ready(), within_s=90)
        deadline = time.monotonic() + 8
        while 0 <= before == counts[moment]() and time.monotonic() < deadline:
            time.sleep(0.003)
        time.sleep(chance.choice([0, chance.uniform(0, 0.05), chance.uniform(0, 0.4)]))
        if before < 0:
            time.sleep(chance.uniform(0, 3))

    def sent(self) -> int:
        """How many messages were put into the outbox."""
        with closing(sqlite3.connect(f"file:{self.daemon.home / 'gateway.db'}?mode=ro", uri=True)) as db:
            [count] = db.execute("SELECT count(*) FROM outbox").fetchone()
        return int(count)

    def quiet(self, within_s: float) -> None:
        """Wait until everybody was answered and heard."""
        deadline = time.monotonic() + within_s
        while (self.people.unspoken() or self.people.problems()) and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(2)  # a second one would come now
        self.note()


MOMENTS = ("any time", "listening", "a transcript", "speaking", "a sound")


@pytest.fixture
def world(
    synapse: Synapse, mail_server: MailServer, fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer], fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path,
) -> Iterator[Scenario]:  # fmt: skip
    bot, alice = fresh_credentials("bot"), fresh_user("alice")
    post, bob = fresh_mailbox("bot"), fresh_mailbox("bob")

    @contextmanager
    def made(voice: Voice, ears: TranscriptionServer) -> Iterator[Scenario]:
        whole: dict[str, Any] = settings(synapse, mail_server, voice, bot, alice, post, bob)
        whole["llm"]["providers"]["ears"] = {"api_base": ears.api_base}
        whole["voice"]["transcribe"] = {"provider": "ears", "model": "openai/whisper-x"}
        whole["voice"]["speak"]["when"] = "same"
        with Daemon(tmp_path / "home", whole) as daemon:

            def settle() -> Talkers:
                room = alice.create_room(invite=[bot.user_id], is_direct=True)
                daemon.wait_until(lambda: bot.user_id in alice.members(room))
                return Talkers(alice, room, bot, bob, post.address)

            yield Scenario(daemon, ears, voice, settle)

    with Voice(wait_s=0.3) as voice, TranscriptionServer() as ears, made(voice, ears) as one:
        yield one


def test_voice_in_and_voice_out_over_kills(world: Scenario) -> None:
    """Whatever the moment: one text, one voice message, and nothing is paid again but what was in flight."""
    chance = chance_of("both ways")
    world.begin()
    people = world.people
    for number in range(KILLS):
        for _ in range(chance.randint(1, 2)):
            world.ears.plan(Reply(wait_s=chance.choice([0.0, 0.1, 0.5])))
            people.say(chance)
        moment = MOMENTS[number % len(MOMENTS)]
        world.wait_for(moment, chance)
        world.die(moment)
        world.daemon.start()
    world.quiet(60 + 2 * KILLS)
    wrong, unspoken = people.problems(), people.unspoken()
    assert (wrong, unspoken) == ([], []), f"{wrong} {unspoken} {world.daemon.log()[-6000:]}"
    spoken = len(people.asked) - len({number for _, number in people.asked})
    heard = sum(world.ears.asked.values()) - people.said
    print(f"{KILLS} kills, {people.said} voice messages; again {heard} listened to, {spoken} spoken")
    world.daemon.wait_until(lambda: world.daemon.work("inbox", "settled") == people.said)
    assert world.daemon.work("outbox", "unknown", "dead") == 0
    world.daemon.terminate()
    assert world.daemon.ended() == 0


def test_the_oracle_sees_what_is_said_and_heard_twice(world: Scenario) -> None:
    """The control: a daemon that speaks in two commits, and a sound that is sent to the provider once more."""
    world.daemon.module = "tests.kill.twice_speaking_daemon"
    world.begin()
    people = world.people
    people.say(random.Random(3))
    world.daemon.wait_until(
        lambda: world.sent() == 3, within_s=90
    )  # its text, what stands for the sound, the sound
    world.die("a sound")
    world.daemon.start()
    world.daemon.wait_until(lambda: people.came()["voice", 1] == 2, within_s=90)
    assert people.problems() == ["#1: 2 voice messages"]
    [digest] = world.ears.asked
    world.ears.asked[digest] += 1
    assert people.problems() == ["#1: 2 voice messages", f"{digest[:8]} was listened to again"]
