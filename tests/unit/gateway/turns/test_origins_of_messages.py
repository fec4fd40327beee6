"""Whose words a message is made of: the sender's, and whatever came along with it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from agent_core.messages import (
    Attachment,
    Background,
    InboundMessage,
    Sender,
    SessionKey,
)
from agent_core.models import Purpose
from agent_core.provenance import Trust, describe, trust_of
from gateway.routing.access import Access, Alias
from gateway.store.stores import Turn
from gateway.turns.user_input import session_of, trusted_before, user_lines
from tests.clock import EPOCH
from tests.rows import rows

ANN, BOB, EVE, BOT = "@ann:hs.test", "@bob:hs.test", "@eve:hs.test", "@bot:hs.test"
ACCESS = Access(
    [Alias("matrix", ANN), Alias("email", "ann@mail.test")], {"matrix": [BOB], "email": ["bob@mail.test"]}
)
PICTURE = Attachment(name="cat.png", media_type="image/png", size_bytes=9, path="a/b", sha256="0" * 64)
TEXT = Attachment(name="notes.txt", media_type="text/plain", size_bytes=9, path="a/c", sha256="1" * 64)


VOICE = Attachment(name="v.ogg", media_type="audio/ogg", size_bytes=9, path="a/d", sha256="2" * 64)


def recorded(*files: Attachment) -> dict[str, Any]:
    return {"context": {"spoken": [file.sha256 for file in files]}}


def message(sender: str = ANN, **more: Any) -> InboundMessage:
    channel = "matrix" if sender.startswith("@") else "email"
    values: dict[str, Any] = {
        "channel": channel,
        "account": BOT if channel == "matrix" else "bot@mail.test",
        "native_id": "1",
        "session": SessionKey(channel, "room"),
        "sender": Sender(address=sender, name="Ann" if "ann" in sender else "", verified=True),
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


@rows(
    ("given", "trust"),
    [
        (message(), Trust.OWNER),
        (message(BOB), Trust.KNOWN),
        (message(background=said("quoted", ANN)), Trust.OWNER),
        (message(background=said("quoted", BOT)), Trust.OWNER),
        (message(background=said("quoted", BOB)), Trust.KNOWN),
        (message(background=said("thread", BOT)), Trust.KNOWN),
        (message(background=said("talk", EVE)), Trust.UNTRUSTED),
        (message(attachments=(TEXT,)), Trust.ATTACHED),
        (message(attachments=(PICTURE,)), Trust.ATTACHED),
        (message(attachments=(VOICE,), **recorded(VOICE)), Trust.OWNER),
        (message(BOB, attachments=(VOICE,), **recorded(VOICE)), Trust.KNOWN),
        (message(attachments=(VOICE,)), Trust.ATTACHED),
        (message(attachments=(VOICE, TEXT), **recorded(VOICE)), Trust.ATTACHED),
        (message(attachments=(PICTURE,), **recorded(PICTURE)), Trust.ATTACHED),
        (message("ann@mail.test", **MAIL, attachments=(VOICE,)), Trust.ATTACHED),
        (message(attachments=(VOICE,), **recorded(VOICE), background=said("quoted", EVE)), Trust.UNTRUSTED),
        (message(BOB, attachments=(PICTURE,)), Trust.ATTACHED),
        (message(BOB, context={"others_words": True}), Trust.ATTACHED),
        (message(BOB, context={"others_words": True}, kind="job"), Trust.UNTRUSTED),
        (message("ann@mail.test", context={"subject": "Hi", "others_words": True}), Trust.UNTRUSTED),
        (message(attachments=(PICTURE,), background=said("talk", EVE)), Trust.UNTRUSTED),
        (
            message(
                "ann@mail.test",
                context={"subject": "Hi", "notes": {"admitted": True}},
                attachments=(PICTURE,),
            ),
            Trust.UNTRUSTED,
        ),
        (message("ann@mail.test", **MAIL), Trust.OWNER),
        (message("ann@mail.test", context={"subject": "Hi", "notes": {"admitted": True}}), Trust.UNTRUSTED),
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


@rows(("files", "trust"), [((PICTURE,), Trust.UNTRUSTED), ((), Trust.OWNER)])
def test_where_the_past_is_closed_a_file_of_the_talk_keeps_its_author(
    files: tuple[Attachment, ...], trust: Trust
) -> None:
    """Its line has nothing of the talk but the file, which a stranger may have posted; the control has none."""
    closed = {"context": {"seen_at": EPOCH.isoformat()}}
    given = turn_of(message(**closed, attachments=files, background=said("talk", EVE)))
    line = user_lines(given, ACCESS)[0]
    assert "do it" not in line.content
    assert trust_of(line.sources) is trust


def test_of_several_messages_each_line_has_its_own() -> None:
    """The turn has those of all of them."""
    turn = turn_of(message(), message(BOB))
    assert trust_of(session_of(turn, ACCESS, Purpose.CHAT).origins) is Trust.KNOWN
    assert [trust_of(line.sources) for line in user_lines(turn, ACCESS)] == [Trust.OWNER, Trust.KNOWN]


def test_the_time_is_when_we_took_it() -> None:
    """A server that dates its message back does not put it before the owner's word that all is fine."""
    old = message(BOB, received_at=EPOCH.replace(year=1999))
    assert [origin.at for origin in session_of(turn_of(old), ACCESS, Purpose.CHAT).origins] == [EPOCH]


def test_what_stands_below_a_mail_is_anybodys() -> None:
    """Also in an answer to one of our own, of which the channel has left out what we have sent."""
    below = (Background(kind="quoted", sender="below the mail", text="the disk is full"),)
    for context in ({"subject": "Hi", "outbound": "key"}, {"subject": "Hi"}):
        session = session_of(
            turn_of(message("ann@mail.test", context=context, background=below)), ACCESS, Purpose.CHAT
        )
        assert trust_of(session.origins) is Trust.UNTRUSTED
        assert describe(session.origins, dated=False).endswith("a mail that somebody else wrote")


def test_what_we_began_with_is_looked_up() -> None:
    """The channel says what we have sent; it is a stranger's only if the history does not have it."""
    mail = {"context": {"subject": "Hi", "outbound": "key"}}
    session = session_of(
        turn_of(message("ann@mail.test", **mail, background=said("quoted", "bot@mail.test"))),
        ACCESS,
        Purpose.CHAT,
    )
    assert trust_of(session.origins) is Trust.OWNER
    ((words, origin),) = session.quotes
    assert (words, origin.trust) == ("do it", Trust.UNTRUSTED)
    forged = turn_of(message("ann@mail.test", **mail, background=said("forwarded", "bot@mail.test")))
    assert trust_of(session_of(forged, ACCESS, Purpose.CHAT).origins) is Trust.UNTRUSTED


@rows(("ahead_s", "counts"), [(0, True), (1, False)])
def test_trust_that_a_clock_noted_that_was_ahead_is_none(ahead_s: float, counts: bool) -> None:
    """It would be for what has not come yet."""
    at = EPOCH + timedelta(seconds=ahead_s)
    assert (trusted_before(at.isoformat(), EPOCH) == at) is counts
    assert trusted_before(None, EPOCH) is None
