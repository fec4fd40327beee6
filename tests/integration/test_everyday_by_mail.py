"""
Everyday tasks in one conversation by mail, through a real mail server, as four mail programs write it: what the model
gets of it, and what arrives in the person's mailbox.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import MailServer, text_of
from devservers.transcription import Reply, TranscriptionServer
from gateway.app import Overrides
from tests.integration.mail_world import MailWorld, mail_world, server_of_people
from tests.integration.test_everyday_on_a_phone import HonestModel
from tests.integration.test_tool_approval import Writer
from tests.mail_programs import PROGRAMS, File, MailProgram
from tests.pictures import jpeg
from tests.sounds import m4a
from tests.unit.agent_core.tools.test_documents import DOCX
from tests.unit.agent_core.tools.web.test_pdf import document

pytestmark = [pytest.mark.integration]
pytest.importorskip("pypdf")

LIMA = (
    "**Lima** is the capital of Peru. It lies on the coast, between the Pacific Ocean and the desert, and about ten "
    "million people live there.\n\n1. founded in 1535\n2. the airport is called *Jorge Chávez*\n\n"
    "More is on [its page](https://lima.example/about).\n\nWhich day do you travel?\n\nWhich hotel do you like?"
)
PLAN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "capital of Peru": [],
    "drink water": [
        ("schedule", {"action": "add", "kind": "remind", "in_minutes": 120, "text": "drink water"})
    ],
    "below in your text": [],
    "write down my name": [("write_down", {"what": "Alice"})],
    "write down my street": [("write_down", {"what": "Main Street"})],
    "write down my age": [("write_down", {"what": "thirty"})],
    "What does Carol want": [],
    "How much is the rent": [("read_attachment", {"id": "?"})],
    "feed the axolotl": [],
    "What is on this": [],
    "many thanks": [],
}


class Assistant(HonestModel):
    """Answers the first question at length, and reads the file that is named in the prompt."""

    def closing_words(self, said: str, calls: int) -> str:
        return LIMA if "capital of Peru" in said else super().closing_words(said, calls)

    def right_answer(self, body: Mapping[str, Any]) -> tuple[bytes, str]:
        if found := re.findall(r"\[Attachment ([0-9a-f]{8,}):", json.dumps(body["messages"])):
            self.plan_of["How much is the rent"][0][1]["id"] = found[-1]
        return super().right_answer(body)

    def newest(self) -> str:
        """What the person's newest turn holds, as the model sees it."""
        messages = self.asked[-1]["messages"]
        last = max(at for at, one in enumerate(messages) if one["role"] == "user")
        said = messages[last]["content"]
        return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)


mail_server = server_of_people()


class Person:
    """The owner with a mail program; what came back is looked at as it comes."""

    def __init__(self, one: MailWorld, program: MailProgram, model: Assistant) -> None:
        self.one, self.program, self.model = one, program, model
        self.got: list[EmailMessage] = []

    async def does(self, raw: bytes, *further: str) -> EmailMessage:
        """Send a mail, and return the newest answer; ``further`` are the ids of mails that are answered now, too."""
        answers = 1 + len(further)
        await run_sync(lambda: self.one.alice.submit([self.one.bot], raw))
        sent = message_from_bytes(raw, policy=policy.default)
        with anyio.move_on_after(60):
            while len(found := await run_sync(self.one.alice.list)) < len(self.got) + answers:
                await anyio.sleep(0.1)
        new = found[len(self.got) :]
        assert len(new) == answers, [text_of(one) for one in new]
        self.got = found
        wanted = (str(sent["Message-ID"]), *further)
        by_question = {str(one["In-Reply-To"]): one for one in new}
        assert by_question.keys() == set(wanted)
        for answered, one in by_question.items():
            self.fits(one, answered)
        return by_question[wanted[-1]]

    async def is_asked(self, newest: EmailMessage, text: str) -> tuple[EmailMessage, str]:
        """Ask for what needs a yes; return the question, and the id of the mail that waits for its answer."""
        raw = self.program.reply(newest, text)
        question = await self.does(raw)
        assert str(question["Subject"]).startswith("Approve?")
        return question, str(message_from_bytes(raw)["Message-ID"])

    def fits(self, answer: EmailMessage, answered: str) -> None:
        """It stands below its question in every mail program, and reads well."""
        assert str(answer["References"]).split()[-1] == answered
        assert str(answer["To"]) == self.program.sender
        text = text_of(answer)
        assert "**" not in text and "](" not in text and "<quoted>" not in text and "\ufffd" not in text, text
        assert answer.get_body(("html",)) is not None
        assert text.strip()


@asynccontextmanager
async def everyday(
    server: MailServer, folder: Path, kind: type[MailProgram]
) -> AsyncIterator[tuple[Person, Writer, TranscriptionServer]]:
    tool = Writer()
    plan = {text: [(name, dict(given)) for name, given in calls] for text, calls in PLAN.items()}
    with Assistant(plan) as model, TranscriptionServer() as ears:
        settings = {
            "llm": {
                "providers": {
                    "own": {"api_base": model.api_base, "api_key": "k"},
                    "ears": {"api_base": ears.api_base, "api_key": "k"},
                },
                "models": {"honest": {"model": "openai/honest", "provider": "own", "vision": True}},
                "pools": {"main": ["honest"]},
                "default_pool": "main",
            },
            "voice": {"transcribe": {"provider": "ears", "model": "openai/whisper-1"}},
            "tools": {"require_approval": ["write_down"]},
        }
        async with mail_world(server, folder, settings=settings, overrides=Overrides(tools=[tool])) as one:
            yield Person(one, kind(one.alice.address, one.bot), model), tool, ears


