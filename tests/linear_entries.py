"""Ways on which a text of others comes into the product, or one of a model out of it, that take more than a text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from agent_core.html_to_text import read_web_page
from agent_core.memory.consolidation import consolidation_policy
from agent_core.memory.consolidation.key_facts import essentials, excerpts, merge_list, missing
from agent_core.messages import Audience, OutboundKind, OutboundMessage, SessionKey
from agent_core.models import Message
from agent_core.prompt import background_text, email_text, fence, remove_words_of, searched_words, user_text
from agent_core.prompt_budget import TokenEstimate
from agent_core.tools.shell.proxy import ProxyRefused, request_of, server_name_of
from agent_core.tools.web.urls import resolve_link
from channels.email.compose.outbound_mail import compose
from channels.email.imap.imap_syntax import parse_fetch, parse_list
from channels.email.parse.dsn import read_report
from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.mime import Unreadable
from channels.email.parse.reply_stripping import split_quotes
from channels.email.receive.mail_intake import given_up, read_arrival
from channels.email.trust.dkim import find_signatures
from channels.markup import MAX_BYTES, to_html, to_text
from channels.matrix.events.inbound_events import BotIdentity, read_event
from channels.matrix.events.outbound_events import build_content
from channels.matrix.rooms.room_state import Rooms
from channels.split import split_markdown
from gateway.observability.redaction import Redactor
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, parse_request
from gateway.turns.commands.command_parsing import parse_command
from gateway.turns.commands.reminder_command import reminder_of
from gateway.turns.questions.question_text import quote
from tests.inbound import inbound

LONG = 1_000_000
EVENT = 65_000
"""No event of a room is longer."""
NOW = datetime(2026, 11, 1, tzinfo=UTC)
SESSION = SessionKey(channel="email", conversation="ann@example.org")


def _answer(text: str, *references: str, **context: Any) -> OutboundMessage:
    return OutboundMessage(
        id="0" * 32,
        session=SESSION,
        channel="email",
        account="main",
        text=text,
        kind=OutboundKind.REPLY,
        created_at=NOW,
        context={
            "reply_to": "ann@example.org",
            **context,
            "route": {"message_id": "<a@example.org>", "references": references},
        },
    )


def _composed(text: str) -> None:
    compose(_answer(text), address="bot@example.org", self_copy=True)


def _composed_with(text: str) -> None:
    quoted_text = {"text": text, "date": text[:1000]}
    compose(
        _answer("a", text, "<a@b>", quoted=quoted_text, subject=text, cc=[text]),
        address="bot@example.org",
        self_copy=True,
    )


def _mail(field: str, media_type: str = "text/plain") -> Callable[[str], None]:
    def run(text: str) -> None:
        flat = text.replace("\n", " ").replace("\r", " ")
        head = f"From: <ann@example.org>\r\n{field}: {flat}\r\nContent-Type: {media_type}\r\n\r\n"
        raw = head.encode() + text.encode()
        read_arrival(1, NOW, raw, whole=True)
        given_up(1, NOW, raw, "too_slow")
        find_signatures(raw, 0.0)
        read_report(raw, account="bot@example.org")

    return run


def _folded(text: str) -> None:
    lines = text.replace("\r", " ").replace("\n", "\r\n ")
    with contextlib.suppress(Unreadable):
        parse_mail(f"From: <a@b.c>\r\nSubject: {lines}\r\nX-{text[:90]}\r\n\r\nx".encode())


def _parts(text: str) -> None:
    with contextlib.suppress(Unreadable):
        parse_mail(
            b'Content-Type: multipart/mixed; boundary="a"\r\n\r\n--a\r\n' + text.encode() + b"\r\n--a--"
        )


def _event(key: str) -> Callable[[str], None]:
    def run(text: str) -> None:
        content: dict[str, Any] = {"msgtype": "m.text", "body": "> <@a:b> x\n\n" + text}
        content["m.relates_to"] = {"m.in_reply_to": {"event_id": "$a"}}
        content.update(
            {key: text} if key != "both" else {"formatted_body": text, "format": "org.matrix.custom.html"}
        )
        event = {"type": "m.room.message", "event_id": "$a", "sender": "@ann:hs.test", "content": content}
        me = BotIdentity("matrix", "@bot:hs.test", "Bot")
        read_event(event, "!a:hs.test", me=me, rooms=Rooms("@bot:hs.test"), now=NOW)

    return run


def _sent_on(text: str) -> None:
    with contextlib.suppress(ValueError):
        resolve_link("https://example.org/a", text)


def _command(text: str) -> None:
    for begin in ("", "!", "!stop ", "Bot: "):
        message = inbound(
            SessionKey(channel="matrix", conversation="!a:hs.test"),
            "@ann:hs.test",
            begin + text,
            "$a",
            account="@bot:hs.test",
            received_at=NOW,
            audience=Audience.GROUP,
            context={"names": ["Bot"]},
        )
        parse_command(message)
        parse_command(message, email_style=True)


def _prompt(text: str) -> None:
    user_text([("@m:evil.test", text), (text, "a")], shared=True)
    background_text([("talk", text, text, text), ("forwarded", text, text, text)])
    email_text(text, subject=text, sender=text)
    fence("memory", text)


def _forgotten(text: str) -> None:
    for begin in ("", "<quoted>\n", "<Forwarded>\n["):
        remove_words_of(f"{begin}{text}\n</quoted>", lambda word: len(word) == 3)


def _consolidated(text: str) -> None:
    message = Message(role="user", content=text)
    source = consolidation_policy.conversation_text([message, message], 100_000, TokenEstimate())
    consolidation_policy.accept_summary(text, source, 5)
    consolidation_policy.accept_summary(source[: len(source) // 2], source + "a", 5)
    consolidation_policy.readable(text, 5_000)
    consolidation_policy.newest_of(text, 5_000)


def _facts(text: str) -> None:
    found = essentials([text, text])
    missing(found, text[: len(text) // 2])
    excerpts(found, [("", text)], max_chars=5_000)
    merge_list(["a"], found, text, max_chars=2_000)


def _wish(text: str) -> None:
    for wish in (TriggerRequest(at=text), TriggerRequest(cron=text), TriggerRequest(at="09:00", zone=text)):
        try:
            parse_request(wish, NOW, zone="Europe/Berlin", min_interval=timedelta(minutes=5))
        except ValueError:
            continue


def _reminder(text: str) -> None:
    for begin in ("", "every ", "in 2 h ", "friday "):
        with contextlib.suppress(ValueError):
            reminder_of(begin + text)


def _imap(text: str) -> None:
    raw = text.replace("\n", " ").encode()
    for begin in (b"* 1 FETCH (", b"* 1 FETCH (UID 1 FLAGS (", b'* LIST () "/" ', b"* LIST ("):
        for parse in (parse_fetch, parse_list):
            parse([begin + raw])
            parse([begin + raw + b" {5}", b"abcde", b")"])


def _proxied(text: str) -> None:
    raw = text.encode("latin-1", "replace")
    for begin in (
        b"GET http://a/ HTTP/1.1\r\na:",
        b"GET http://a/ HTTP/1.1\r\na: b\r\nconnection: ",
        b"GET http://a",
        b"",
    ):
        with contextlib.suppress(ProxyRefused):
            request_of(begin + raw)
    with contextlib.suppress(ProxyRefused):
        server_name_of(raw)


REDACTOR = Redactor(["syt_secret_token", "geheim", "aaaaaaaaab"])

ENTRIES: dict[str, tuple[Callable[[str], Any], int]] = {
    "an answer by mail": (_composed, LONG),
    "what an answer by mail quotes, and its fields": (_composed_with, LONG),
    "Markdown as long as it is interpreted, as HTML": (to_html, MAX_BYTES - 1),
    "Markdown as long as it is interpreted, as text": (to_text, MAX_BYTES - 1),
    "what a mail quotes of ours": (
        lambda text: split_quotes(text, [text[::-1], text[len(text) // 2 :]]),
        LONG,
    ),
    "what a mail quotes of ours, marked": (
        lambda text: split_quotes("> " + text.replace("\n", "\n> "), [text[7:] + text]),
        LONG,
    ),
    "an event of Matrix that goes out": (lambda text: build_content(_answer(text)), EVENT),
    "an event of Matrix that comes in": (_event("body"), EVENT),
    "a formatted event of Matrix": (_event("both"), EVENT),
    "a mail, its subject": (_mail("Subject"), LONG),
    "a mail, who it is from": (_mail("From"), LONG),
    "a mail, who it is to": (_mail("To"), LONG),
    "a mail, what it answers": (_mail("References"), LONG),
    "a mail, its type": (_mail("Content-Type"), LONG),
    "a mail, its signature": (_mail("DKIM-Signature"), LONG),
    "a mail, what its server says": (_mail("Authentication-Results"), LONG),
    "a mail, its page": (_mail("Subject", "text/html"), LONG),
    "a mail, its flowed text": (_mail("Subject", "text/plain; format=flowed"), LONG),
    "a mail, its calendar": (_mail("Subject", "text/calendar"), LONG),
    "a mail, its report": (
        _mail("Subject", "multipart/report; report-type=delivery-status; boundary=a"),
        LONG,
    ),
    "a mail, folded": (_folded, LONG),
    "a mail, its parts": (_parts, LONG),
    "what the mail server says": (_imap, LONG),
    "a page": (lambda text: read_web_page(text, "https://example.org/a"), LONG),
    "where a page sends us": (_sent_on, LONG),
    "a command": (_command, LONG),
    "a prompt": (_prompt, LONG),
    "what is forgotten of a prompt": (_forgotten, LONG),
    "what is looked up for a question": (searched_words, LONG),
    "a text in parts": (lambda text: split_markdown(text, 4_000), LONG),
    "a text in small parts": (lambda text: split_markdown(text, 100), LONG),
    "a conversation to be consolidated": (_consolidated, LONG),
    "key facts": (_facts, LONG),
    "a line of the log": (REDACTOR.text, LONG),
    "when something shall be done": (_wish, LONG),
    "a reminder as somebody writes it": (_reminder, LONG),
    "what a command asks its proxy for": (_proxied, LONG),
    "what the owner is asked": (lambda text: quote(text, 1_500), LONG),
}
