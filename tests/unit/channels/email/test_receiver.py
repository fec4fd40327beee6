"""A backlog is taken in without keeping the rest of the process waiting."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import anyio.lowlevel

from channels.email.imap.housekeeping import Housekeeping
from channels.email.imap.mailbox import MailInfo, Selected
from channels.email.receive.crash_suspects import CrashSuspects
from channels.email.receive.mail_intake import MailIntake
from channels.email.receive.mail_receiver import BATCH_MAILS, MailAccountParts, MailReceiver
from channels.email.reply_limits import AnswerLimiter
from channels.email.sent_tracker import SentTracker
from channels.email.server_ids import ServerIds
from tests.doubles.inbox import MemoryInbox
from tests.doubles.mailbox import config, raw_mail


class FullMailbox:
    """A batch of mails that waits."""

    async def select(self, _folder):
        return Selected(7, BATCH_MAILS + 1, BATCH_MAILS)

    async def find_own(self, *_, **__):
        return []

    async def newer_than(self, uid):
        return [each for each in range(1, BATCH_MAILS + 1) if each > uid]

    async def describe(self, uids):
        return [MailInfo(uid, len(raw_mail(uid)), datetime.now(UTC)) for uid in uids]

    async def bodies(self, uids, header_only=False):
        return {uid: raw_mail(uid) for uid in uids}

    def nudge(self):
        pass


class WatchedIntake(MailIntake):
    """Notes how often somebody else had a turn before each mail is judged."""

    turns = 0

    def __init__(self, settings):
        super().__init__("email", settings, AnswerLimiter(settings.limits))
        self.seen = []

    def convert(self, *args, **more):
        self.seen.append(self.turns)
        return super().convert(*args, **more)


async def test_others_have_their_turn_between_two_mails(tmp_path):
    """Judging a mail takes a millisecond, and a batch of them was a standstill of fifty."""
    inbox, settings = MemoryInbox(), config(1)
    inbox.positions |= {"uidvalidity": "7", "uid": "0"}
    intake = WatchedIntake(settings)

    async def somebody_else():
        while True:
            intake.turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        receiver = MailReceiver(
            FullMailbox(), inbox, MailAccountParts(
                intake=intake, housekeeping=Housekeeping(), now=lambda: datetime.now(UTC),
                went_out=SentTracker(lambda: 0.0), server_ids=ServerIds("bot@mail.test"),
                suspects=CrashSuspects(tmp_path / "reading.json"),
            ),
            before_commit=anyio.lowlevel.checkpoint, start=tasks.start_soon,
        )  # fmt: skip
        await receiver.start()
        tasks.start_soon(somebody_else)
        await receiver.take_new()
        tasks.cancel_scope.cancel()
    assert len(inbox.accepted) == len(intake.seen) == BATCH_MAILS
    assert len(set(intake.seen)) == BATCH_MAILS
