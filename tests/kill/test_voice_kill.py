"""
The real daemon on a real Synapse and a real mail server, killed while voice messages are listened to, answered and
sent.

The oracle knows from the database, at each death, which sounds had been heard durably (a step of an open turn, or a
turn that is over). Such a sound is never sent to the provider again; and every message has one answer with its words.
"""

from __future__ import annotations

import collections
import random
import re
import signal
import sqlite3
import time

import pytest

from devservers import text_of
from devservers.transcription import Reply, TranscriptionServer
from gateway.routing.crash_isolation import CRASH_APOLOGY
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.test_matrix_media import upload
from tests.integration.test_voice_messages import voice_event, voice_settings
from tests.kill.conftest import random_kills
from tests.kill.tally import TALLY, THOROUGH
from tests.kill.tally import chance as chance_of
from tests.sounds import ogg_opus, wav

_, KILLS = random_kills()
KILLS = max(30 if THOROUGH else 8, KILLS)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 30 * KILLS, func_only=True),
]
NUMBER = re.compile(r"number (\d+)")


class Paid:
    """What was heard durably at each death, and how often the provider had been asked by then."""

    def __init__(self, server, database):
        self._server = server
        self._database = database
        self._settled = {}

    def died(self):
        """Look at what the dead daemon has left."""
        place = sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        try:
            heard = place.execute(
                "SELECT digest FROM turn_steps WHERE kind = 'heard' AND result IS NOT NULL"
            ).fetchall()
            over = place.execute(
                "SELECT payload FROM inbox WHERE state IN ('answered', 'settled') AND payload IS NOT NULL"
            ).fetchall()
        finally:
            place.close()
        done = {digest for (digest,) in heard}
        done |= {digest for (text,) in over for digest in re.findall(r'"sha256": ?"([0-9a-f]{64})"', text)}
        for digest in done:
            self._settled.setdefault(digest, self._server.asked[digest])

    def twice(self):
        """The sounds that were sent again after they had been heard durably."""
        return {digest for digest, count in self._settled.items() if self._server.asked[digest] > count}

    def __len__(self):
        return len(self._settled)


class People:
    """Ann speaks in a room and by mail; every message has a number."""

    def __init__(self, bot, bot_mail, peer, mail):
        self.bot, self.bot_mail, self.peer, self.mail = bot, bot_mail, peer, mail
        self.room = peer.create_room([bot.user_id], is_direct=True)
        self.count = 0

    def speak(self, chance):
        number, self.count = self.count, self.count + 1
        words, lasts = f"number {number} please", chance.uniform(1, 5)
        if chance.random() < 0.6:
            content = ogg_opus(lasts, says=words)
            event = voice_event(content, url=upload(self.peer, content))
            self.peer.send_event(self.room, "m.room.message", event)
        else:
            sound = wav(lasts, says=words)
            self.mail.send(self.bot_mail.address, "memo", "", attachments=[("memo.wav", "audio/wav", sound)])

    def answers(self):
        """How often each number was answered."""
        said = [
            one.body for one in self.peer.history(self.room, limit=1000) if one.sender == self.bot.user_id
        ]
        said += [text_of(mail) for mail in self.mail.list()]
        numbers = [NUMBER.search(" ".join(text.split())) for text in said]
        return collections.Counter(
            int(found[1]) if found else text for found, text in zip(numbers, said, strict=True)
        )


def world(synapse, mail_server, fresh_credentials, fresh_user, fresh_mailbox, server):
    bot, bot_mail, ann, mail = (
        fresh_credentials("bot"),
        fresh_mailbox("bot"),
        fresh_user("ann"),
        fresh_mailbox("ann"),
    )
    settings = {
        **voice_settings(server),
        "owner": {"aliases": [ann.user_id, mail.address]},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password, batching="each"),
            "email": email_settings(
                mail_server, bot_mail.address, bot_mail.password, batching="each", probe_grace_s=3
            ),
        },
    }
    return settings, lambda: People(bot, bot_mail, ann, mail)


def dies_while_it_works(daemon, server, people, paid, chance, kills):
    for _ in range(kills):
        for _ in range(chance.randint(1, 2)):
            server.plan(Reply(wait_s=chance.choice([0.0, 0.1, 0.6])))
            people.speak(chance)
        time.sleep(
            chance.choice([chance.uniform(0, 0.5), chance.uniform(0.3, 1.5), chance.uniform(0.7, 2.5)])
        )
        daemon.kill()
        assert daemon.ended() == -signal.SIGKILL
        TALLY["of the daemon while it listens"] += 1
        paid.died()
        daemon.start()


def test_nothing_is_paid_twice_and_everybody_gets_one_answer(
    synapse, mail_server, fresh_credentials, fresh_user, fresh_mailbox, tmp_path
):
    """Whatever the moment: one answer with the words, and no sound that was heard durably is heard again."""
    chance = chance_of("voice")
    with TranscriptionServer() as server:
        settings, people_of = world(
            synapse, mail_server, fresh_credentials, fresh_user, fresh_mailbox, server
        )
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.up()
            people, paid = people_of(), Paid(server, daemon.home / "gateway.db")
            daemon.wait_until(lambda: people.bot.user_id in people.peer.members(people.room))
            dies_while_it_works(daemon, server, people, paid, chance, KILLS)
            daemon.wait_until(lambda: sum(people.answers().values()) >= people.count, within_s=120)
            time.sleep(2)  # a second answer would come now
            paid.died()

            came = people.answers()
            apologies = sum(came.pop(text) for text in list(came) if CRASH_APOLOGY in str(text))
            given_up = len(re.findall(r"the process ended \d+ times on it", daemon.log()))
            assert set(came) <= set(range(people.count)), daemon.log()[-4000:]
            assert set(came.values()) == {1}
            assert apologies == given_up == people.count - len(came)
            assert paid.twice() == set()
            assert people.count - given_up <= len(paid) <= people.count
            again = sum(server.asked.values()) - people.count
            assert again <= KILLS  # what was in flight
            daemon.terminate()
            assert daemon.ended() == 0


def test_a_daemon_that_forgets_is_caught(
    synapse, mail_server, fresh_credentials, fresh_user, fresh_mailbox, tmp_path
):
    """The control: one that does not look at its steps pays again, and the oracle says so."""
    with TranscriptionServer() as server:
        settings, people_of = world(
            synapse, mail_server, fresh_credentials, fresh_user, fresh_mailbox, server
        )
        # A model that is away holds the turn between its transcript and its answer.
        settings["llm"]["providers"]["away"] = {"api_base": "http://127.0.0.1:9/v1", "api_key": "x"}
        settings["llm"]["models"] = {"away": {"provider": "away", "model": "openai/x"}}
        settings["llm"]["pools"] = {"main": ["away"]}
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.module = "tests.kill.forgetful_daemon"
            daemon.up()
            people, paid = people_of(), Paid(server, daemon.home / "gateway.db")
            daemon.wait_until(lambda: people.bot.user_id in people.peer.members(people.room))
            people.speak(random.Random(1))
            daemon.wait_until(lambda: sum(server.answered.values()) >= 1)
            time.sleep(1)
            daemon.kill()
            paid.died()
            assert len(paid) == 1
            assert paid.twice() == set()
            daemon.start()
            daemon.wait_until(lambda: bool(paid.twice()), within_s=60)

    doubled = collections.Counter({0: 2})
    assert doubled != dict.fromkeys(range(1), 1)
