"""
Mails as people and programs really send them, each with what the model must be given of it: the inputs and the right
values are in ``tests/data/mail/cases``.

``shows`` must be among the person's words, ``hides`` must not; ``reply`` says that the mail answers an answer of the
bot that said "Which day? Which hotel?"; ``answered`` says whether anything is sent.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent_core.messages import InboundMessage, OutboundMessage
from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.mail_threads import message_id_of, session_of
from channels.email.parse.opaque import content_of
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from tests.mail_config import email_config
from tests.rows import rows

CASES = Path(__file__).parents[1] / "data" / "mail" / "cases"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "expected.json").read_text())
NOW = datetime(2026, 1, 19, 12, tzinfo=UTC)
CONFIG = email_config(allow_from=["alice@mail.test"])
SENT = OutboundMessage(
    id="1",
    channel="email",
    account="bot@mail.test",
    session=session_of("email", "0" * 24, "alice@mail.test"),
    text="Which day?\n\nWhich hotel?",
    created_at=NOW,
    context={"subject": "a question"},
)


def received(name: str) -> InboundMessage:
    answered = message_id_of("1", SENT.session, account="bot@mail.test")
    raw = (CASES / f"{name}.eml").read_bytes().replace(b"@@AID@@", answered.encode())
    if EXPECTED[name].get("reply") and b"In-Reply-To" not in raw:
        raw = f"In-Reply-To: {answered}\n".encode() + raw
    raw = b"Authentication-Results: mail.test; dmarc=pass header.from=mail.test\n" + raw
    arrival = read_arrival(1, NOW, raw, whole=True)
    intake = MailIntake("email", CONFIG, AnswerLimiter(CONFIG.limits))
    message = intake.convert(arrival, uidvalidity=1)
    assert not isinstance(message, OwnCopy)
    if EXPECTED[name].get("reply"):
        message = intake.answering(message, arrival, SENT, formatted=True)
    return message


def named(message: InboundMessage, name: str) -> str:
    """The subject, and the names of the files."""
    mail = parse_mail((CASES / f"{name}.eml").read_bytes())
    files = [f'"{each.name}"' for each in mail.attachments]
    return "\n".join([f"Subject: {message.context.subject}", *files])


@rows("name", sorted(EXPECTED))
def test_a_mail_says_what_its_sender_wrote(name: str) -> None:
    wanted, message = EXPECTED[name], received(name)
    # What is uncertain of a reply stands apart, and is shown too.
    below = "\n".join(each.text for each in message.background if each.sender != "bot@mail.test")
    words = f"{message.text}\n{below}\n"
    for shown in wanted.get("shows", []):
        assert shown in words + named(message, name)
    for hidden in wanted.get("hides", []):
        assert hidden not in words
    for end in wanted.get("quoted_ends", []):
        assert message.text.endswith(end)
    assert message.addressed
    is_silent = message.context.read_only or message.kind == "reaction"
    assert is_silent is not wanted.get("answered", True)
    assert message.sender.verified


def test_every_input_has_its_right_value() -> None:
    """The control: none is left out."""
    assert {path.stem for path in CASES.glob("*.eml")} == set(EXPECTED)
    assert len(EXPECTED) == 41


def taken(head: str, body: str = "Hello", **settings: Any) -> InboundMessage:
    raw = (
        "Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\nFrom: alice@mail.test\r\n"
        f"To: bot@mail.test\r\n{head}\r\n\r\n{body}"
    ).encode()
    intake = MailIntake("email", CONFIG, AnswerLimiter(CONFIG.limits), **settings)
    found = intake.convert(read_arrival(1, NOW, raw, whole=True), uidvalidity=1)
    assert isinstance(found, InboundMessage)
    return found


@rows("field", ["Precedence: list", "List-Id: <a.b>", "Auto-Submitted: auto-generated"])
def test_who_may_write_is_told_once_that_mails_of_programs_are_not_answered(field: str) -> None:
    """All such mails of a person are one message for the queue, which answers it once."""
    one, two = (taken(f"{field}\r\nMessage-ID: <{n}@mail.test>") for n in (1, 2))
    assert one.native_id == two.native_id
    assert one.addressed
    assert "sent it" in one.context.refusal


def test_no_program_that_answers_and_no_stranger_is_told() -> None:
    """The control: nobody starts a loop, and nothing goes to people who may not write."""
    for message in (
        taken("Auto-Submitted: auto-replied"),
        taken("Auto-Submitted: auto-generated", welcome=lambda _: False),
        taken("Return-Path: <>\r\nAuto-Submitted: auto-generated"),
    ):
        assert not message.addressed
        assert message.context.refused in ("automatic_mail", "bounce")


ENVELOPED = base64.b64encode(bytes.fromhex("300b06092a864886f70d010703")).decode()


@rows(
    ("kind", "body"),
    [
        ("Content-Type: application/pkcs7-mime\r\nContent-Transfer-Encoding: base64", ENVELOPED),
        ("Content-Type: multipart/encrypted; boundary=b", "--b\r\n\r\nx\r\n--b--"),
        ("Content-Type: text/plain", "-----BEGIN PGP MESSAGE-----\r\n\r\nhQEM"),
    ],
)
def test_an_encrypted_mail_is_called_encrypted(kind: str, body: str) -> None:
    message = taken(f"Message-ID: <1@mail.test>\r\n{kind}", body)
    assert message.addressed
    assert "it is encrypted" in message.context.unreadable


def test_signed_content_in_pieces_without_lengths_is_read() -> None:
    """As Outlook and ``openssl cms -stream`` write it; damage is no content."""
    pieces = bytes.fromhex("24800403") + b"abc" + bytes.fromhex("0402") + b"de" + b"\0\0"
    inner = bytes.fromhex("308006092a864886f70d010701a080") + pieces
    signed = bytes.fromhex("308006092a864886f70d010702a0803080020101310b300906052b0e03021a0500") + inner
    assert content_of(signed) == b"abcde"
    for end in range(len(signed) - 2):
        assert content_of(signed[:end]) is None
    assert content_of(b"\x24\x80" * 1_000) is None
    assert content_of(signed.replace(pieces, b"\x24\x80" * 1_000)) is None
