"""
A guest at a large provider named a stranger there as the place to answer, and the bot wrote to that stranger whatever
the guest had asked it to say. Where the other person was one who may write, too, or the owner, nothing in the mail said
that it was somebody else who had asked.
"""

from __future__ import annotations

import email
from datetime import UTC, datetime

import pytest

from agent_core.messages import InboundMessage
from channels.email.compose.outbound_mail import compose
from channels.email.config import MailAnswerLimits
from channels.email.receive.mail_intake import MailIntake, read_arrival
from channels.email.reply_limits import AnswerLimiter
from gateway.store.sql.row_codec import new_outbox
from gateway.store.stores import NewOutbound
from tests.mail_config import email_config

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWNER, GUEST, COLLEAGUE = "ann@big.test", "eve@big.test", "eve@corp.test"
ALLOWED = [GUEST, "bob@far.test", "*@corp.test"]


def answer_to(sender: str, place: str) -> tuple[InboundMessage, str, str]:
    """A proven mail that asks for its answer somewhere, to whom that goes, and its text."""
    domain = sender.partition("@")[2]
    raw = (
        f"Authentication-Results: mail.test; dmarc=pass header.from={domain}\r\nFrom: {sender}\r\n"
        f"To: bot@mail.test\r\nReply-To: {place}\r\nMessage-ID: <1@{domain}>\r\n\r\nsay hello\r\n"
    )
    config = email_config(allow_from=ALLOWED)
    intake = MailIntake("email", config, AnswerLimiter(MailAnswerLimits()), is_owner=OWNER.__eq__)
    message = intake.convert(read_arrival(1, NOW, raw.encode(), whole=True), uidvalidity=1)
    assert isinstance(message, InboundMessage)
    new = NewOutbound("email", "bot@mail.test", message.session, "hello", context=message.context)
    [(outbound, _)] = new_outbox([new], secret="s", origin="o", now=NOW.timestamp())
    mail = compose(outbound, address="bot@mail.test", self_copy=False)
    parts = email.message_from_bytes(mail.raw).get_payload()
    return message, mail.envelope.recipient, parts[0].get_payload(decode=True).decode()


@pytest.mark.parametrize("place", ["stranger@big.test", OWNER, "stranger@far.test"])
def test_a_guest_names_nobody_whom_the_settings_do_not(place: str) -> None:
    """Their provider's name is no reason."""
    _, recipient, text = answer_to(GUEST, place)
    assert (recipient, text.strip()) == (GUEST, "hello")


@pytest.mark.parametrize(
    ("sender", "place"),
    [(GUEST, "bob@far.test"), (COLLEAGUE, "dan@corp.test"), (OWNER, "friend@big.test")],
)
def test_who_has_asked_stands_above_the_answer(sender: str, place: str) -> None:
    """Where it may go to somebody else: to who may write, and in the owner's name to who is at the same place."""
    _, recipient, text = answer_to(sender, place)
    assert recipient == place
    assert (
        text.splitlines()[0].replace("`", "") == f"({sender} has asked me, and wants my answer sent to you.)"
    )


@pytest.mark.parametrize("sender", [OWNER, GUEST])
def test_ones_own_mailbox_is_ones_own(sender: str) -> None:
    """The control: an address with a word in it is the same person."""
    place = sender.replace("@", "+bot@")
    _, recipient, text = answer_to(sender, place)
    assert (recipient, text.strip()) == (place, "hello")
