"""
A yes is the whole message, or the first line of a mail. Only its first forty characters were looked at, and blanks and
full stops at the end left out: "yes", many blanks or exclamation marks, and then "but not today" approved the call.
"""

from __future__ import annotations

import pytest

from agent_core.messages import Attachment, Audience, SessionKey
from gateway.turns.commands.written_answer import read_written_answer
from gateway.turns.questions.questions import CommandReply, Questions
from gateway.turns.questions.yes_and_no import Sign, yes_or_no
from tests.inbound import inbound
from tests.rows import rows


def heard(text: str, channel: str, *files: Attachment) -> Sign | None:
    message = inbound(
        SessionKey(channel, "room"),
        "ann@mail.test",
        text,
        account="@bot:hs.test",
        verified=False,
        audience=Audience.DIRECT,
        kind="message",
        attachments=files,
    )
    said = read_written_answer(message, by_mail=channel == "email")
    return None if said is None else said.sign


@rows("channel", ["matrix", "email"])
@rows("between", [" " * 40, "!" * 60, " ." * 30, "\u00a0" * 1200, "," * 1200])
@rows("word", ["yes", "no"])
def test_what_goes_on_is_no_answer(word: str, between: str, channel: str) -> None:
    assert yes_or_no(f"{word}{between}but not today") is None
    assert heard(f"{word}{between}but not today", channel) in (None, Sign.UNCLEAR)


@rows("channel", ["matrix", "email"])
@rows(("text", "means"), [("  yes! ", Sign.YES), ("No.", Sign.NO), ("\U0001f44d\U0001f3fd", Sign.FINE)])
def test_the_word_alone_is(text: str, means: Sign, channel: str) -> None:
    """The control; by mail the paragraphs below do not count, unless they go on with it."""
    assert heard(text, channel) is means
    assert heard(f"{text}\nbut not today", channel) is Sign.UNCLEAR
    if channel == "email":
        assert heard(f"{text}\n\nSent from my iPhone", channel) is means
        assert heard(f"{text}\n-- \nAnn, of the office", channel) is means
        assert heard(f"{text}\nAnn", channel) is means
        assert heard(f"{text}\nBut not today", channel) is Sign.UNCLEAR
        assert heard(f"{text}\n\nBut not today", channel) is Sign.UNCLEAR
        assert heard(f"{text}\n\nKind regards\nAnn Smith\n\nhttps://x.test/?a=1", channel) is means
        for later in ("No, wait.", "No", "No, I meant the other one.", "Is it safe to do?", "Thanks\n\nNo!"):
            assert heard(f"{text}\n\n{later}", channel) is Sign.UNCLEAR


def test_a_picture_with_a_word_below_it_is_no_answer() -> None:
    """In a chat it would be dropped; in a mail it may be the logo in a signature."""
    cat = Attachment(sha256="0" * 64, name="cat.png", media_type="image/png", size_bytes=1, path="x")
    assert heard("yes", "matrix", cat) is None
    assert heard("yes", "matrix") is heard("yes", "email", cat) is Sign.YES


@rows(
    ("text", "means"),
    [("botyes", None), ("bot, yes", Sign.YES), ("@bot: no", Sign.NO), ("bot是的", Sign.YES)],
)
def test_a_word_that_begins_with_the_bots_name_is_no_answer(text: str, means: Sign | None) -> None:
    """As "any" is for a bot called An; the control is the name, and then the word."""
    assert heard(text, "matrix") is means


class Found(Exception):
    """The word was taken for a decision."""


async def written(text: str) -> CommandReply | None:
    class Store:
        @property
        def outbox(self) -> object:
            raise Found

    approvals = object.__new__(Questions)
    approvals.store = Store()  # type: ignore[assignment]
    message = inbound(
        SessionKey("email", "thread"),
        "ann@example.org",
        text,
        account="bot@example.org",
        verified=False,
        context={"outbound": "key"},
    )
    return await approvals.decide_by_reply(message)


@pytest.mark.parametrize("between", [" " * 100, "!" * 100])
async def test_neither_is_it_below_the_notice_of_a_draft(between: str) -> None:
    """The control is the word alone."""
    assert await written(f"approve{between}but not today") is None
    with pytest.raises(Found):
        await written("approve\nbut not today")
