"""Which answers are spoken, and what of them."""

from __future__ import annotations

from typing import Any

import pytest

from agent_core.media.media_config import SpeakSettings
from agent_core.messages import (
    Attachment,
    Audience,
    InboundMessage,
    MessageContext,
    OutboundKind,
    Sender,
    SessionKey,
    Speech,
)
from agent_core.models import Purpose
from channels.base import Capabilities, Redelivery
from gateway.observability.redaction import Redactor
from gateway.routing.access import Access, Alias
from gateway.store.model import SPEECH_CHANNEL
from gateway.store.states import InboxState
from gateway.store.stores import InboxRow, NewOutbound, Turn
from gateway.turns.spoken_answers import SpokenAnswers
from gateway.turns.turn_kinds import Plan
from tests.clock import EPOCH

SOUND = Attachment(
    name="a.ogg", media_type="audio/ogg", size_bytes=1, path="attachments/aa/aa.ogg", sha256="aa"
)


class There:
    def __init__(self, **more: Any) -> None:
        self.capabilities = Capabilities(Redelivery.SAME_KEY, **{"attachments": True, **more})


CHANNELS: dict[str, Any] = {
    "matrix": There(),
    "email": There(email_style=True),
    "terminal": There(attachments=False),
}


def turn(
    sender: str = "@ann:hs.test", *, channel: str = "matrix", spoken: bool = False, **changes: Any
) -> Turn:
    given: dict[str, Any] = {
        "channel": channel,
        "account": "bot",
        "native_id": "$1",
        "session": SessionKey(channel, "here"),
        "sender": Sender(address=sender, verified=True),
        "text": "hello",
        "received_at": EPOCH,
        "context": {"spoken": ["aa"] if spoken else [], "route": {"event_id": "$1"}},
        **changes,
    }
    message = InboundMessage(**given)
    row = InboxRow(1, message, InboxState.RUNNING, 1, 0, EPOCH, "t", None)
    return Turn("t", message.session, 1, (row,), 1, 0)


def of(
    asked: Turn, reply: str = "*Hello*", *, hold: bool = False, parts: int = 1, **settings: Any
) -> list[NewOutbound]:
    wished = SpeakSettings.model_validate({"provider": "p", "model": "openai/x", **settings})
    access = Access(
        [Alias("matrix", "@ann:hs.test"), Alias("email", "ann@mail.test")],
        {"matrix": ("@bob:hs.test",), "email": (), "terminal": ()},
    )
    answers = SpokenAnswers(
        wished, access=access, channels=CHANNELS, redactor=Redactor(["the-configured-secret"])
    )
    return answers.rows_to_speak(asked, Plan(asked, Purpose.CHAT, hold=hold), reply, parts=parts)


@pytest.mark.parametrize(
    "reply",
    [
        "It is the-configured-secret",
        "It is the-*configured*-secret",
        "It is [the](https://x.test)-configured-secret",
    ],
)
def test_a_secret_is_not_said_aloud(reply):
    """Also one that comes together only without its markup."""
    [row] = of(turn(spoken=True), reply)
    assert "It is" in row.text
    assert "configured" not in row.text


def test_what_was_said_is_answered_by_voice_and_what_was_written_is_not():
    """By default; the row is for no channel of people, in the conversation, behind the parts of the text."""
    assert of(turn()) == []
    [row] = of(turn(spoken=True), parts=2)
    assert (row.channel, row.account, row.session) == (SPEECH_CHANNEL, "bot", SessionKey("matrix", "here"))
    assert (row.text, row.kind, row.attachments) == ("Hello.", OutboundKind.NOTICE, ())
    assert row.context == MessageContext(
        route={"event_id": "$1"}, spoken=("aa",), part=2, speech=Speech(owner=True)
    )
    assert len(of(turn(), when="always")) == 1
    assert of(turn(spoken=True), when="never") == []
    assert of(turn(spoken=True, context=MessageContext(spoken=("aa",), others_words=True))) == []


def test_in_a_mail_a_sound_is_a_voice_message_and_in_a_room_it_is_music():
    """Only Matrix says which sounds were recorded."""
    assert of(turn(attachments=(SOUND,))) == []
    assert len(of(turn("ann@mail.test", channel="email", attachments=(SOUND,)))) == 1
    stream = SOUND.model_copy(update={"media_type": "application/ogg"})
    assert len(of(turn("ann@mail.test", channel="email", attachments=(stream,)))) == 1


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (turn(), {"hold": True}),
        (turn(), {"parts": 0}),
        (turn(), {"reply": "```\ncode\n```"}),
        (turn(channel="terminal"), {}),
        (turn("@bob:hs.test"), {"allow": "owner"}),
        (turn(audience=Audience.GROUP), {"allow": "owner"}),
    ],
)
def test_what_is_never_spoken(asked: Turn, more: dict[str, Any]):
    """Drafts, no answer, nothing but code, where files cannot go, whom the settings leave out."""
    assert of(asked, **{"reply": "Hello", "when": "always", **more}) == []


def test_guests_have_voice_where_they_have_answers():
    """And it is counted as theirs."""
    [row] = of(turn("@bob:hs.test"), when="always")
    assert row.context.speech == Speech()


def test_secrets_are_not_said_aloud():
    """Neither the configured ones nor what looks like one."""
    [row] = of(
        turn(),
        "It is the-configured-secret, and password: hunter22, and sk-abcdefghijklmnopqrst.",
        when="always",
    )
    for secret in ("configured", "hunter22", "sk-"):
        assert secret not in row.text
    assert row.text.startswith("It is")
