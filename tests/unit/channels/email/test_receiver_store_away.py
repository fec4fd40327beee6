"""Mail while the folder for files is away, on virtual time."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.message import EmailMessage

import anyio
import pytest

from tests.clock import LoopClock
from tests.doubles import mailbox
from tests.doubles.accounts import email_channel
from tests.doubles.away_folder import AwayFolder, store_over
from tests.doubles.imap_server import fake_imap
from tests.doubles.inbox import MemoryInbox, running
from tests.doubles.mailbox import Store, config

pytestmark = pytest.mark.virtual_time
OWNER, ALICE, BOB = "owner@mail.test", "alice@mail.test", "bob@mail.test"


def mail(number, sender, *, has_file=True):
    made = EmailMessage()
    made["From"], made["To"], made["Message-ID"] = sender, "bot@mail.test", f"<{number}@mail.test>"
    made.set_content(f"mail {number}")
    if has_file:
        made.add_attachment(str(number).encode().ljust(1_900), "application", "x-data", filename="a.bin")
    return made.as_bytes().replace(b"\n", b"\r\n")


class Scenario:
    """A mailbox, a storage that is away, and the inbox that outlasts the channel."""

    def __init__(self, folder, monkeypatch):
        self.mails, self.server, self.inbox = {}, Store(), MemoryInbox()
        self.inbox.positions |= {"uidvalidity": "7", "uid": "0"}
        self.storage = AwayFolder(folder / "shared")
        self.storage.is_unreachable = True
        self._folder = folder
        self._files = None
        monkeypatch.setattr(mailbox, "raw_mail", self.mails.__getitem__)

    def put(self, *mails):
        for raw in mails:
            self.mails[len(self.mails) + 1] = raw
        self.server.uids = sorted(self.mails)

    @asynccontextmanager
    async def running(self):
        async with fake_imap(self.server) as port:
            channel = email_channel(
                "email",
                config(port, allow_from=[OWNER, ALICE, BOB, "*@guests.test"]),
                state_dir=self._folder,
                clock=LoopClock(datetime.now(UTC)),
                attachments=store_over(self.storage, self._folder / "home"),
                is_owner=OWNER.__eq__,
            )
            self.inbox.states.clear()
            async with running(channel, self.inbox):
                await self.inbox.until_up(within_s=60)
                yield

    async def until(self, count):
        await self.inbox.until(lambda inbox: len(inbox.accepted) >= count, within_s=3_000)

    def numbers(self, sender):
        texts = [one.text for one in self.inbox.accepted if one.sender.address == sender]
        return [int(re.match(r"mail (\d+)", text)[1]) for text in texts]


@pytest.fixture
def it(tmp_path, monkeypatch):
    return Scenario(tmp_path, monkeypatch)


async def test_files_wait_in_the_mailbox(it):
    """Over a restart; each mail comes afterwards, in order, once, and none without its file."""
    async with it.running():
        it.put(mail(1, BOB, has_file=False), *(mail(number, ALICE) for number in range(2, 30)))
        await anyio.sleep(600)
        assert it.numbers(ALICE) == []
    it.storage.is_unreachable = False
    async with it.running():
        it.put(mail(30, OWNER))
        await it.until(30)
        await anyio.sleep(60)
    assert it.numbers(ALICE) == list(range(2, 30))
    assert sum(len(one.attachments) for one in it.inbox.accepted) == 29
    assert it.inbox.positions["uid"] == "30"
