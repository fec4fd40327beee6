"""
A mail that killed the whole process while it was read did so at each start: nothing behind it was ever taken in, and
its sender was told nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CHILD = """
import json, os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
import anyio
from channels.email.receive import mail_receiver as receiver
from channels.email.receive.crash_suspects import CrashSuspects
from channels.email.imap.housekeeping import Housekeeping
from channels.email.imap.mailbox import MailInfo, Selected
from channels.email.receive.mail_intake import MailIntake
from channels.email.reply_limits import AnswerLimiter
from channels.email.sent_tracker import SentTracker
from channels.email.server_ids import ServerIds
from tests.doubles.inbox import MemoryInbox
from tests.doubles.mailbox import config, raw_mail

folder, mortal, spare = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])

def deadly(name):
    real = getattr(receiver, name)
    def read(uid, *rest, **more):
        deaths = folder / "deaths"
        count = len(deaths.read_text()) if deaths.exists() else 0
        if uid == 2 and count < spare:
            deaths.write_text("x" * (count + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return real(uid, *rest, **more)
    setattr(receiver, name, read)

for name in mortal:
    deadly(name)

class Mailbox:
    async def select(self, folder): return Selected(7, 4, 3)
    async def find_own(self, *_, **__): return []
    async def newer_than(self, uid): return [each for each in (1, 2, 3) if each > uid]
    async def describe(self, uids): return [MailInfo(uid, len(raw_mail(uid)), datetime.now(UTC)) for uid in uids]
    async def bodies(self, uids, header_only=False): return {uid: raw_mail(uid) for uid in uids}
    def nudge(self): pass

async def main():
    inbox, settings = MemoryInbox(), config(1)
    inbox.positions |= {"uidvalidity": "7", "uid": "0"}
    marks = CrashSuspects(folder / "reading.json")
    marks.load()
    async with anyio.create_task_group() as tasks:
        it = receiver.MailReceiver(
            Mailbox(), inbox, receiver.MailAccountParts(
                intake=MailIntake("email", settings, AnswerLimiter(settings.limits)), housekeeping=Housekeeping(),
                now=lambda: datetime.now(UTC), went_out=SentTracker(lambda: 0.0),
                server_ids=ServerIds("bot@mail.test"), suspects=marks,
            ), before_commit=anyio.lowlevel.checkpoint, start=tasks.start_soon,
        )
        await it.start()
        await it.take_new()
    print(json.dumps([[one.text, one.context.unreadable or None, one.context.refused or None] for one in inbox.accepted]))

import anyio.lowlevel
anyio.run(main)
"""


def start(folder: Path, mortal: str, spare: int) -> list[Any] | None:
    """What one process takes in of three mails; None if it dies."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), mortal, str(spare)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode in (0, -9), done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def starts(folder: Path, mortal: str, spare: int = 100) -> tuple[int, list[Any]]:
    """After how many deaths a process lives, and what that takes in."""
    for deaths in range(7):
        taken = start(folder, mortal, spare)
        if taken is not None:
            return deaths, taken
    pytest.fail("it dies at each start")


def test_the_third_death_is_the_last(tmp_path: Path) -> None:
    """It is taken in as unreadable, its sender is told, and the mails around it are what they were."""
    deaths, taken = starts(tmp_path, "read_arrival")
    assert deaths == 3
    assert [one[0] for one in taken[::2]] == ["number 1", "number 3"]
    assert "each attempt to read it crashed" in taken[1][1]
    assert not (tmp_path / "reading.json").exists()


def test_a_header_that_kills_is_not_read_again(tmp_path: Path) -> None:
    """Then nobody knows who wrote it."""
    deaths, taken = starts(tmp_path, "read_arrival,given_up")
    assert deaths == 4
    assert [one[0] for one in taken[::2]] == ["number 1", "number 3"]
    assert taken[1][2] == "unreadable_kills"


def test_two_deaths_prove_nothing(tmp_path: Path) -> None:
    """The control: what was merely in hand twice is read."""
    assert starts(tmp_path, "read_arrival", 2) == (2, [[f"number {n}", None, None] for n in (1, 2, 3)])
