"""
Builds what a turn asks the model: whose conversation it is, what was said, which lines its history gets.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, tzinfo
from itertools import groupby
from typing import Literal

from agent_core.memory.scopes import scope_for
from agent_core.messages import (
    BELOW_THE_MAIL,
    Audience,
    Background,
    InboundMessage,
    SessionKey,
)
from agent_core.models import Message, Purpose, Session
from agent_core.prompt import (
    ASKED_AGAIN_PREFIX,
    attachment_lines,
    background_text,
    email_text,
    transcript_line,
    turn_facts,
    user_text,
)
from agent_core.provenance import Origin, Origins, arriving, from_json, join_origins, person, untrusted_origin
from agent_core.text import is_quoted
from gateway.routing.access import Access, Role, is_admitted
from gateway.store.background_job_rows import KIND, order_of
from gateway.store.model import Turn

NO_REPLY = "NO_REPLY"
"""The whole answer of a model that leaves talk of others alone."""
_MAY_BE_SILENT = (
    f"[This does not name you. If it needs nothing of you, answer with {NO_REPLY} alone: nothing is sent.]\n"
)


@dataclass(frozen=True, slots=True)
class UserInput:
    """The question to a model, its conversation, and its lines for the history."""

    session: Session
    text: str
    lines: Sequence[Message]


def user_input(
    turn: Turn, access: Access, purpose: Purpose, question: str | None, *, zone: tzinfo | None
) -> UserInput:
    """The input of a turn; ``question`` None means what was written."""
    asked = question_text([row.message for row in turn.rows]) if question is None else question
    text = f"{facts_text(turn, zone)}\n{_MAY_BE_SILENT if may_be_silent(turn) else ''}{asked}"
    return UserInput(session_of(turn, access, purpose), text, user_lines(turn, access))


def may_be_silent(turn: Turn) -> bool:
    """Return True if no message names the bot, and none is asked again, whose earlier answer would stay."""
    return all(
        row.message.kind == "message"
        and row.message.context.not_named
        and row.message.notes.replaces is None
        and not row.message.notes.done_before
        for row in turn.rows
    )


def question_text(messages: Sequence[InboundMessage]) -> str:
    """
    Render a turn's messages, in a shared conversation with their senders' addresses.

    Answered and earlier words come first, marked, unless another person in the turn has not seen them. Mails
    are fenced.
    """
    shared = any(message.audience is Audience.GROUP for message in messages)
    if len({message.context.visible_from for message in messages}) > 1:
        messages = [message.model_copy(update={"background": ()}) for message in messages]
    lines = dict.fromkeys(
        (line.kind, line.sender, line.name, line.text) for message in messages for line in message.background
    )
    before = background_text(list(lines))
    if all(_is_email_style(message) for message in messages):
        said = "\n\n".join(
            email_text(
                message.text,
                subject=message.context.subject or "",
                sender=message.sender.address if shared else "",
                also_to=message.context.also_to,
                attached=_about_files(message),
            )
            for message in messages
        )
    else:
        said = user_text(
            [(message.sender.address, message.text) for message in messages],
            shared=shared,
            attached=[_about_files(message) for message in messages],
        )
    return "\n\n".join(filter(None, (before, said, _done_before(messages))))


def _about_files(message: InboundMessage) -> str:
    heard = [transcript_line(**asdict(one)) for one in message.notes.heard]
    return "\n".join(filter(None, (*heard, attachment_lines(message.attachments))))


def earlier_tool_uses(messages: Sequence[InboundMessage]) -> dict[str, int]:
    """Return how often which tool was used for messages; those of one turn all tell of the same uses."""
    used: dict[str, int] = {}
    for each in messages:
        for tool, count in each.notes.done_before.items():
            used[tool] = max(used.get(tool, 0), count)
    return used


def _done_before(messages: Sequence[InboundMessage]) -> str:
    """Describe for a model the effects of a withdrawn answer; empty if it had none."""
    used = earlier_tool_uses([each for each in messages if each.kind == "message"])
    if not used:
        return ""
    tools = ", ".join(f"{tool} ({count}×)" for tool, count in sorted(used.items()))
    return (
        f"{ASKED_AGAIN_PREFIX}What was done for it stays: {tools}. Do none of that again unless it must be "
        "repeated; otherwise say that it was done.]"
    )


def session_of(turn: Turn, access: Access, purpose: Purpose) -> Session:
    """The session as the agent sees it; its memory depends on all who speak in the turn."""
    messages = [row.message for row in turn.rows]
    roles = [access.decide(message).role for message in messages]
    group = any(message.audience is Audience.GROUP for message in messages)
    audience = Audience.GROUP if group else Audience.DIRECT
    order = order_of(messages[-1]) if messages[-1].kind == KIND else None
    scope = scope_for(
        turn.session if order is None else order.place,
        audience,
        sender_is_owner=all(role is Role.OWNER for role in roles),
        sender_address=access.memory_address(messages[-1]),
        sender_verified=all(message.sender.verified for message in messages),
        account=turn.channel if access.is_apart(turn.channel) else "",
    )
    attachments = tuple(file for message in messages for file in message.attachments)
    since = max(filter(None, (message.context.visible_from for message in messages)), default=None)
    origins = join_origins(*(_origins_of(row.message, access, row.accepted_at) for row in turn.rows))
    quotes = tuple(each for row in turn.rows for each in _quotes(row.message, row.accepted_at))
    account = messages[-1].account
    return Session(
        turn.session, scope, audience, purpose, turn.id, attachments, since, origins, account, quotes
    )


def _quotes(message: InboundMessage, at: datetime) -> list[tuple[str, Origin]]:
    """
    Return the quotations of unproven authorship, each with its origin.

    These are quotations of our own messages, and quoted lines in the sender's text. If the history has them,
    that knows their origins.
    """
    if message.kind != "message":
        return []
    found = [(line.text, "this assistant") for line in message.background if _is_own_message(line, message)]
    found += [
        ("\n".join(lines), "somebody")
        for is_one, lines in groupby(message.text.split("\n"), is_quoted)
        if is_one
    ]
    kind: Literal["mail", "quote"] = "mail" if _is_email_style(message) else "quote"
    return [(text, untrusted_origin(kind, sender, at)) for text, sender in found]


def _is_own_message(line: Background, message: InboundMessage) -> bool:
    """Return True if we wrote a line; nothing proves the author of a line forwarded in a mail."""
    return line.sender == message.account and (line.kind == "quoted" or not _is_email_style(message))


def _origins_of(message: InboundMessage, access: Access, at: datetime) -> Origins:
    """
    Return the origins of a message's words, except the owner's; ``at`` is its arrival by our clock.

    Words quoted or forwarded in a mail are untrusted; in a room the server vouches for the author. Files and
    their names count as attached by the sender, except recorded voice, which is the sender's own. A message
    released from quarantine has no proven author.
    """
    email_style = _is_email_style(message)
    found: list[Origin] = []
    if message.kind == KIND:
        order = order_of(message)
        found += order.origins if order else [untrusted_origin("file", "a record that cannot be read", at)]
    if message.context.watched:
        found.append(untrusted_origin("shell", "a watch", at))
    found += _sender_of(message, access, at)
    for line in message.background:
        role = access.role(message.channel, line.sender, verified=not email_style)
        if _is_own_message(line, message):
            found += [person(line.sender, at)] if line.kind == "thread" else []  # what we have said ourselves
        elif role is Role.STRANGER:
            whose = "somebody else" if line.sender == BELOW_THE_MAIL else line.sender
            found.append(untrusted_origin("mail" if email_style else "quote", whose, at))
        elif role is not Role.OWNER:
            found.append(person(line.sender, at))
    if message.kind == "job" and message.notes.job is not None:
        found += arriving(from_json(message.notes.job.origins), at)
    recorded = message.context.spoken
    is_sent = message.kind == "message" and not is_admitted(message)
    sent: Literal["file", "attachment"] = "attachment" if is_sent else "file"
    if message.context.others_words:
        # In a room it is the name of a file that could not be fetched.
        found.append(untrusted_origin("mail" if email_style else sent, "somebody else", at))
    found += [
        untrusted_origin(sent, file.name, at)
        for file in message.attachments
        if file.sha256 not in recorded or file.media_type.startswith("image/")
    ]
    return join_origins(found)


def _sender_of(message: InboundMessage, access: Access, at: datetime) -> list[Origin]:
    """Return the author as an origin, unless it is certainly the owner."""
    if is_admitted(message):
        return [untrusted_origin("mail" if _is_email_style(message) else "quote", message.sender.address, at)]
    if message.kind == "tick" or access.decide(message).role is Role.OWNER:
        return []
    return [person(message.sender.address, at)]


def facts_text(turn: Turn, zone: tzinfo | None) -> str:
    """The facts about the moment that the model gets before the question."""
    last = turn.rows[-1].message
    at = last.received_at.astimezone(zone)
    shared = last.audience is Audience.GROUP
    return turn_facts(at, channel=turn.channel, shared=shared, email_style=_is_email_style(last))


def trust_topic(session: SessionKey) -> str:
    """The name under which it is stored until when content of a conversation is trusted (``!trust``)."""
    return f"trusted:{session}"


def trusted_before(noted: str | None, now: datetime) -> datetime | None:
    """
    The time before which content of a conversation is trusted, as it was stored.

    What was noted by a clock that was ahead counts for nothing: it would vouch for what is still to come. A
    turn that finds that removes it, because what comes in by that turn bears an earlier time.
    """
    at = datetime.fromisoformat(noted) if noted else None
    return None if at is None or at > now else at


def _is_email_style(message: InboundMessage) -> bool:
    """Return True if a message has a subject, even an empty one."""
    return message.kind == "message" and message.context.subject is not None


def user_lines(turn: Turn, access: Access) -> list[Message]:
    """
    Return the question's history lines, one per message.

    In a closed room a line has its place by time, without what was said before it; a file may be older, so it
    adds those origins.
    """
    return [
        Message(
            role="user",
            content=question_text([_without_background(row.message)]),
            id=f"{turn.id}.{number}",
            turn=turn.id,
            timestamp=_seen_at(row.message) or row.message.received_at,
            sender=row.message.sender.address,
            attachments=row.message.attachments,
            origins=_origins_of(
                row.message if row.message.attachments else _without_background(row.message),
                access,
                row.accepted_at,
            ),
        )
        for number, row in enumerate(turn.rows)
    ]


def _without_background(message: InboundMessage) -> InboundMessage:
    closed = _seen_at(message) is not None
    return message.model_copy(update={"background": ()}) if closed else message


def _seen_at(message: InboundMessage) -> datetime | None:
    """The instant that the channel has noted; that of a job is that of the request, and means nothing."""
    return message.context.seen_at if message.kind in ("message", "reaction") else None
