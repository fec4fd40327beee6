"""
The owner sent a mail with thirty megabytes of pictures and a question. It was too large to be read, so nobody
answered, and nobody told her why.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent_core.messages import InboundMessage
from channels.email.config import MailAnswerLimits
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from tests.mail_config import email_config

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def taken(*, sender: str = "alice@mail.test", text: bytes = b"", whole: bool = False) -> InboundMessage:
    """A mail of which only the header was fetched, or all."""
    config = email_config()
    header = (
        "Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\n"
        f"From: {sender}\r\nTo: bot@mail.test\r\nSubject: Which one?\r\n\r\n"
    )
    arrival = read_arrival(1, NOW, header.encode() + text, whole=whole)
    message = MailIntake("email", config, AnswerLimiter(MailAnswerLimits())).convert(arrival, uidvalidity=1)
    assert not isinstance(message, OwnCopy)
    return message


def test_who_is_proven_gets_an_answer() -> None:
    """The subject and what went wrong are what is answered."""
    message = taken()

    assert message.addressed
    assert "Which one?" in message.text
    assert "too large" in message.text


@pytest.mark.parametrize("sender", ["bot@mail.test", "a, b"])
def test_nobody_else_does(sender: str) -> None:
    """Size opens no door: ourselves and nobody get what they always get."""
    message = taken(sender=sender)

    assert not message.addressed
    assert message.text == ""


def test_a_forged_sender_is_for_a_person_to_judge() -> None:
    """As it would be with a small mail: kept back, unanswered."""
    message = taken(sender="alice@other.test")

    assert message.context.quarantine == "sender_not_verified"
    assert not message.sender.verified


def test_what_is_no_mail_is_still_only_remembered() -> None:
    """A structure beyond the caps is refused with its reason."""
    parts = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\nx\r\n" * 500
    raw = b"From: alice@mail.test\r\nTo: bot@mail.test\r\n" + parts
    arrival = read_arrival(1, NOW, raw, whole=True)

    assert arrival.trouble == "too_many_parts"
    assert not taken(text=b"x", whole=True).text.startswith("[")
