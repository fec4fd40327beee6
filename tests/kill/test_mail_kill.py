"""
The real daemon on a real mail server, killed at every step of a submission, and at random while mails with
files and mails whose answers wait for a yes come in. The oracle reads what stands in the mailboxes.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from devservers import MailPeer, MailServer, text_of
from tests.daemon import Daemon, email_settings
from tests.kill.conftest import random_kills
from tests.kill.smtp_gate import POINTS, SmtpGate
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

WANTED = sum(random_kills())
ALL = WANTED >= 100
KILLS = WANTED if ALL else 3
MAILS = 60 if ALL else 8
"""At least so many."""
NO_BRAKE = dict.fromkeys(
    ("answers_per_hour", "thread_answers_per_hour", "max_identical_replies", "bounces_per_hour"), 0
)
AFTER = {"DATA", "354", "content", "accepted", "told", "QUIT"}
"""Before DATA is said it is noted that the server may have the mail from then on."""
FEW = {
    "self": ("MAIL", "354", "content", "accepted"),
    "server": ("accepted",),
    "append": ("content",),
    "none": ("accepted",),
}
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 6 * KILLS + 200 * ALL, func_only=True)]


def settings(server: MailServer, bot: MailPeer, people: list[MailPeer], **email: Any) -> dict[str, Any]:
    return {
        "owner": {"aliases": [people[0].address]},
        "llm": {"models": {"demo": {"model": "demo/demo"}}, "pools": {"main": ["demo"]}},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "email": email_settings(
                server, bot.address, bot.password, *(peer.address for peer in people),
                **{"batching": "each", "probe_grace_s": 2, "circuit_breaker": NO_BRAKE, **email},
            )
        },
    }  # fmt: skip


def answers_to(peer: MailPeer, message_id: str) -> list[EmailMessage]:
    return [mail for mail in peer.list() if mail["In-Reply-To"] == message_id]


@pytest.mark.parametrize("strategy", ["self", "server", "append", "none"])
def test_killed_at_each_step_of_a_submission(
    mail_server: MailServer, fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path, strategy: str
) -> None:
    """
    With a copy that tells, one answer whatever the step. Without one before the server's yes, two at most.

    With none at all never two: what may have gone out waits for a person.
    """
    bot, alice = fresh_mailbox("bot"), fresh_mailbox("alice")
    points = POINTS if ALL else FEW[strategy]
    with SmtpGate(mail_server.smtp_port, bot, filing=strategy == "server") as gate:
        smtp = {"host": "127.0.0.1", "port": gate.port, "security": "none"}
        with Daemon(
            tmp_path / "home", settings(mail_server, bot, [alice], sent_copy=strategy, smtp=smtp)
        ) as daemon:
            daemon.up()
            asked: dict[str, str] = {}
            for point in points:
                gate.arm(point, daemon.kill)
                asked[point] = alice.send(bot.address, point, "hello")
                assert gate.pulled.wait(30), point
                assert daemon.ended() == -signal.SIGKILL
                TALLY[f"at a step of a submission ({strategy})"] += 1
                daemon.start()
                states = ("sent", "unknown") if strategy == "none" else ("sent",)
                daemon.wait_until(lambda: daemon.work("outbox", *states) == len(asked), within_s=40)  # noqa: B023 - used at once
            time.sleep(1.5)  # a second answer would come now
            counts = {point: len(answers_to(alice, sent)) for point, sent in asked.items()}
            unknown = daemon.work("outbox", "unknown")
            copies = Counter(str(mail["Message-ID"]) for mail in bot.list("Sent"))
    for point, count in counts.items():
        unclear = point in AFTER
        if strategy == "append" and unclear:
            assert count in (1, 2), (point, counts)
        elif strategy == "none" and unclear:
            assert count <= 1, (point, counts)
        else:
            assert count == 1, (point, counts)
    assert (unknown > 0) == (strategy == "none")
    if strategy in ("self", "server"):
        assert len(copies) == len(asked)
        assert set(copies.values()) == {1}


class People:
    """The owner, who sends numbered mails, some with a file to be sent back, and another person."""

    def __init__(self, bot: MailPeer, owner: MailPeer, other: MailPeer) -> None:
        self.bot = bot
        self.owner = owner
        self.other = other
        self.plain: list[str] = []
        self.files: dict[str, bytes] = {}
        self.drafts: dict[str, int] = {}
        self.decided: dict[str, bool] = {}

    @property
    def said(self) -> int:
        return len(self.plain) + len(self.files) + len(self.drafts)

    def say(self, chance: random.Random) -> None:
        """The next mail."""
        number = self.said + 1
        way = chance.choice(["plain", "file", "draft"])
        if way == "plain":
            self.plain.append(self.owner.send(self.bot.address, f"#{number}", f"hello #{number}"))
        elif way == "file":
            content = chance.randbytes(chance.choice([10, 1_000, 400_000])) + str(number).encode()
            sent = self.owner.send(
                self.bot.address, f"#{number}", "!sendfile", attachments=[(f"{number}.bin", "a/b", content)]
            )
            self.files[sent] = content
        else:
            sent = self.other.send(self.bot.address, f"#{number}", f"hello question-{number}.")
            self.drafts[sent] = number

    def decide(self) -> None:
        """Decide about whatever the owner has been asked and has not decided: even numbers go out."""
        for mail in self.owner.list():
            text = text_of(mail)
            if "Write `!approve" not in text and "!approve" not in text:
                continue
            for name, number in re.findall(
                r"\b(d\d+)\b.*?waits for your approval.*?question-(\d+)\.", text, re.DOTALL
            ):
                if name not in self.decided:
                    yes = int(number) % 2 == 0
                    self.owner.send(self.bot.address, "decision", f"!{'approve' if yes else 'reject'} {name}")
                    self.decided[name] = yes

    def problems_in_the_end(self, *, within_s: float = 90.0) -> list[str]:
        """What is still not as it should be when there was time for everything, and for a second answer."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            time.sleep(1)
            self.decide()
            if not self.problems():
                break
        time.sleep(2)
        return self.problems()

    def problems(self) -> list[str]:
        """What is not as it should be in the mailboxes."""
        mine, others = Counter[str](), Counter[str]()
        wrong: list[str] = []
        for mail in self.owner.list():
            key = str(mail["In-Reply-To"])
            mine[key] += 1
            if key in self.files:
                content = [part.get_payload(decode=True) for part in mail.iter_attachments()]
                if content != [self.files[key]]:
                    wrong.append(f"{mail['Subject']}: not the file that was sent")
        for mail in self.other.list():
            others[str(mail["In-Reply-To"])] += 1
        wrong += [f"{key} answered {mine[key]} times" for key in (*self.plain, *self.files) if mine[key] != 1]
        wrong += [
            f"draft {number} left {others[key]} times"
            for key, number in self.drafts.items()
            if others[key] != (1 if number % 2 == 0 else 0)
        ]
        ids = Counter(str(mail["Message-ID"]) for mail in self.bot.list("Sent"))
        return wrong + [f"{key} stands {count} times in Sent" for key, count in ids.items() if count != 1]


