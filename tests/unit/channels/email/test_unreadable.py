"""Mails that cannot be read: whoever is proven hears of it, nobody else does."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from agent_core.messages import InboundMessage
from channels.email.config import EmailConfig, MailAnswerLimits
from channels.email.parse.mime import Unreadable, parse_headers
from channels.email.parse.unreadable import MAX_HEADER, MAX_LINES, TOO_LARGE, apology_of, headers_of
from channels.email.receive.mail_intake import MailIntake, OwnCopy, given_up, read_arrival
from channels.email.reply_limits import AnswerLimiter
from channels.email.trust.dkim import claims_of
from tests.rows import rows

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROOF = "Authentication-Results: mail.test; dmarc=pass header.from=mail.test"
ALICE = "From: alice@mail.test"
TO = "To: bot@mail.test"
JUNK = [f"X-Junk-{n}: {'j' * 900}" for n in range(400)]
PARTS = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\nx\r\n" * 500


def config(**changes: Any) -> EmailConfig:
    return EmailConfig.model_validate(
        {
            "address": "bot@mail.test",
            "username": "bot",
            "password": "pw",
            "imap": {"host": "h"},
            "smtp": {"host": "h"},
            "trusted_authserv_ids": ["mail.test"],
            **changes,
        }
    )


def mail(*fields: str, body: bytes = b"\r\nhi", end: str = "\r\n") -> bytes:
    return end.join([*fields, ""]).encode() + body


def taken(raw: bytes, *, proof: str = "", **changes: Any) -> InboundMessage:
    intake = MailIntake("email", config(**changes), AnswerLimiter(MailAnswerLimits()))
    message = intake.convert(read_arrival(1, NOW, raw, whole=True), uidvalidity=1, verification=proof)
    assert not isinstance(message, OwnCopy)
    return message


@rows(
    "raw", [mail(PROOF, ALICE, TO, *JUNK), mail(PROOF, *JUNK, ALICE, TO), mail(PROOF, ALICE, TO, body=PARTS)]
)
def test_who_is_proven_is_told(raw: bytes) -> None:
    """In the place where a text would be: the turn has something to say, and the router lets it in."""
    message = taken(raw)

    assert message.sender.verified
    assert message.addressed
    assert "I could not read it" in message.context.unreadable
    assert not message.context.refused


def test_who_is_proven_by_his_signature_is_told_too() -> None:
    """The question is asked for a mail that was fetched whole, and not for one of which only the header is here."""
    intake = MailIntake("email", config(), AnswerLimiter(MailAnswerLimits()))
    raw = mail(ALICE, TO, body=PARTS)

    assert intake.open_question(read_arrival(1, NOW, raw, whole=True)) == "alice@mail.test"
    assert intake.open_question(read_arrival(1, NOW, raw, whole=False)) is None
    assert taken(raw, proof="signed by mail.test").context.unreadable


@rows(
    "fields",
    [
        [ALICE, TO],
        ["Authentication-Results: evil.test; dmarc=pass header.from=mail.test", ALICE, TO],
        ["Authentication-Results: mail.test; dmarc=fail header.from=mail.test", PROOF, ALICE, TO],
        [PROOF, "From: eve@evil.test", TO],
        [PROOF, ALICE, TO, "From: eve@evil.test"],
        [PROOF, ALICE, TO, "Auto-Submitted: auto-replied"],
        [PROOF, ALICE, TO, "List-Id: <x>"],
        [PROOF, ALICE, TO, "Return-Path: <>"],
        [PROOF, "From: bot@mail.test", TO],
        [PROOF, ALICE, "To: somebody@else.test"],
    ],
)
@rows("place", ["in front", "behind"])
@rows("monster", ["header", "parts"])
def test_nobody_else_is(fields: list[str], place: str, monster: str) -> None:
    """Forgers, robots, two senders at once, wherever in a long header it stands: silence, with a reason."""
    if monster == "parts":
        raw = mail(*fields, body=PARTS)
    else:
        raw = mail(*fields, *JUNK) if place == "in front" else mail(fields[0], *JUNK, *fields[1:])
    message = taken(raw)

    assert not message.addressed
    assert message.context.refused.startswith("unreadable_")
    assert not message.context.unreadable
    assert message.text == ""


def test_those_who_are_only_read_are_never_written_to() -> None:
    """Not even that they could not be read."""
    message = taken(mail(PROOF, ALICE, TO, body=PARTS), ingest_only_from=["alice@mail.test"])

    assert not message.addressed
    assert message.context.refused == "unreadable_too_many_parts"


@rows(
    "odd",
    [
        f"X-A: b\rFrom: eve@evil.test\r\n{ALICE}",
        f"X-A: b\nFrom: eve@evil.test\r\n{ALICE}",
        f"{ALICE}\r\nX-A: b\0c",
    ],
)
def test_what_depends_on_the_reader_proves_nobody(odd: str) -> None:
    """Far behind the caps as well as in front of them."""
    raw = mail(PROOF, *JUNK, odd, TO)

    assert headers_of(raw).fields == ()
    assert not taken(raw).addressed


def test_a_header_without_an_end_is_nobodys() -> None:
    """So long a header is no mail; the time that looking takes has a bound."""
    raw = mail(PROOF, ALICE, TO, body=b"x" * MAX_HEADER)
    assert headers_of(raw + b"\r\n\r\n").fields == ()
    with pytest.raises(Unreadable):
        parse_headers(raw)


@rows("line", ["X: x", " xxx"])
def test_a_header_of_a_hundred_thousand_lines_is_nobodys(line: str) -> None:
    """Each line costs time, while other mails wait. The control has a few less than are read."""
    few, many = (mail(ALICE, TO, *[line] * count) for count in (MAX_LINES - 10, 100_000))
    assert headers_of(few).first("from") == "alice@mail.test"
    assert headers_of(many).fields == ()
    signature = "DKIM-Signature: v=1; d=mail.test"
    assert [claim.lacks for claim in claims_of(mail(signature, *["X:"] * 60_000))] == [
        "no well-formed header"
    ]


def test_usual_headers_are_whole() -> None:
    """Only of monsters a part is kept."""
    raw = mail(PROOF, ALICE, TO, "X-Own: 1")
    assert headers_of(raw).fields == parse_headers(raw).fields
    assert "x-own" in dict(headers_of(raw).fields)
    kept = headers_of(mail(PROOF, ALICE, "References: <a@b>", "\t<c@d>", *JUNK, end="\n", body=b"\nx"))
    assert [name for name, _ in kept.fields] == ["authentication-results", "from", "references"]
    assert kept.references() == ("<a@b>", "<c@d>")


@rows("trouble", ["too_slow", "reader_failed"])
def test_a_reading_without_an_end_is_told_as_well(trouble: str) -> None:
    """What the header says is known even if everything behind it upsets the reader."""
    intake = MailIntake("email", config(), AnswerLimiter(MailAnswerLimits()))
    message = intake.convert(given_up(1, NOW, mail(PROOF, ALICE, TO), trouble), uidvalidity=1)

    assert isinstance(message, InboundMessage)
    assert message.context.unreadable == apology_of(trouble)
    odd = given_up(1, NOW, mail(PROOF, "X: a\rFrom: eve@evil.test", ALICE, TO), trouble)
    assert odd.headers.fields == ()


def test_the_words() -> None:
    """Each reason has its own, and one that nobody foresaw has some."""
    known = ("too_many_parts", "nested_too_deep", "header_too_large", "too_many_header_fields", "too_slow")
    assert len({apology_of(each) for each in (*known, "something else")}) == len(known) + 1
    assert TOO_LARGE not in known, "that one is answered with its subject"


def test_the_words_are_in_the_language_of_the_sender() -> None:
    """The control: nobody else's are."""
    german = {"alice@mail.test": "de"}
    intake = MailIntake("email", config(), AnswerLimiter(MailAnswerLimits()), language_of=german.get)
    message = intake.convert(given_up(1, NOW, mail(PROOF, ALICE, TO), "too_slow"), uidvalidity=1)

    assert isinstance(message, InboundMessage)
    assert message.context.unreadable.startswith("Deine Mail")
    assert apology_of("too_slow").startswith("Your mail")
