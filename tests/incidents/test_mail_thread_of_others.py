"""
Two ways to read in mail what was said to somebody else. Who had once seen a Message-ID of a thread put it
into References, added a Cc, and was answered from the notes that others had left in that thread. And an
answer to the owner went, with her memory and her conversation in it, wherever Reply-To pointed in her domain,
although no server vouches for that field.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent_core.memory.scopes import OWNER, scope_for
from agent_core.messages import Audience, InboundMessage
from agent_core.models import MemoryScope
from channels.email.compose.outbound_mail import compose
from channels.email.config import MailAnswerLimits
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from gateway.store.sql.row_codec import new_outbox
from gateway.store.stores import NewOutbound
from tests.mail_config import email_config

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = "<root@mail.test>"


def mail(sender: str, *fields: str) -> InboundMessage:
    """A proven mail in Alice's thread."""
    config = email_config()
    lines = [
        "Authentication-Results: mail.test; dmarc=pass header.from=mail.test",
        f"From: {sender}",
        "To: bot@mail.test",
        f"References: {ROOT}",
        *fields,
    ]
    raw = "\r\n".join([*lines, "", "what do you know?"]).encode()
    intake = MailIntake("email", config, AnswerLimiter(MailAnswerLimits()), is_owner="alice@mail.test".__eq__)
    message = intake.convert(read_arrival(1, NOW, raw, whole=True), uidvalidity=1)
    assert not isinstance(message, OwnCopy)
    assert message.addressed
    return message


def scope(message: InboundMessage) -> MemoryScope:
    return scope_for(
        message.session,
        message.audience,
        message.sender.address == "alice@mail.test",
        message.sender.address,
        sender_verified=message.sender.verified,
    )


def recipient(message: InboundMessage) -> str:
    answer = NewOutbound("email", "bot@mail.test", message.session, "hi", context=message.context)
    [(outbound, _)] = new_outbox([answer], secret="s", origin="o", now=NOW.timestamp())
    return compose(outbound, address="bot@mail.test", self_copy=False).envelope.recipient


def test_claiming_a_thread_opens_no_notes_of_others() -> None:
    """With the same References and a Cc, Alice and Bob have different notes and different histories."""
    alice, bob = mail("alice@mail.test", "Cc: carol@mail.test"), mail("bob@mail.test", "Cc: carol@mail.test")

    assert alice.audience is bob.audience is Audience.GROUP
    assert alice.session.conversation == bob.session.conversation
    assert scope(alice) != scope(bob)
    assert alice.session != bob.session
    assert scope(alice) == scope(mail("alice@mail.test", "Cc: dave@mail.test")), "hers are kept together"


@pytest.mark.parametrize("elsewhere", ["mallory@mail.test", "Alice <mallory+x@mail.test>"])
def test_an_answer_that_goes_elsewhere_is_not_private(elsewhere: str) -> None:
    """Reply-To may move the answer within the domain; the owner's memory and conversation stay behind."""
    plain, moved = mail("alice@mail.test"), mail("alice@mail.test", f"Reply-To: {elsewhere}")

    assert (scope(plain), plain.audience) == (OWNER, Audience.DIRECT)
    assert recipient(moved) != recipient(plain) == "alice@mail.test"
    assert moved.audience is Audience.GROUP
    assert scope(moved) != OWNER
    assert moved.session != plain.session
    assert moved.session != mail(recipient(moved)).session


def test_a_tag_of_her_own_is_still_hers() -> None:
    """Plus-tags lead into the same mailbox."""
    moved = mail("alice@mail.test", "Reply-To: alice+bot@mail.test")

    assert (recipient(moved), scope(moved)) == ("alice+bot@mail.test", OWNER)
    assert moved.session == mail("alice@mail.test").session
