"""
A yes is the whole message, or the first line of a mail. Only its first forty characters were looked at, and blanks and
full stops at the end left out: "yes", many blanks or exclamation marks, and then "but not today" approved the call.
"""

from __future__ import annotations

import pytest

from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from gateway.turns.approvals.drafts_and_quarantine import Approvals, Decision
from gateway.turns.commands.worded_answers import WordedAnswers, yes_or_no
from tests.clock import EPOCH


def heard(text: str, channel: str) -> bool | None:
    message = InboundMessage(
        channel=channel,
        account="@bot:hs.test",
        native_id="1",
        sender=Sender(address="@ann:hs.test"),
        session=SessionKey(channel, "room"),
        audience=Audience.DIRECT,
        text=text,
        received_at=EPOCH,
        kind="message",
    )
    answers = WordedAnswers(None, None, calls=None, access=None, email_style=frozenset({"email"}))  # type: ignore[arg-type]
    return answers._word(message)


@pytest.mark.parametrize("channel", ["matrix", "email"])
@pytest.mark.parametrize("between", [" " * 40, "!" * 60, " ." * 30, "\u00a0" * 1200, "," * 1200])
@pytest.mark.parametrize("word", ["yes", "no"])
def test_what_goes_on_is_no_answer(word: str, between: str, channel: str) -> None:
    assert yes_or_no(f"{word}{between}but not today") is None
    assert heard(f"{word}{between}but not today", channel) is None


@pytest.mark.parametrize("channel", ["matrix", "email"])
@pytest.mark.parametrize(
    ("text", "means"), [("  yes! ", True), ("No.", False), ("\U0001f44d\U0001f3fd", True)]
)
def test_the_word_alone_is(text: str, means: bool, channel: str) -> None:
    """The control; by mail the lines below do not count."""
    assert heard(text, channel) is means
    assert heard(f"{text}\nbut not today", channel) is (means if channel == "email" else None)


class Found(Exception):
    """The word was taken for a decision."""


async def written(text: str) -> Decision | None:
    class Store:
        @property
        def outbox(self) -> object:
            raise Found

    approvals = object.__new__(Approvals)
    approvals._store = Store()  # type: ignore[assignment]
    message = InboundMessage(
        channel="email",
        account="bot@example.org",
        native_id="1",
        sender=Sender(address="ann@example.org"),
        session=SessionKey("email", "thread"),
        text=text,
        received_at=EPOCH,
        context={"outbound": "key"},
    )
    return await approvals.written(message)


@pytest.mark.parametrize("between", [" " * 100, "!" * 100])
async def test_neither_is_it_below_the_notice_of_a_draft(between: str) -> None:
    """The control is the word alone."""
    assert await written(f"approve{between}but not today") is None
    with pytest.raises(Found):
        await written("approve\nbut not today")