def test_killed_at_random_with_files_and_drafts(
    mail_server: MailServer, fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path
) -> None:
    """Every mail one answer, every file as it was, every draft as it was decided, one copy of each."""
    chance = chance_of("mail")
    bot, alice, bob = fresh_mailbox("bot"), fresh_mailbox("alice"), fresh_mailbox("bob")
    people = People(bot, alice, bob)
    with Daemon(
        tmp_path / "home", settings(mail_server, bot, [alice, bob], reply_approval="strangers")
    ) as daemon:
        daemon.up()
        for number in range(KILLS):
            if number % max(1, KILLS // MAILS) == 0 or people.said < 3:
                people.say(chance)
            if number % 5 == 4:
                people.decide()
            time.sleep(
                chance.choice([chance.uniform(0, 0.5), chance.uniform(0.5, 1.5), chance.uniform(0.7, 2.5)])
            )
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL
            TALLY["of the daemon with mails, files and drafts"] += 1
            daemon.start()
        while people.said < MAILS:
            people.say(chance)
        assert people.problems_in_the_end() == [], daemon.log()[-6000:]
        assert daemon.work("outbox", "unknown") == 0
        daemon.terminate()
        assert daemon.ended() == 0


def test_the_oracle_sees_a_double_and_a_lost_answer(
    mail_server: MailServer, fresh_mailbox: Callable[[str], MailPeer]
) -> None:
    """Negative control: a bot that answers one mail twice and another not at all."""
    bot, alice, bob = fresh_mailbox("bot"), fresh_mailbox("alice"), fresh_mailbox("bob")
    people = People(bot, alice, bob)
    people.plain += ["<one@x>", "<two@x>"]
    people.drafts["<three@x>"] = 3
    for _ in range(2):
        bot.send(alice.address, "Re: #1", "hello", in_reply_to="<one@x>")
    bot.send(bob.address, "Re: #3", "hello", in_reply_to="<three@x>")

    assert people.problems() == [
        "<one@x> answered 2 times",
        "<two@x> answered 0 times",
        "draft 3 left 1 times",
    ]
