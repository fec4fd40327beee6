"""What mail programs make of the mails that we really compose: all that is new stays, all that is ours goes."""

from __future__ import annotations

import email
import email.policy
import re
from email.message import EmailMessage

from agent_core.html_to_text import html_to_text
from agent_core.messages import OutboundMessage, SessionKey
from channels.email.compose.outbound_mail import compose, texts_of
from channels.email.parse.inbound_mail import ParsedMail, parse_mail
from tests.clock import EPOCH
from tests.mail_programs import PROGRAMS, MailProgram, body_of
from tests.rows import rows

ANSWERS = {
    "a word": "Lima.",
    "short paragraphs": "Yes.\n\nNo.\n\nYes.",
    "a list": "- milk\n- bread\n- **butter**\n\nAnything else?",
    "a list in a list": "1. one\n   - a\n   - b\n2. two\n\nDone",
    "code": "Run this:\n\n```python\nfor x in range(3):\n    print(x)\n```\n\nand `ls -l`.",
    "a table": "| day | what |\n| --- | --- |\n| Mon | swim |\n| Tue | run |\n\nThat is all.",
    "signs": "👍\n\n🙂 fine",
    "a quotation": "> as you said\n\nI agree.",
    "links": "See [here](https://a.example/x?y=1&z=2) and https://b.example/.",
    "other letters": "Schöne Grüße – „Anführung“ … ½\n\n東京は晴れです。",
    "a rule and headings": "# Title\n\nOne\n\n---\n\n## Sub\n\nTwo",
    "lines like a header": "From: Ann <ann@x.test>\nTo: Bob\nDate: 5 January 2026 19:00\nSubject: hi\n\nSee you.",
    "much": " ".join(f"word{number}" for number in range(200)) + "\n\nEnd of it.",
    "a question to decide": "**a1b2c3**: I need your approval before I use `shell`:\n\n    command: rm -rf x\n\n`yes` / `no`",
}


def sent(text: str) -> tuple[EmailMessage, list[str]]:
    """A mail of ours as the person has it, and the forms in which we know it."""
    message = OutboundMessage(
        id="row",
        channel="email",
        account="bot@mail.test",
        session=SessionKey("email", "thread-" + "0" * 24, "alice@mail.test"),
        text=text,
        created_at=EPOCH,
        context={"subject": "Peru", "reply_to": "alice@mail.test", "route": {"message_id": "<q@x>"}},
    )
    raw = compose(message, address="bot@mail.test", self_copy=False).raw
    mail = email.message_from_bytes(raw, policy=email.policy.default)
    assert isinstance(mail, EmailMessage)
    plain, shown = texts_of(message)
    return mail, [plain, html_to_text(shown)]


def typed(mail: ParsedMail) -> str:
    return mail.text.replace("Sent from my iPhone", "").strip()


@rows("kind", PROGRAMS, ids=lambda kind: kind.__name__)
@rows("answer", ANSWERS)
def test_above_and_below_of_what_we_have_sent(answer: str, kind: type[MailProgram]) -> None:
    """The control: where it is not known as ours, it is there."""
    mail, forms = sent(ANSWERS[answer])
    program = kind("alice@mail.test", "bot@mail.test")
    for reply in (program.reply, program.reply_below):
        parsed = parse_mail(reply(mail, "yes please"))
        known = parsed.without(forms)
        assert (typed(known), known.rest) == ("yes please", "")
        assert len(parsed.text + parsed.rest) > len("yes please Sent from my iPhone")


@rows("kind", PROGRAMS, ids=lambda kind: kind.__name__)
@rows("answer", ANSWERS)
def test_inside_of_what_we_have_sent(answer: str, kind: type[MailProgram]) -> None:
    """Below its first and its last paragraph."""
    mail, forms = sent(ANSWERS[answer])
    paragraphs = re.findall(r"<p>(.*?)</p>", body_of(mail), re.DOTALL)
    answers = list(zip((paragraphs[0], paragraphs[-1]), ("On Tuesday.", "The Ritz."), strict=True))
    raw = kind("alice@mail.test", "bot@mail.test").reply_inside(mail, "See below.", *answers)
    known = parse_mail(raw).without(forms)
    assert "See below." in known.text
    assert all(said in f"{known.text}\n{known.rest}" for _, said in answers)
    assert not known.forwards


NOTES = {
    "a date above a list": "Please remind me on 3 May 2027 at 10:00:\n- passport\n- insurance card",
    "fields": "When: 3 May 2027 at 10:00\nWhere: Lake Street\nWhat: the doctor",
}


@rows("kind", PROGRAMS)
@rows("note", NOTES)
def test_notes_directly_above_what_we_have_sent(note: str, kind: type[MailProgram]) -> None:
    """They were taken for the introduction of the quotation, and lost. The control is that, which goes."""
    mail, forms = sent("Which day and time suit you for the doctor?")
    raw = kind("alice@mail.test", "bot@mail.test").reply(mail, NOTES[note])
    known = parse_mail(raw).without(forms)
    said = f"{known.text}\n{known.rest}"
    assert all(line in said for line in NOTES[note].split("\n"))
    assert "wrote:" not in said and "suit you" not in said
