"""
Writes a message as a line of a history, and reads it back. Pure; an unreadable line is None, never an
exception. What orjson refuses goes through the standard library and says so in ``enc``.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import ValidationError

from agent_core.models import Message
from agent_core.provenance import to_json

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longer lines are not read: no message comes near it, a file of zeros does."""


def stamp(message: Message, now: datetime) -> Message:
    """The message with a timestamp, in UTC."""
    if message.timestamp is not None and message.timestamp.tzinfo is UTC:
        return message
    return message.model_copy(update={"timestamp": (message.timestamp or now).astimezone(UTC)})


def storable(text: str) -> str:
    """The text in a form that UTF-8 can encode: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def to_line(message: Message, position: int) -> bytes:
    """A message as one line, with its newline."""
    value: dict[str, Any] = {
        "id": message.id,
        "turn": message.turn,
        "role": message.role,
        "content": message.content,
        "timestamp": message.timestamp.isoformat().replace("+00:00", "Z") if message.timestamp else None,
        "sender": message.sender,
        "n": position,
    }
    if message.scope is not None:
        value["scope"] = message.scope
    if message.tool_calls:
        value["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
    if message.tool_call_id is not None:
        value["tool_call_id"] = message.tool_call_id
    if message.attachments:
        value["attachments"] = [file.model_dump() for file in message.attachments]
    if message.origins is not None:
        value["origins"] = to_json(message.origins)
    if message.found:
        value["found"] = message.found
    if message.undoes:
        value["undoes"] = message.undoes
    return encode_object(value)


def encode_object(value: dict[str, Any]) -> bytes:
    """An object as one line, with its newline."""
    try:
        return orjson.dumps(value) + b"\n"
    except TypeError:
        return json.dumps({**value, "enc": "json"}, default=str).encode() + b"\n"


def as_object(raw: bytes) -> dict[str, Any] | None:
    """The object on a line, or None."""
    try:
        value = orjson.loads(raw)
        if isinstance(value, dict) and value.get("enc") == "json":
            value = json.loads(raw)
    except (ValueError, RecursionError):
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def position_in(value: dict[str, Any] | None, offset: int) -> int | None:
    """The position that a line says it has, unless that is impossible: every line before it takes a byte."""
    number = value.get("n") if value is not None else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= offset:
        return None
    return number


def from_object(value: dict[str, Any]) -> Message | None:
    """The message in the object of a line, or None."""
    try:
        return Message.model_validate(value)
    except ValidationError:
        return None
