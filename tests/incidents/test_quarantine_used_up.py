"""
There is room for so many unproven mails in quarantine within an hour, and strangers, of whom nothing is kept,
used it up: a hundred of their mails, and what an allowed person wrote without a proof was dropped unseen. And what is
kept had any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from agent_core.messages import InboundMessage
from channels.email.config import MailAnswerLimits
from channels.email.receive.mail_intake import MAX_UNPROVEN, MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from gateway.routing.access import Access, Alias, Role
from gateway.routing.intake import admission
from tests.mail_config import email_config

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MANY = 110


class Desk:
    """The way of a mail up to the decision of the gateway."""

    def __init__(self, allow_from: Sequence[str], *, owner: str = "") -> None:
        config = email_config(allow_from=list(allow_from))
        aliases = [Alias("email", owner)] if owner else []
        self.access = Access(aliases, {"email": config.allow_from})
        self.intake = MailIntake("email", config, AnswerLimiter(MailAnswerLimits()), welcome=self.welcome)
        self.count = 0

    def welcome(self, address: str) -> bool:
        return self.access.role("email", address, verified=True) is not Role.STRANGER

    def gets(self, sender: str) -> tuple[str | None, str | None]:
        """Why the next mail is ignored, and why it is kept."""
        self.count += 1
        raw = f"From: {sender}\r\nTo: bot@mail.test\r\nMessage-ID: <{self.count}@x.test>\r\n\r\nhello\r\n"
        message = self.intake.convert(read_arrival(self.count, NOW, raw.encode(), whole=True), uidvalidity=1)
        assert not isinstance(message, OwnCopy)
        assert isinstance(message, InboundMessage)
        return admission(message, self.access)


KEPT = (None, "sender_not_verified")


def test_strangers_take_no_room() -> None:
    """After 110 of their mails, of which nothing is kept, an allowed person's still is."""
    desk = Desk(["alice@mail.test"])

    assert {desk.gets(f"m{number}@evil.test") for number in range(MANY)} == {("sender_not_allowed", None)}
    assert desk.gets("alice@mail.test") == KEPT


def test_mails_without_a_single_sender_take_no_room_either() -> None:
    """Two From fields mean two people, or nobody."""
    desk = Desk(["alice@mail.test"])
    for number in range(MANY):
        desk.gets(f"m{number}@evil.test\r\nFrom: n{number}@evil.test")

    assert desk.gets("alice@mail.test") == KEPT


def test_a_pattern_does_not_push_out_who_is_named() -> None:
    """Names are cheap to invent in a domain that is let in; the owner and who is listed do not suffer."""
    desk = Desk(["*@club.test", "alice@mail.test"], owner="owner@mail.test")
    kept = [desk.gets(f"m{number}@club.test") for number in range(MANY)]

    assert kept.count(KEPT) < MANY, "the negative control: there is a limit"
    assert desk.gets("alice@mail.test") == KEPT
    assert desk.gets("owner@mail.test") == KEPT


def test_one_name_has_its_share() -> None:
    """A hundred mails in Alice's name are not all kept, and Bob's is."""
    desk = Desk(["alice@mail.test", "bob@mail.test"])
    kept = [desk.gets("alice@mail.test") for _ in range(MANY)]

    assert 0 < kept.count(KEPT) < MANY
    assert desk.gets("bob@mail.test") == KEPT


def test_a_mail_of_nobody_fills_no_disk() -> None:
    """A hundred an hour with a megabyte of text each were kept for a month; the control is a proven one."""
    desk = Desk(["alice@mail.test"])
    proof = "Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\n"
    sizes = []
    for number, told in enumerate(("", proof)):
        raw = (
            f"{told}From: alice@mail.test\r\nTo: bot@mail.test\r\nMessage-ID: <{number}@x.test>\r\n\r\n"
            + "hello\r\n" * 20_000
        )
        message = desk.intake.convert(read_arrival(number, NOW, raw.encode(), whole=True), uidvalidity=1)
        assert isinstance(message, InboundMessage)
        assert message.text.startswith("hello\nhello")
        sizes.append(len(message.text))
        assert ("was not kept" in message.text) is not bool(told)
    assert sizes[0] < MAX_UNPROVEN + 200
    assert sizes[1] > 100_000
