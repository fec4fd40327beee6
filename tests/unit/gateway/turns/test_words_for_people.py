"""What people are shown of a history: what somebody wrote, as they wrote it, and nothing of a prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent_core.messages import Attachment, Audience, Background, FileTranscript, InboundMessage, MessageNotes
from agent_core.models import Message
from agent_core.prompt import CORRECTION_PREFIX, words_for_people
from gateway.operations.operation_views import message_line
from gateway.turns.commands.conversation_commands import as_markdown
from gateway.turns.user_input import question_text
from tests.rows import rows
from tests.unit.gateway.turns.test_failure_and_deferral import message

ANN = "@ann:hs.test"
CAT = Attachment(
    sha256="ab" * 32, name='a "cat".png', media_type="image/png", size_bytes=12_000, path="attachments/x"
)
INTERNAL = (
    "Of what I wrote before",
    "thread_start",
    "earlier_talk",
    "<quoted>",
    "<mail>",
    "[Attachment",
    "[@",
)


def shown(said: InboundMessage) -> str:
    """What people are shown of the line that a message becomes."""
    return words_for_people(question_text([said]), said.sender.address)


def about(kind: Any, text: str, sender: str = "@bob:hs.test") -> Background:
    return Background(kind=kind, sender=sender, name="Bob", text=text)


@rows("audience", [Audience.DIRECT, Audience.GROUP])
@rows("subject", [None, "Trains"])
@rows(
    "text",
    [
        "hello",
        "two\n\nparagraphs",
        "[in brackets] at the start",
        "a <mail> and a </mail> and <\nquoted>",
        "[Of course] I do",
        "> quoted by hand\n\nyes",
    ],
)
def test_it_is_what_was_written(text: str, subject: str | None, audience: Audience) -> None:
    """With all that a prompt has around it, in each kind of place."""
    said = message(
        text,
        audience=audience,
        context={"subject": subject},
        background=(about("thread", "how it began"), about("talk", "before"), about("quoted", "which?")),
        attachments=(CAT,),
    )
    seen = shown(said)
    head = "" if subject is None else f"Subject: {subject}\n\n"
    assert seen == f'{head}{text}\n(file: a "cat".png)\n\n> @bob:hs.test (Bob): which?'


def test_words_of_others_that_belong_to_it_follow_with_a_mark() -> None:
    """As mail programs show them; the talk before a message is none of its own."""
    said = message("FYI", background=(about("forwarded", "one\ntwo"), about("talk", "secret")))
    assert shown(said) == "FYI\n\n> @bob:hs.test (Bob): one\n> two"


def test_a_correction_is_the_new_text() -> None:
    said = message(f"{CORRECTION_PREFIX}“meet at 5”]\nmeet at 6", audience=Audience.GROUP)
    assert shown(said) == "meet at 6"
    assert shown(said.model_copy(update={"audience": Audience.DIRECT})) == "meet at 6"


def test_a_question_that_is_asked_again_is_the_question() -> None:
    said = message("delete it").with_notes(MessageNotes(done_before={"delete_file": 2}))
    assert "delete_file" in question_text([said])
    assert shown(said) == "delete it"


def test_what_was_spoken_is_marked() -> None:
    heard = FileTranscript(name="Voice.ogg", text="feed the cat", seconds=2.0)
    said = message("", attachments=()).with_notes(replace(MessageNotes(), heard=(heard,)))
    assert shown(said) == "(spoken) feed the cat"


def test_every_view_shows_the_same() -> None:
    """Pages and lists, the export and search; the content for programs stays as it is."""
    said = message("hello", audience=Audience.GROUP, background=(about("quoted", "which?"),))
    line = Message(role="user", content=question_text([said]), id="1.0", turn="1", sender=ANN)
    assert message_line(line)["content"] == line.content
    assert message_line(line)["text"] == shown(said)
    exported = as_markdown([line])
    assert "> hello" in exported
    assert not any(each in exported for each in INTERNAL)
    answer = Message(role="assistant", content="<mail>\nas I said\n</mail>", id="1.1", turn="1")
    assert message_line(answer).get("text") is None  # what a model says is its own


def test_the_control_is_the_line_itself() -> None:
    said = message("hello", audience=Audience.GROUP, background=(about("quoted", "which?"),))
    assert "<quoted>" in question_text([said])
    assert question_text([said]) != shown(said)
