"""Whose words a message is made of: the sender's, and whatever came along with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent_core.messages import Attachment, Background, InboundMessage, Sender, SessionKey
from agent_core.models import Purpose
from agent_core.provenance import Trust, trust_of
from gateway.queue.ports import Turn
from gateway.routing.access import Access, Alias
from gateway.turns.user_input import session_of, user_lines
from tests.clock import EPOCH

ANN, BOB, EVE, BOT = "@ann:hs.test", "@bob:hs.test", "@eve:hs.test", "@bot:hs.test"
ACCESS = Access(
    [Alias("matrix", ANN), Alias("email", "ann@mail.test")], {"matrix": [BOB], "email": ["bob@mail.test"]}
)
PICTURE = Attachment(name="cat.png", media_type="image/png", size_bytes=9, path="a/b", sha256="0" * 64)
TEXT = Attachment(name="notes.txt", media_type="text/plain", size_bytes=9, path="a/c", sha256="1" * 64)


def message(sender: str = ANN, **more: Any) -> InboundMessage:
    channel = "matrix" if sender.startswith("@") else "email"
    values: dict[str, Any] = {
        "channel": channel,
        "account": BOT if channel == "matrix" else "bot@mail.test",
        "native_id": "1",
        "session": SessionKey(channel, "room"),
        "sender": Sender(address=sender, verified=True),
        "text": "hello",
        "received_at": EPOCH,
    }
    return InboundMessage(**values | more)


def turn_of(*messages: InboundMessage) -> Turn:
    rows = tuple(
        SimpleNamespace(id=number, message=each, accepted_at=EPOCH) for number, each in enumerate(messages)
    )
    return Turn("t", messages[0].session, 1, rows, 1, 0)  # type: ignore[arg-type]


def said(kind: str, sender: str) -> tuple[Background, ...]:
    return (Background(kind=kind, sender=sender, text="do it"),)  # type: ignore[arg-type]


MAIL = {"context": {"subject": "Hi"}}


@pytest.mark.parametrize(
    ("given", "trust"),
    [
        (message(), Trust.OWNER),
        (message(BOB), Trust.KNOWN),
        (message(background=said("quoted", ANN)), Trust.OWNER),
        (message(background=said("quoted", BOT)), Trust.OWNER),
        (message(background=said("quoted", BOB)), Trust.KNOWN),
        (message(background=said("thread", BOT)), Trust.KNOWN),
        (message(background=said("talk", EVE)), Trust.UNTRUSTED),
        (message(attachments=(TEXT,)), Trust.UNTRUSTED),
        (message(attachments=(PICTURE,)), Trust.UNTRUSTED),
        (message("ann@mail.test", **MAIL), Trust.OWNER),
        (message("ann@mail.test", **MAIL, background=said("forwarded", "bob@mail.test")), Trust.UNTRUSTED),
        (message("ann@mail.test", **MAIL, background=said("quoted", "ann@mail.test")), Trust.UNTRUSTED),
        (message("heartbeat", kind="tick"), Trust.OWNER),
        (message("heartbeat", kind="tick", context={"watched": True}), Trust.UNTRUSTED),
        (message("heartbeat", kind="tick", context={"watched": True, "forced": True}), Trust.UNTRUSTED),
        (message(BOB, kind="job"), Trust.KNOWN),
    ],
)
def test_a_message_is_trusted_as_far_as_its_worst_part(given: InboundMessage, trust: Trust) -> None:
    """Its question and its line in the history alike; nobody has proved who wrote what stands in a mail."""
    assert trust_of(session_of(turn_of(given), ACCESS, Purpose.CHAT).origins) is trust
    assert trust_of(user_lines(turn_of(given), ACCESS)[0].sources) is trust


def test_of_several_messages_each_line_has_its_own() -> None:
    """The turn has those of all of them."""
    turn = turn_of(message(), message(BOB))
    assert trust_of(session_of(turn, ACCESS, Purpose.CHAT).origins) is Trust.KNOWN
    assert [trust_of(line.sources) for line in user_lines(turn, ACCESS)] == [Trust.OWNER, Trust.KNOWN]


def test_the_time_is_when_we_took_it() -> None:
    """A server that dates its message back does not put it before the owner's word that all is fine."""
    old = message(BOB, received_at=EPOCH.replace(year=1999))
    assert [origin.at for origin in session_of(turn_of(old), ACCESS, Purpose.CHAT).origins] == [EPOCH]


ALERT = {"context": {"subject": "Hi", "outbound": "key"}}


def test_what_is_quoted_of_the_mail_that_is_answered_is_looked_up() -> None:
    """It is a stranger's only if the history does not have it; in a mail that answers none of ours it is one's."""
    text = "-----Original Message-----\nFrom: bot@mail.test\nSent: today\nSubject: Hi\n\n> the disk is full"
    below = (Background(kind="quoted", sender="below the mail", text=text),)
    answers, other = (message("ann@mail.test", **each, background=below) for each in (ALERT, MAIL))
    session = session_of(turn_of(answers), ACCESS, Purpose.CHAT)
    assert trust_of(session.origins) is Trust.OWNER
    ((words, origin),) = session.quotes
    assert words == "the disk is full"
    assert origin.trust is Trust.UNTRUSTED
    session = session_of(turn_of(other), ACCESS, Purpose.CHAT)
    assert trust_of(session.origins) is Trust.UNTRUSTED
    assert not session.quotes
