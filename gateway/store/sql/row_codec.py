"""
Converts rows of the tables to the objects of the stores, and back. No SQL beyond lists of columns, no I/O. A
text from the network may contain half of a surrogate pair, which is not valid Unicode and cannot be stored.
It is replaced by the replacement character rather than refused, because a message that cannot be accepted
would be delivered again forever. A payload that has become unreadable (disks fail) is one message and must
not stop the others. It is replaced by a message that says so, which is processed like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from agent_core.messages import (
    Audience,
    InboundMessage,
    MessageContext,
    OutboundKind,
    OutboundMessage,
    Sender,
    SessionKey,
)
from agent_core.models import Message
from gateway.store.model import MAX_NAME, InboxRow, JournalLine, NewOutbound, OutboxRow, Step, Turn
from gateway.store.states import InboxState, OutboxState

Raw = tuple[Any, ...]

INBOX = (
    "id, channel, account, native_id, session, kind, payload, state, attempts, deferrals, accepted_at, turn, "
    "error, next_at"
)
OUTBOX = (
    "id, inbox_id, key, channel, account, session, payload, state, attempts, uncertain_at, provider_id, "
    "error, created_at"
)
_KINDS = ("message", "tick", "reaction", "background_job")
_DAMAGED_QUESTION = "[This message was damaged on the disk and cannot be read any more.]"
_DAMAGED_ANSWER = "Sorry, my answer was damaged on the disk before I could send it. Please ask me again."
_CONTEXT = TypeAdapter(MessageContext)
_log = structlog.get_logger(__name__)


def instant(seconds: float) -> datetime:
    """Convert a time from the tables to an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def error_text(text: str) -> str:
    """Shorten an error for storage."""
    return whole_text(text[:2000])


def key_text(text: str) -> str:
    """Convert a server's message id to what a column and its index can hold; a hash replaces a long one."""
    whole = whole_text(text)
    raw = whole.encode()
    return whole if len(raw) <= MAX_NAME else f"sha256:{hashlib.sha256(raw).hexdigest()}"


def whole_text(text: str) -> str:
    """Convert a text to what a column can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {whole_text(str(name)): _whole(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_whole(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return whole_text(value.isoformat() if isinstance(value, datetime) else str(value))


def dump(model: BaseModel) -> str:
    """Encode a model as JSON, whatever it contains."""
    try:
        return model.model_dump_json()
    except PydanticSerializationError:
        return json.dumps(_whole(model.model_dump(warnings=False)))


def dump_context(context: MessageContext) -> str:
    """Encode the context of a job as JSON, whatever it contains."""
    return json.dumps(_whole(_CONTEXT.dump_python(context)))


def context_or_empty(text: str) -> MessageContext:
    """Decode what `dump_context` wrote; an empty one if it is damaged."""
    try:
        return _CONTEXT.validate_json(text)
    except ValidationError:
        return MessageContext()


def to_json(value: Mapping[str, Any]) -> str:
    """Encode a mapping as ASCII JSON, which keeps broken surrogates. Values unknown to JSON become texts."""
    return json.dumps(value, default=str)


def load_json(text: str) -> dict[str, Any]:
    """Decode what `to_json` wrote."""
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def strip(message: InboundMessage) -> InboundMessage:
    """Reduce a message to what is stored of one only recorded as seen: who, when, where, but not what."""
    return message.model_copy(
        update={"text": "", "context": MessageContext(), "attachments": (), "background": ()}
    )


def payload_object(payload: str | None) -> dict[str, Any] | None:
    """Return a payload as it was written, unchecked; None if it was forgotten or is damaged."""
    try:
        loaded = json.loads(payload or "null")
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def stripped_payload(payload: str | None) -> str | None:
    """Apply `stripped` to a message that is a payload already; None for a damaged one."""
    message = payload_object(payload)
    if message is None:
        return None
    gone = ("context", "attachments", "background")
    return _packed({name: value for name, value in message.items() if name not in gone} | {"text": ""})


def with_note(payload: str | None, name: str, value: object) -> str | None:
    """Return a payload with a value added to the gateway's notes; a damaged one is unchanged."""
    message = payload_object(payload)
    if message is None:
        return payload
    context = message.get("context")
    known = context if isinstance(context, dict) else {}
    return _packed({**message, "context": {**known, "notes": {**known.get("notes", {}), name: value}}})


def _packed(message: Mapping[str, Any]) -> str:
    return json.dumps(message, separators=(",", ":"))


def sender_of(payload: str | None) -> str | None:
    """Return the sender's address in a payload; None if there is none."""
    sender = (payload_object(payload) or {}).get("sender")
    address = sender.get("address") if isinstance(sender, dict) else None
    return address if isinstance(address, str) else None


def direct_sender_of(payload: str | None) -> str | None:
    """Return the sender's address in the payload of a private conversation; None for any other."""
    is_direct = (payload_object(payload) or {}).get("audience") == Audience.DIRECT
    return sender_of(payload) if is_direct else None


def key_digest(channel: str, account: str, native_id: str) -> bytes:
    """
    Return a 16-byte digest of a message's key; the digest outlives a row that nobody will ask about again.

    Two messages with the same digest are not expected in the life of a database (2⁻¹²⁸ for a given pair).
    Nobody gains by finding such a pair: the second message would merely be ignored, like the first.
    """
    # PostgreSQL's columns hold no NUL; the key of a row must have the digest of the key that was accepted.
    parts = [
        part.replace("\0", "\ufffd").encode("utf-8", "replace") for part in (channel, account, native_id)
    ]
    lengths = b"".join(len(part).to_bytes(4, "big") for part in parts)
    return hashlib.blake2b(lengths + b"".join(parts), digest_size=16).digest()