@pytest.mark.parametrize("kind", PROGRAMS, ids=lambda kind: kind.__name__)
async def test_a_day_by_mail(mail_server: MailServer, tmp_path: Path, kind: type[MailProgram]) -> None:
    """One answer for each mail, below it, with all that was new in it and nothing of what we had said ourselves."""
    async with everyday(mail_server, tmp_path, kind) as (person, tool, ears):
        program = person.program
        newest = await person.does(program.new("Peru", "What is the capital of Peru?"))
        assert "Lima is the capital of Peru." in text_of(newest)
        assert newest["Subject"] == "Re: Peru"
        lima = newest

        newest = await follow_up(person, lima)
        await decide(person, tool, newest)
        newest = await hand_in_files(person, ears, lima)
        for event in ("Planning", "Dinner"):
            await run_sync(
                lambda event=event: person.one.alice.submit([person.one.bot], program.accept(event))
            )
            noted = await person.one.row(lambda row, event=event: event in row.message.text)
            assert (noted.error, noted.message.context.refusal) == (None, "")
        status = await person.does(program.reply(newest, "!status"))
        assert "I have been running for" in text_of(status)
        await person.does(program.reply(status, "many thanks"))
        assert "many thanks" in person.model.newest()
        assert "I have been running for" not in person.model.newest()
        assert len(await run_sync(person.one.alice.list)) == len(person.got)


async def follow_up(person: Person, lima: EmailMessage) -> EmailMessage:
    """A reply above the quotation, and answers inside of it."""
    program, model = person.program, person.model
    newest = lima
    newest = await person.does(program.reply(newest, "Remind me in two hours to drink water."))
    assert "Done: 1 of 1." in text_of(newest)
    assert "Lima" not in model.newest()

    inside = (("Which day", "On Tuesday."), ("Which hotel", "The Ritz."))
    newest = await person.does(program.reply_inside(lima, "My answers are below in your text.", *inside))
    assert "On Tuesday." in model.newest()
    assert "The Ritz." in model.newest()
    assert "others wrote it" not in model.newest().lower()
    return newest


async def decide(person: Person, tool: Writer, newest: EmailMessage) -> None:
    """A yes above and below the quotation, and a no with a reason."""
    program, model = person.program, person.model
    question, asked = await person.is_asked(newest, "Please write down my name.")
    newest = await person.does(program.reply(question, "Yes please"), asked)
    assert tool.written == ["Alice"]
    question, asked = await person.is_asked(newest, "Please write down my street.")
    newest = await person.does(program.reply_below(question, "yes please"), asked)
    assert tool.written == ["Alice", "Main Street"]
    question, asked = await person.is_asked(newest, "Please write down my age.")
    unclear = await person.does(program.reply(question, "No, I would rather keep that to myself."))
    assert "It still waits" in text_of(unclear)
    newest = await person.does(program.reply(question, "No.\n\nThat is a secret."), asked)
    assert tool.written == ["Alice", "Main Street"]
    # The words of both mails reach the model: as the reason, or as a message of their own where they have lines
    # beside it, such as what a phone signs with, which cannot be told from words.
    told = json.dumps(model.asked[-1]["messages"])
    assert told.index("I would rather keep that to myself.") < told.index("That is a secret.")
    assert any("said no" in json.dumps(each["messages"]) for each in model.asked[-2:])


async def hand_in_files(person: Person, ears: TranscriptionServer, lima: EmailMessage) -> EmailMessage:
    """A mail of somebody else, a document, a voice note and a photo."""
    program, model = person.program, person.model
    newest = await person.does(program.forward(_letter(person), "What does Carol want?"))
    assert "Tuesday at ten" in model.newest()
    assert re.search(r"Tuesday at ten.*</(?:forwarded|quoted)>", model.newest(), re.DOTALL), (
        "it is nobody's request"
    )
    office = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
    lease = File("lease.pdf", "application/pdf", document("Rent: 900 EUR", title="Lease"))
    if type(program).__name__ in ("Outlook", "Thunderbird"):
        lease = File("lease.docx", office, DOCX)
    newest = await person.does(program.reply(lima, "How much is the rent?", lease))
    assert "Rent: 900 EUR" in json.dumps(model.asked[-1]["messages"])
    spoken = {"text": "Please feed the axolotl at six.", "start": 0.0, "end": 3.0, "avg_logprob": -0.1}
    ears.plan(Reply(body=json.dumps({"text": spoken["text"], "segments": [spoken]}).encode()))
    newest = await person.does(
        program.reply(newest, "", File("New Recording 3.m4a", "audio/x-m4a", m4a(3.0)))
    )
    assert "Please feed the axolotl at six." in model.newest()
    photo = File("IMG_4711.jpeg", "image/jpeg", jpeg(30, 20))
    newest = await person.does(program.reply(newest, "What is on this?", photo))
    assert "image_url" in model.newest()
    return newest


def _letter(person: Person) -> EmailMessage:
    """A mail that somebody else has written to the person."""
    mail = EmailMessage()
    mail["From"], mail["To"] = "Carol Smith <carol@elsewhere.test>", person.program.sender
    mail["Subject"] = "The hall"
    mail.set_content("Can we meet on Tuesday at ten?\n\nRegards, Carol")
    mail.add_alternative(
        "<html><body><p>Can we meet on Tuesday at ten?</p><p>Regards, Carol</p></body></html>", subtype="html"
    )
    return mail
