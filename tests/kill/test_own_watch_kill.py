"""
Watches of a file and of a mailbox folder, of a real daemon on a real homeserver and mail server: what is new is
said once, whatever is killed.
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from datetime import datetime
from email.message import EmailMessage

import pytest

from devservers import MatrixPeer
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.init_world import squidbot
from tests.kill.tally import SEED, TALLY, THOROUGH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900, func_only=True)]
KILLS = 60 if THOROUGH else 10
FOLDER = "Archive.Bills"
CHECK_IN_S = 3


class Watching:
    """A daemon that watches a file and a folder of its mailbox every second."""

    def __init__(self, daemon, owner, room, box):
        self.daemon, self.owner, self.room, self.box = daemon, owner, room, box
        self.file = daemon.home / "workspace" / "log.md"

    def begin(self):
        """Add the watches and wait for their base lines."""
        self.file.write_text("old\n")
        with self.box.imap() as imap:
            imap.create(FOLDER)
        for words in (["log.md", "--kind", "file"], ["Archive/Bills", "--kind", "mail"]):
            done = squidbot("watch", "add", *words, "--every", "1s", "--home", str(self.daemon.home))
            assert done.returncode == 0, done.stderr
        self.daemon.wait_until(lambda: self.daemon.log().count("watch.looked") >= 2)
        assert "failed=True" not in self.daemon.log()

    def add(self, number):
        """Write a line and put a mail into the folder."""
        with self.file.open("a") as file:
            file.write(f"line #{number}#\n")
        mail = EmailMessage()
        mail["From"], mail["Subject"] = "Bills <bills@power.test>", f"mail #{number}#"
        mail.set_content("pay")
        with self.box.imap() as imap:
            assert imap.append(FOLDER, "", "", mail.as_bytes())[0] == "OK"

    def begin_check_ins(self):
        """Watch a file for check-ins, wait for its base line, and return it."""
        file = self.daemon.home / "workspace" / "todo.md"
        file.write_text("old\n")
        words = ["todo.md", "--kind", "file", "--check-in", "--every", "1s"]
        done = squidbot("watch", "add", *words, "--home", str(self.daemon.home))
        assert done.returncode == 0, done.stderr
        [job_id] = re.findall(r"^(\w{5})  watch", done.stdout)
        self.daemon.wait_until(lambda: f'"watch.looked","job":"{job_id}"' in self.daemon.log())
        return file

    def in_check_ins(self):
        """In how many check-ins that ended with an answer each line was."""
        with closing(sqlite3.connect(f"file:{self.daemon.home / 'gateway.db'}?mode=ro", uri=True)) as db:
            ticks = db.execute("SELECT native_id, payload FROM inbox WHERE channel = 'heartbeat'").fetchall()
            ended = db.execute("SELECT instant, until FROM ledger WHERE outcome IN ('delivered', 'silent')")
            answered = ended.fetchall()
        at = {name: datetime.fromisoformat(name).timestamp() for name, _payload in ticks}
        told = [text for name, text in ticks if any(first <= at[name] <= last for first, last in answered)]
        return Counter(re.findall(r"task #\d+#", "\n".join(told)))

    def said(self):
        """How often each was said, and every apology."""
        texts = [
            one.body
            for one in self.owner.history(self.room, limit=1000)
            if one.sender == self.daemon.bot.user_id
        ]
        found = Counter[str]()
        for text in texts:
            found.update(
                re.findall(r"(?:line|mail) #\d+#", text) or ["apology"] * ("could not be done" in text)
            )
        return found


@pytest.fixture
def watching(synapse, mail_server, fresh_credentials, fresh_mailbox, tmp_path):
    owner, bot = MatrixPeer.of(synapse.url, fresh_credentials("owner")), fresh_credentials("bot")
    box = fresh_mailbox("bot")
    with Daemon(
        tmp_path / "home",
        {
            "owner": {"aliases": [owner.user_id]},
            "channels": {
                "matrix": matrix_settings(synapse, bot.user_id, bot.password),
                "email": email_settings(mail_server, box.address, box.password),
            },
            "agents": {
                "schedule": {"min_interval_minutes": 0.01},
                "heartbeat": {"interval_minutes": CHECK_IN_S / 60},
            },
        },
    ) as daemon:
        daemon.bot = bot
        daemon.up()
        room = owner.create_room(invite=[bot.user_id], is_direct=True)
        owner.send(room, "hello")
        owner.wait_for_message(lambda event: event.sender == bot.user_id)
        made = Watching(daemon, owner, room, box)
        made.begin()
        yield made


def test_news_over_kills(watching):
    """
    Each line and mail after the base line is said once, and nothing else. Every second life goes on until all is
    said: at the third death in a row squidbot stops trying what it was alone with, which is not asked here.
    """
    chance, daemon = random.Random(SEED), watching.daemon
    for number in range(1, KILLS + 1):
        watching.add(number)
        time.sleep(chance.random() * 1.3)
        daemon.kill()
        TALLY["SIGKILL around a watch of a file and a mailbox"] += 1
        daemon.up()
        if number % 2 == 0:
            daemon.wait_until(lambda number=number: len(watching.said()) >= 2 * number, within_s=120)
    time.sleep(2)
    wanted = {f"{what} #{number}#": 1 for number in range(1, KILLS + 1) for what in ("line", "mail")}
    assert watching.said() == wanted


def test_news_for_check_ins_over_kills(watching):
    """
    Each line is in exactly one check-in that ended with an answer: one that was left out, such as because the
    owner could not be reached yet, has the next one tell it. Every second life goes on until then, as above.
    """
    chance, daemon = random.Random(SEED), watching.daemon
    file = watching.begin_check_ins()

    for number in range(1, KILLS // 2 + 1):
        with file.open("a") as more:
            more.write(f"task #{number}#\n")
        time.sleep(chance.random() * 4)
        daemon.kill()
        TALLY["SIGKILL around a watch for check-ins"] += 1
        daemon.up()
        if number % 2 == 0:
            daemon.wait_until(lambda number=number: len(watching.in_check_ins()) >= number, within_s=120)
    daemon.wait_until(lambda: len(watching.in_check_ins()) == KILLS // 2)
    time.sleep(4)
    assert watching.in_check_ins() == {f"task #{number}#": 1 for number in range(1, KILLS // 2 + 1)}


def test_control_of_two_commits(watching):
    """The control: a daemon that commits what was seen after the news, and is killed between, says it twice."""
    daemon = watching.daemon
    daemon.kill()
    daemon.module = "tests.kill.twice_watching_daemon"
    daemon.up()
    watching.add(1)
    daemon.wait_until(lambda: len(watching.said()) == 2)
    daemon.kill()
    TALLY["SIGKILL of a watch between two commits"] += 1
    daemon.up()
    daemon.wait_until(lambda: set(watching.said().values()) == {2})


def test_control_of_two_commits_of_a_check_in(watching):
    """The control: one that commits what was told there after the check-in, and is killed between, tells it twice."""
    daemon, file = watching.daemon, watching.begin_check_ins()
    daemon.kill()
    daemon.module = "tests.kill.twice_watching_daemon"
    daemon.up()
    with file.open("a") as more:
        more.write("task #1#\n")
    daemon.wait_until(lambda: watching.in_check_ins() == {"task #1#": 1}, within_s=120)
    daemon.kill()
    TALLY["SIGKILL of a check-in between two commits"] += 1
    time.sleep(CHECK_IN_S)  # a tick of the same instant would be the same check-in, and rightly told once
    daemon.up()
    daemon.wait_until(lambda: watching.in_check_ins() == {"task #1#": 2}, within_s=120)
