"""What waits for a proof or for a storage is bounded: in all, for each sender, and last for the owner."""

from __future__ import annotations

import pytest

from channels.email.imap.mailbox import MailInfo
from channels.email.receive.verification_queue import (
    MAX_BYTES,
    MAX_MAILS,
    MAX_OF_SENDER,
    ReadMail,
    VerificationQueue,
)
from tests.clock import EPOCH


def queue_of(*senders: str, raw: bytes = b"") -> VerificationQueue:
    waiting = VerificationQueue(None, start=lambda *_: None)
    for uid, sender in enumerate(senders, start=1):
        waiting.add(mail(sender, uid, raw=raw), None)
    return waiting


def mail(sender: str, uid: int = 1_000_000, *, raw: bytes = b"", owners: bool = False) -> ReadMail:
    info = MailInfo(uid=uid, size=len(raw), received_at=EPOCH)
    return ReadMail(info, raw, None, senders=frozenset({sender}), is_owners=owners)


@pytest.mark.parametrize(("more", "full"), [(0, False), (1, True)])
def test_nothing_more_is_read_behind_so_many_mails(more: int, full: bool) -> None:
    assert queue_of(*(f"{number}@a.test" for number in range(2 * MAX_MAILS + more))).full is full


@pytest.mark.parametrize(("size", "full"), [(MAX_BYTES // 2, False), (MAX_BYTES // 2 + 1, True)])
def test_nothing_more_is_read_behind_so_many_bytes(size: int, full: bool) -> None:
    assert queue_of("a@a.test", "b@b.test", raw=bytes(size)).full is full


@pytest.mark.parametrize(("more", "crowded"), [(0, False), (1, True)])
def test_behind_so_many_only_the_owners_mail_waits_for_its_files(more: int, crowded: bool) -> None:
    waiting = queue_of(*(f"{number}@a.test" for number in range(MAX_MAILS + more)))
    assert waiting.is_crowded(mail("new@a.test")) is crowded
    assert not waiting.is_crowded(mail("ann@a.test", owners=True))


@pytest.mark.parametrize(("less", "crowded"), [(1, False), (0, True)])
def test_so_many_of_one_sender_wait_be_it_the_owner(less: int, crowded: bool) -> None:
    waiting = queue_of(*["ann@a.test"] * (MAX_OF_SENDER - less))
    assert waiting.is_crowded(mail("ann@a.test", owners=True)) is crowded
    assert not waiting.is_crowded(mail("bob@a.test"))
