"""
The real daemon between a real Synapse and a real mail server, killed at random moments while people write.

The oracle reads what the servers hold: every message has exactly one answer, in its room or its thread, in
order. `batching: each`, so that each answer names its message; `demo/echo` answers with what was asked.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse, text_of
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.kill.conftest import random_kills
from tests.kill.oracle import Evidence, Saying, problems
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

_, KILLS = random_kills()
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 30 * KILLS, func_only=True)]
NUMBER = re.compile(r"#(\d+)")
ANSWERED_WITHIN_S = 90.0
SETTLED_S = 2.0


class People:
    """Two people with a room and mail threads each; everything they say is numbered."""

    def __init__(
        self, bot: Credentials, bot_mail: MailPeer, matrix: list[MatrixPeer], mail: list[MailPeer]
    ) -> None:
        self.bot = bot
        self.bot_mail = bot_mail
        self.rooms = {peer.create_room(invite=[bot.user_id], is_direct=True): peer for peer in matrix}
        self.mail = mail
        self.said: list[Saying] = []
        self.mails: dict[str, int] = {}
        """Message-IDs of all mails, with their numbers."""
        self._threads: dict[str, tuple[MailPeer, str]] = {}

    def say(self, chance: random.Random) -> None:
        """Somebody says the next thing: in a room, in a new thread or in an old one."""
        number = len(self.said) + 1
        text = f"#{number}"
        way = chance.choice(["room", "room", "thread", "again"])
        if way == "room":
            place, peer = chance.choice(list(self.rooms.items()))
            peer.send(place, text)
        elif way == "thread" or not self._threads:
            author = chance.choice(self.mail)
            place = author.send(self.bot_mail.address, f"thread {number}", text)
            self._threads[place] = (author, place)
            self.mails[place] = number
        else:
            place = chance.choice(list(self._threads))
            author, last = self._threads[place]
            sent = author.send(
                self.bot_mail.address, "Re: on", text, in_reply_to=last, references=f"{place} {last}"
            )
            self._threads[place] = (author, sent)
            self.mails[sent] = number
        self.said.append(Saying(number, place, "", ""))

    def seen(self) -> list[tuple[str, str]]:
        """Place and text of every answer; a mail's place is the thread of what it says it answers."""
        found: list[tuple[str, str]] = []
        place_of = {saying.number: saying.conversation for saying in self.said}
        for room, peer in self.rooms.items():
            answers = [event for event in peer.history(room, limit=1000) if event.sender == self.bot.user_id]
            found += [(room, _as_answer(event.body)) for event in answers]
        for author in self.mail:
            for mail in author.list():
                answered = self.mails.get(str(mail["In-Reply-To"]))
                place = "nowhere" if answered is None else place_of[answered]
                found.append((place, _as_answer(text_of(mail))))
        return found


def _as_answer(text: str) -> str:
    """What `oracle` reads: an echo names the first number in it; quoted mails may follow."""
    number = NUMBER.search(text)
    return f"re: #{number[1]}" if text.startswith("echo:") and number else text


@pytest.mark.smoke
def test_sigkill_at_random_moments_on_real_servers(
    synapse: Synapse,
    mail_server: MailServer,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    fresh_mailbox: Callable[[str], MailPeer],
    tmp_path: Path,
) -> None:
    """Whatever the moment, everybody gets exactly one answer to each message, in order and in the right place."""
    chance = chance_of("real servers")
    bot, bot_mail = fresh_credentials("bot"), fresh_mailbox("bot")
    matrix, mail = [fresh_user("alice"), fresh_user("bob")], [fresh_mailbox("alice"), fresh_mailbox("bob")]
    settings = {
        "owner": {"aliases": [matrix[0].user_id, mail[0].address]},
        "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(
                synapse, bot.user_id, bot.password, *(peer.user_id for peer in matrix), batching="each"
            ),
            "email": email_settings(
                mail_server, bot_mail.address, bot_mail.password, *(peer.address for peer in mail),
                batching="each", probe_grace_s=3,
            ),
        },
    }  # fmt: skip
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        people = People(bot, bot_mail, matrix, mail)
        daemon.wait_until(
            lambda: all(bot.user_id in peer.members(room) for room, peer in people.rooms.items())
        )
        for _ in range(KILLS):
            for _ in range(chance.randint(1, 4)):
                people.say(chance)
            time.sleep(
                chance.choice([chance.uniform(0, 0.5), chance.uniform(0.7, 2), chance.uniform(0.7, 3)])
            )
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL
            TALLY["of the daemon on real Matrix and mail"] += 1
            people.say(chance)
            daemon.start()
        daemon.wait_until(lambda: len(people.seen()) >= len(people.said), within_s=ANSWERED_WITHIN_S)
        time.sleep(SETTLED_S)  # a second answer would come now

        evidence = Evidence(said=people.said, seen=people.seen(), deaths=KILLS)
        wrong = [problem for problem in problems(evidence) if "history" not in problem]
        assert wrong == [], daemon.log()[-6000:]
        assert daemon.work("outbox", "unknown", "dead") == 0
        daemon.wait_until(lambda: daemon.work("inbox", "settled") == len(people.said))
        daemon.terminate()
        assert daemon.ended() == 0
        _histories_are_whole(daemon.home, len(people.said))


def _histories_are_whole(home: Path, said: int) -> None:
    """Every question and its answer stand in some history exactly once."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for path in (home / "sessions").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            role = "user" if '"role":"user"' in line else "assistant"
            counted[role][NUMBER.search(line)[1]] += 1  # type: ignore[index]
    wanted = Counter(str(number + 1) for number in range(said))
    assert counted == {"user": wanted, "assistant": wanted}


def test_the_oracle_sees_a_double_and_a_lost_answer() -> None:
    """Negative control: the judgement used above, on a room with one answer too many and one too few."""
    said = [Saying(1, "!a", "", ""), Saying(2, "!a", "", "")]
    double = problems(Evidence(said=said, seen=[("!a", _as_answer(f"echo: #{n}")) for n in (1, 1)]))

    assert "!a: #1 answered 2 times" in double
    assert "!a: no answer to [2]" in double
    apology = problems(Evidence(said=said[:1], seen=[("!a", _as_answer("Sorry, #1 was too much"))]))
    assert any("no answer to anything" in problem for problem in apology)
