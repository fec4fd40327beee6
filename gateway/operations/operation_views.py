"""Rows and messages as JSON for the command line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_core.messages import Audience, SessionKey
from agent_core.models import Message
from agent_core.text import one_line
from channels.base import Channel, SupportsRoomNames
from gateway.store.shared import SHARED
from gateway.store.stores import InboxRow, OutboxRow
from gateway.turns.commands.command_text import for_people


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


Row = dict[str, Any]


def copied_rows(answer: Any) -> tuple[Any, list[tuple[SessionKey, Row]]]:
    """Return a copy of an answer, and every row of it that names a session."""
    rows: list[tuple[SessionKey, Row]] = []

    def copy(value: Any) -> Any:
        if isinstance(value, list):
            return [copy(each) for each in value]
        if not isinstance(value, dict):
            return value
        row = {key: copy(each) for key, each in value.items()}
        if (session := session_key_of(row.get("session"))) is not None:
            rows.append((session, row))
        return row

    return copy(answer), rows


def name_rooms(rows: Iterable[tuple[SessionKey, Row]], channels: Mapping[str, Channel]) -> set[SessionKey]:
    """Add to rows the name of their room (``room``); return the conversations without one."""
    nameless = set()
    for session, row in rows:
        if name := room_name(session, channels):
            row["room"] = name
        elif not row.get("room") and session != SHARED:
            nameless.add(session)
    return nameless


def room_name(session: SessionKey, channels: Mapping[str, Channel]) -> str:
    """The name of a conversation's room; empty if it is not known."""
    channel = channels.get(session.channel)
    return channel.room_name(session.conversation) if isinstance(channel, SupportsRoomNames) else ""


def name_people(
    rows: Iterable[tuple[SessionKey, Row]],
    newest: Mapping[SessionKey, InboxRow],
    *,
    may_show: Callable[[InboxRow], bool],
) -> None:
    """Add to rows without a room the name of their conversation (``called``)."""
    names = {each: conversation_name(row, words=may_show(row)) for each, row in newest.items()}
    for session, row in rows:
        if not row.get("room") and names.get(session):
            row["called"] = names[session]


def conversation_name(row: InboxRow, *, words: bool) -> str:
    """Name a private chat or a mail by its person, and with ``words`` by the subject; "": neither."""
    message, subject = row.message, row.message.context.subject
    if subject is None and message.audience is not Audience.DIRECT:
        return ""
    name = one_line((words and subject) or message.sender.name or "", 60)
    return f"{name} ({message.sender.address})" if name else message.sender.address


def session_key_of(name: object) -> SessionKey | None:
    """The session of a name; None if it is no name of one."""
    try:
        return SessionKey.parse(name) if isinstance(name, str) else None
    except ValueError:
        return None


def message_line(message: Message) -> dict[str, Any]:
    """A line of a history; ``text`` is what its person wrote, where the content has more."""
    line, text = message.model_dump(mode="json", exclude_defaults=True), for_people(message)
    return line if text == message.content else {**line, "text": text}
