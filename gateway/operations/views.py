"""Rows and messages as JSON for the command line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_core.messages import Audience, SessionKey
from agent_core.models import Message
from agent_core.text import one_line
from channels.base import Channel, SupportsRoomNames
from gateway.queue.shared import SHARED
from gateway.queue.stores import InboxRow, OutboxRow
from gateway.turns.commands.text import for_people


def inbox_row(row: InboxRow, *, preview: int | None = None, words: bool = True) -> dict[str, Any]:
    """An accepted message; ``preview`` limits its text, None: all of it; without ``words``: none of it."""
    message = row.message
    said = "[deleted by its sender]" if message.notes.redacted else message.text
    text = said if preview is None else one_line(said, preview)
    return {
        "id": row.id,
        "name": f"m{row.id}",
        "state": row.state.value,
        "channel": message.channel,
        "session": str(message.session),
        "sender": message.sender.address,
        "verified": message.sender.verified,
        "doubt": message.context.doubt,
        "kind": message.kind,
        "text": text if words else None,
        "accepted_at": row.accepted_at.isoformat(),
        "attempts": row.attempts,
        "deferrals": row.deferrals,
        "next_at": row.next_at.isoformat() if row.next_at else None,
        "error": row.error,
    }


def outbox_row(row: OutboxRow) -> dict[str, Any]:
    """An outgoing message."""
    return {
        "id": row.id,
        "state": row.state.value,
        "kind": row.message.kind.value,
        "text": row.message.text,
        "attempts": row.attempts,
        "provider_id": row.provider_id,
        "error": row.error,
    }


def draft(row: OutboxRow, *, words: bool = True) -> dict[str, Any]:
    """A message that waits for approval, or has waited for it; without ``words``: not its text."""
    return {
        "id": row.id,
        "name": f"d{row.id}",
        "state": row.state.value,
        "channel": row.message.channel,
        "session": str(row.message.session),
        "inbox": row.inbox_id,
        "created_at": row.message.created_at.isoformat(),
        "error": row.error,
        "text": row.message.text if words else None,
    }


def trouble(what: str, inbox_id: int | None, row: InboxRow | OutboxRow) -> dict[str, Any]:
    """The problem of a message; ``why`` may name people."""
    name = f"d{row.id}" if inbox_id is None else str(inbox_id)
    return {"what": what, "inbox": inbox_id, "name": name, "channel": row.message.channel, "why": row.error}


def with_room_names(answer: Any, channels: Mapping[str, Channel]) -> Any:
    """The same answer, in which each row with a session also has the name of its room, if that is known."""
    if isinstance(answer, list):
        return [with_room_names(one, channels) for one in answer]
    if not isinstance(answer, dict):
        return answer
    named = {key: with_room_names(value, channels) for key, value in answer.items()}
    session = key_of(answer.get("session"))
    channel = None if session is None else channels.get(session.channel)
    if session is not None and isinstance(channel, SupportsRoomNames):
        named |= {"room": name} if (name := channel.room_name(session.conversation)) else {}
    return named


def sessions_without_room(answer: Any) -> set[SessionKey]:
    """The conversations of an answer for which `with_room_names` found no room."""
    rows = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    found = {key for row in rows for key in sessions_without_room(row)}
    key = key_of(answer.get("session")) if isinstance(answer, dict) and not answer.get("room") else None
    return found if key is None or key == SHARED else {*found, key}


def with_people(answer: Any, names: Mapping[SessionKey, str]) -> Any:
    """The same answer, in which rows of these conversations also have their name (``called``)."""
    if isinstance(answer, list):
        return [with_people(one, names) for one in answer]
    if not isinstance(answer, dict):
        return answer
    named = {name: with_people(value, names) for name, value in answer.items()}
    key = None if named.get("room") else key_of(answer.get("session"))
    return named | {"called": names[key]} if key is not None and names.get(key) else named


def conversation_name(row: InboxRow, *, words: bool) -> str:
    """Name a private chat or a mail by its person, and with ``words`` by the subject; "": neither."""
    message, subject = row.message, row.message.context.subject
    if subject is None and message.audience is not Audience.DIRECT:
        return ""
    name = one_line((words and subject) or message.sender.name or "", 60)
    return f"{name} ({message.sender.address})" if name else message.sender.address


def key_of(name: object) -> SessionKey | None:
    """The session of a name; None if it is no name of one."""
    try:
        return SessionKey.parse(name) if isinstance(name, str) else None
    except ValueError:
        return None


def message_line(message: Message) -> dict[str, Any]:
    """A line of a history; ``text`` is what its person wrote, where the content has more."""
    line, text = message.model_dump(mode="json", exclude_defaults=True), for_people(message)
    return line if text == message.content else {**line, "text": text}
