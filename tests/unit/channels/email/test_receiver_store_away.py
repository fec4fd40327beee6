"""Mail while the storage for files is away, on virtual time: nothing that one person sends holds up another's."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.message import EmailMessage

import anyio
import pytest

from channels.email.receive import verification_queue
from channels.email.receive.verification_queue import ReadMail, VerificationQueue
from tests.clock import LoopClock
from tests.doubles import mailbox
from tests.doubles.accounts import email_channel
from tests.doubles.away_folder import AwayFolder, store_over
from tests.doubles.imap_server import fake_imap
from tests.doubles.inbox import MemoryInbox, running
from tests.doubles.mailbox import Store, config

pytestmark = pytest.mark.virtual_time
OWNER, ALICE, BOB = "owner@mail.test", "alice@mail.test", "bob@mail.test"
SIZE = 3_000
MAX_BYTES = 20 * SIZE


def mail(number, sender, *, has_file=True):
    """About `SIZE` bytes, if it has a file."""
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
        self.most_bytes = 0
        self._folder = folder
        self._files = None
        self.queues = []
        monkeypatch.setattr(mailbox, "raw_mail", self.mails.__getitem__)
        monkeypatch.setattr(verification_queue, "MAX_BYTES", MAX_BYTES)
        real = VerificationQueue.__init__

        def watched(queue, *args, **more):
            real(queue, *args, **more)
            self.queues.append(queue)

        monkeypatch.setattr(VerificationQueue, "__init__", watched)

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

    @property
    def kept(self):
        """Bytes in memory, by the number of the mail."""
        return {uid: len(each.raw) for uid, each in self.queues[-1]._mails.items() if each.raw}

    async def until(self, count):
        await self.inbox.until(lambda inbox: len(inbox.accepted) >= count, within_s=3_000)

    def numbers(self, sender):
        texts = [one.text for one in self.inbox.accepted if one.sender.address == sender]
        return [int(re.match(r"mail (\d+)", text)[1]) for text in texts]


@pytest.fixture
def it(tmp_path, monkeypatch):
    return Scenario(tmp_path, monkeypatch)


@pytest.mark.parametrize("sheds", [True, False])
async def test_one_persons_files_hold_up_nobody(it, monkeypatch, sheds):
    """
    Far more than may be kept, over a restart; each comes afterwards, in order, once. The control: what keeps its
    bytes fills the memory, and then no mail is read.
    """
    if not sheds:
        monkeypatch.setattr(ReadMail, "leave", lambda _: None)
    said = [mail(number, ALICE, has_file=number % 3 > 0) for number in range(1, 61)]
    async with it.running():
        it.put(*said, mail(61, BOB, has_file=False))
        await anyio.sleep(600)
        it.put(mail(62, BOB, has_file=False))
        await anyio.sleep(600)
        assert it.numbers(BOB) == ([61, 62] if sheds else [])
        if not sheds:
            return
        assert it.kept == {}
    async with it.running():
        it.put(mail(63, BOB, has_file=False))
        await it.until(3)
        assert it.inbox.positions["uid"] == "0"
        await anyio.sleep(60)
        it.storage.is_unreachable = False
        await it.until(63)
        await anyio.sleep(60)
        assert it.kept == {}
    assert it.numbers(ALICE) == list(range(1, 61))
    assert sum(len(one.attachments) for one in it.inbox.accepted) == 40
    assert it.inbox.positions["uid"] == "63"


async def test_many_people_and_the_owner(it):
    """None keeps bytes, others' text comes at once, and what is fetched again is bounded, too."""
    guests = [f"g{number}@guests.test" for number in range(30)]
    it.put(*(mail(number, guest) for number, guest in enumerate(guests, 1)))
    async with it.running():
        await anyio.sleep(60)
        assert it.kept == {}
        it.put(mail(31, OWNER), mail(32, BOB), mail(33, ALICE, has_file=False))
        await it.until(1)
        await anyio.sleep(60)
        assert it.numbers(ALICE) == [33]
        assert it.kept == {}
        it.storage.is_unreachable = False
        await it.until(33)
    assert sum(len(one.attachments) for one in it.inbox.accepted) == 32
    assert {one.text.strip() for one in it.inbox.accepted} == {f"mail {number}" for number in range(1, 34)}


@pytest.mark.parametrize("more", [True, False])
async def test_who_sends_too_much_meanwhile_gets_no_files(it, monkeypatch, more):
    """What waits is bounded; up to there (the control) it goes on waiting."""
    monkeypatch.setattr(verification_queue, "MAX_OF_SENDER", 10)
    it.put(*(mail(number, ALICE) for number in range(1, 21 if more else 11)))
    async with it.running():
        await anyio.sleep(900)
        assert it.numbers(ALICE) == (list(range(1, 11)) if more else [])
        assert all("too many mails are waiting" in one.text for one in it.inbox.accepted)
        assert not any(one.attachments for one in it.inbox.accepted)
        it.storage.is_unreachable = False
        await it.until(20 if more else 10)
    assert it.numbers(ALICE) == list(range(1, 21 if more else 11))
    assert sum(len(one.attachments) for one in it.inbox.accepted) == 10


async def test_what_was_deleted_meanwhile_does_not_come(it):
    """A mail without its bytes that is not in the mailbox any more holds up nothing."""
    it.put(*(mail(number, ALICE) for number in range(1, 12)))
    async with it.running():
        await anyio.sleep(60)
        assert 9 not in it.kept
        it.server.uids.remove(9)
        it.storage.is_unreachable = False
        await it.until(10)
        await anyio.sleep(60)
    assert it.numbers(ALICE) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]
    assert it.inbox.positions["uid"] == "11"
