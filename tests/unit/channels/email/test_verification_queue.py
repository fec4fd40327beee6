"""What waits for a proof is bounded."""

from __future__ import annotations

import pytest

from channels.email.imap.mailbox import MailInfo
from channels.email.parse.mime import Headers
from channels.email.receive.mail_intake import Arrival
from channels.email.receive.verification_queue import (
    MAX_BYTES,
    MAX_MAILS,
    ReadMail,
    VerificationQueue,
)
from tests.clock import EPOCH


def queue_of(*senders: str, raw: bytes = b"") -> VerificationQueue:
    waiting = VerificationQueue(None, start=lambda *_: None)
    for uid, sender in enumerate(senders, start=1):
        waiting.add(mail(sender, uid, raw=raw), None)
    return waiting


def mail(sender: str, uid: int = 1_000_000, *, raw: bytes = b"") -> ReadMail:
    info = MailInfo(uid=uid, size=len(raw), received_at=EPOCH)
    return ReadMail(info, raw, Arrival(uid, EPOCH, Headers(()), "x"), senders=frozenset({sender}))


@pytest.mark.parametrize(("more", "full"), [(0, False), (1, True)])
def test_nothing_more_is_read_behind_so_many_mails(more: int, full: bool) -> None:
    assert queue_of(*(f"{number}@a.test" for number in range(2 * MAX_MAILS + more))).full is full


@pytest.mark.parametrize(("size", "full"), [(MAX_BYTES // 2, False), (MAX_BYTES // 2 + 1, True)])
def test_nothing_more_is_read_behind_so_many_bytes(size: int, full: bool) -> None:
    assert queue_of("a@a.test", "b@b.test", raw=bytes(size)).full is full
