"""
A guest who got a mail of the owner in Cc handed a copy of it in before it came by itself, with a field on top that
nobody signs: the copy was no mail to answer, and the owner's own mail was the same one and was not answered either.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent_core.messages import InboundMessage
from channels.email.config import MailAnswerLimits
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from tests.mail_config import email_config
from tests.unit.channels.email.test_dkim import INCLUDED, signed

MAIL = signed(
    b"From: alice@mail.test\r\nTo: bot@mail.test\r\nCc: guest@slow.test\r\nSubject: Hi\r\nDate: now\r\n"
    b"Message-ID: <1@mail.test>\r\n\r\nhello\r\n",
    include=[*INCLUDED, b"cc"],
)
TOLD = b"Authentication-Results: mail.test; dkim=pass header.d=mail.test\r\n"


def taken(raw: bytes) -> InboundMessage:
    intake = MailIntake("email", email_config(allow_from=["*@mail.test"]), AnswerLimiter(MailAnswerLimits()))
    arrival = read_arrival(1, datetime(2026, 1, 1, tzinfo=UTC), TOLD + raw, whole=True)
    message = intake.convert(arrival, uidvalidity=1)
    assert not isinstance(message, OwnCopy)
    assert message.sender.verified
    return message


@pytest.mark.parametrize(
    "on_top",
    [
        b"Auto-Submitted: auto-replied\r\n",
        b"List-Id: <x.test>\r\n",
        b"Return-Path: <>\r\n",
        b"X: x\r\n" * 2_000,
    ],
    ids=["automatic", "list", "bounce", "too many fields"],
)
def test_a_copy_with_a_field_on_top_is_another_mail(on_top: bytes) -> None:
    """Which is not answered, or with an apology; the mail itself is, whichever comes first."""
    mail, copy = taken(MAIL), taken(on_top + MAIL)
    assert mail.addressed
    assert not mail.context.unreadable
    assert not copy.addressed or copy.context.unreadable or copy.context.refusal
    assert copy.native_id != mail.native_id


@pytest.mark.parametrize("on_top", [b"", b"Received: from x by y\r\n", b"X-Spam: no\r\n", b"X-Loop: x\r\n"])
def test_a_copy_that_is_read_alike_is_the_same_mail(on_top: bytes) -> None:
    """The control: it is answered once."""
    assert taken(on_top + MAIL).native_id == taken(MAIL).native_id
