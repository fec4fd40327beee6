"""
Markdown that takes its parser long held up everything, and again at each try: the parser ran on the event loop, or
in a thread that nobody gave up. What takes too long goes out as it was written.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session
from agent_core.tools import attachment_tools as tools
from channels.attachments import AttachmentStore
from channels.email.compose.outbound_mail import compose
from channels.email.config import EmailConfig
from channels.email.smtp import posting
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.events.outbound_events import build_content
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send import event_sender as sending
from tests.clock import EPOCH, ManualClock
from tests.doubles.homeserver import ScriptedHomeserver, member

BOT, ROOM = "@bot:hs.test", "!room:hs.test"
SEND = r"/send/m\.room\.message/"
LONG = "**bold** " * 500


@pytest.fixture
def stuck():
    """What blocks until the test is over, and where it was asked to: in no thread that others wait for."""
    done, began, threads = threading.Event(), threading.Event(), []

    def block():
        threads.append(threading.get_ident())
        began.set()
        done.wait(60)

    def elsewhere():
        return began.wait(30) and threading.get_ident() not in threads

    yield block, elsewhere
    done.set()


class Submitter:
    def __init__(self):
        self.mails = []

    async def submit(self, envelope, raw, **rest):
        self.mails.append(raw.decode())


def answer(channel, text):
    conversation = ROOM if channel == "matrix" else "ann@example.org"
    return OutboundMessage(
        id="0" * 32,
        session=SessionKey(channel=channel, conversation=conversation),
        channel=channel,
        account=BOT if channel == "matrix" else "main",
        text=text,
        kind=OutboundKind.REPLY,
        created_at=EPOCH if channel == "matrix" else datetime(2026, 11, 1, tzinfo=UTC),
        context={}
        if channel == "matrix"
        else {"reply_to": "ann@example.org", "route": {"message_id": "<a@example.org>"}},
    )


async def posted(monkeypatch, tmp_path, work=compose, limit_s=20.0):
    monkeypatch.setattr(posting, "compose", work)
    monkeypatch.setattr(posting, "_FORMAT_LIMIT_S", limit_s)
    config = EmailConfig(
        address="bot@example.org",
        username="bot",
        trusted_authserv_ids=["mx.example.org"],
        password="pw",
        imap={"host": "localhost"},
        smtp={"host": "localhost"},
    )
    submitter = Submitter()

    async def nothing():
        return None

    await posting.Posting(config, submitter, None, nothing).post(answer("email", LONG), nothing)
    return submitter.mails[0]


async def test_a_mail_goes_out_unformatted(monkeypatch, tmp_path, stuck):
    """All its words are there, with their marks."""
    block, elsewhere = stuck

    def slow(message, *, formatted=True, **rest):
        if formatted:
            block()
        return compose(message, formatted=formatted, **rest)

    mail = await posted(monkeypatch, tmp_path, slow, 1.0)
    assert "<pre" in mail
    assert mail.replace("=\r\n", "").count("**bold**") == 1000  # in both versions
    assert elsewhere()


async def test_a_mail_that_is_quick_is_formatted(monkeypatch, tmp_path):
    """The control."""
    mail = await posted(monkeypatch, tmp_path)
    assert "<strong>bold</strong>" in mail
    assert "**" not in mail


async def delivered(monkeypatch, tmp_path, text, work=build_content, limit_s=20.0):
    monkeypatch.setattr(sending, "build_content", work)
    monkeypatch.setattr(sending, "_FORMAT_LIMIT_S", limit_s)
    server = ScriptedHomeserver()
    server.on("PUT", SEND, HttpAnswer(200, {"event_id": "$e"}))
    config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw")
    rooms = Rooms(BOT)
    rooms.update({"rooms": {"join": {ROOM: {"state": {"events": [member(BOT)]}}}}})
    sender = sending.EventSender(
        config,
        server,
        MatrixLogin(config, server, tmp_path, ManualClock()),
        rooms,
        is_current=lambda: True,
        now=lambda: EPOCH,
    )

    async def nothing():
        return None

    await sender.deliver(answer("matrix", text), uncertain=nothing)
    return server.asked("PUT", SEND)[0].body


async def test_an_event_goes_out_unformatted(monkeypatch, tmp_path, stuck):
    """It is built in a thread, which is given up."""
    block, elsewhere = stuck

    def slow(*args, formatted=True, **rest):
        if formatted:
            block()
        return build_content(*args, formatted=formatted, **rest)

    content = await delivered(monkeypatch, tmp_path, LONG, slow, 1.0)
    assert content["body"] == LONG
    assert "formatted_body" not in content
    assert elsewhere()


@pytest.mark.parametrize("text", ["**bold**", LONG])
async def test_an_event_that_is_quick_is_formatted(monkeypatch, tmp_path, text):
    """The control."""
    content = await delivered(monkeypatch, tmp_path, text)
    assert "<strong>bold</strong>" in content["formatted_body"]


async def test_a_file_that_takes_too_long_is_an_answer_to_the_model(monkeypatch, tmp_path, stuck):
    block, _ = stuck
    store = AttachmentStore(tmp_path, max_file_bytes=10_000, max_total_bytes=100_000)
    file = await store.save("a.html", "text/html", b"<p>x")
    session = Session(
        SessionKey("matrix", ROOM), MemoryScope(ScopeKind.OWNER), turn="t1", attachments=(file,)
    )
    tool = tools.ReadAttachmentTool(tools.ConversationFiles(session, None), store, ManualClock())
    assert "x" in (await tool.execute(id=file.id)).content

    monkeypatch.setattr(tools, "text_in", lambda *args, **rest: block())
    monkeypatch.setattr(tools, "_READ_LIMIT_S", 1.0)
    result = await tool.execute(id=file.id)
    assert result.is_error
    assert "cannot be read" in result.content