def read_payload(payload: str | None) -> InboundMessage | None:
    """Decode the message of a row; None if it was forgotten or is damaged."""
    try:
        return None if payload is None else InboundMessage.model_validate_json(payload)
    except ValidationError:
        return None


_Payload = TypeVar("_Payload", bound=BaseModel)


def _read_or_none(model: type[_Payload], payload: str | None, row_id: int) -> _Payload | None:
    if payload is None:
        return None
    try:
        return model.model_validate_json(payload)
    except ValidationError:
        _log.error("queue.row_damaged", row=row_id, kind=model.__name__)
        return None


def _session(text: str, channel: str) -> SessionKey:
    try:
        return SessionKey.parse(text)
    except ValueError:
        return SessionKey(channel or "damaged", "damaged")


def session_or_none(text: str) -> SessionKey | None:
    """Parse the session of a row; None if its name is damaged."""
    try:
        return SessionKey.parse(text)
    except ValueError:
        _log.error("queue.session_damaged", session=text[:200])
        return None


def inbox_row(raw: Raw) -> InboxRow:
    """Convert a row of ``SELECT {INBOX}``; of a forgotten or damaged message only the keys remain."""
    row_id, channel, account, native_id, session, kind, payload, state = raw[:8]
    attempts, deferrals, accepted_at, turn, error, next_at = raw[8:14]
    message = _read_or_none(InboundMessage, payload, row_id)
    if message is None:
        message = InboundMessage(
            channel=channel,
            account=account,
            native_id=native_id,
            session=_session(session, channel),
            sender=Sender(address=""),
            text="" if payload is None else _DAMAGED_QUESTION,
            received_at=instant(accepted_at),
            kind=kind if kind in _KINDS else "message",
        )
    return InboxRow(
        id=row_id,
        message=message,
        state=InboxState(state),
        attempts=attempts,
        deferrals=deferrals,
        accepted_at=instant(accepted_at),
        turn=turn,
        error=error,
        next_at=None if next_at is None else instant(next_at),
    )


def outbox_row(raw: Raw) -> OutboxRow:
    """Convert a row of ``SELECT {OUTBOX}``; of a forgotten or damaged message only the keys remain."""
    row_id, inbox_id, key, channel, account, session, payload, state = raw[:8]
    attempts, uncertain_at, provider_id, error, created_at = raw[8:13]
    message = _read_or_none(OutboundMessage, payload, row_id)
    if message is None:
        message = OutboundMessage(
            id=key,
            channel=channel,
            account=account,
            session=_session(session, channel),
            text="" if payload is None else _DAMAGED_ANSWER,
            created_at=instant(created_at),
            kind=OutboundKind.NOTICE if payload is None else OutboundKind.APOLOGY,
        )
    return OutboxRow(
        id=row_id,
        inbox_id=inbox_id,
        message=message,
        state=OutboxState(state),
        attempts=attempts,
        uncertain_since=None if uncertain_at is None else instant(uncertain_at),
        provider_id=provider_id,
        error=error,
    )


def message_id(secret: str, origin: str, number: int) -> str:
    """Return the key of the message ``number`` of an origin; see `new_outbox`."""
    return hashlib.sha256(f"{secret}\0{origin}\0{number}".encode()).hexdigest()[:32]


def origin_of_post(once: tuple[str, str]) -> str:
    """Return the origin of what was posted once under a topic and a value."""
    return "\0".join(("once", *once))


def new_outbox(
    outbound: Sequence[NewOutbound], *, secret: str, origin: str, now: float, turn: Turn | None = None
) -> list[tuple[OutboundMessage, str]]:
    """
    Build the messages of new outbox rows with their keys, each with its JSON.

    A key is a hash of the database's secret, the origin (the turn's id) and the number within it. It is the
    same whenever it is computed again, different for every other message, and an outsider cannot guess it.
    """
    made: list[tuple[OutboundMessage, str]] = []
    for number, new in enumerate(outbound):
        context = new.context
        if turn is not None and new.session == turn.place and context == MessageContext():
            context = turn.rows[-1].message.context
        message = OutboundMessage(
            id=message_id(secret, origin, number),
            channel=new.channel,
            account=new.account,
            session=new.session,
            text=new.text,
            created_at=instant(now),
            kind=new.kind,
            attachments=new.attachments,
            context=context,
            rings_for=new.rings_for,
            remembered=new.remembered,
        )
        made.append((message, dump(message)))
    return made


def journal_line(raw: Raw) -> JournalLine | None:
    """Convert a row of ``SELECT id, session, line FROM history_journal``; None if it is damaged."""
    row_id, session, line = raw
    key, message = session_or_none(session), _read_or_none(Message, line, row_id)
    return None if key is None or message is None else JournalLine(row_id, key, message)


def step_of(raw: Raw) -> Step:
    """Convert a row of ``SELECT number, kind, digest, request, result FROM turn_steps``."""
    number, kind, digest, request, result = raw
    return Step(number, kind, digest, load_json(request), None if result is None else load_json(result))
