"""
Writes a message as a line of a history, reads it back, and caches the newest lines and ids. Pure; an
unreadable line is None, never an exception. What orjson refuses goes through the standard library and says so
in ``enc``. A decoded line takes four times its text, so only lines after the cursor are cached; ids are kept
as hashes, and a match is confirmed in the file.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import orjson
from pydantic import ValidationError

from agent_core.models import Message
from agent_core.provenance import to_json
from agent_core.storage.history_paging import Entry

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


_ENTRIES = 1000
_BYTES = 2 * 1024 * 1024
_BYTES_OF_AN_ENTRY = 1600  # measured with tracemalloc, without the text


class DecodedTail:
    """The newest lines of a file, from byte ``start``; ``size`` is their estimated memory."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.size = 0
        self._entries: deque[Entry] = deque()
        self._floor = 0

    def __len__(self) -> int:
        return len(self._entries)

    def newest_first(self) -> Iterator[Entry]:
        """The cached lines."""
        return reversed(self._entries)

    def before(self, end: int) -> tuple[int, int]:
        """
        Return the position from which the line before the tail is counted, and the unreadable lines before
        it.

        The position is that of the first readable line of the tail, or ``end`` if there is none.
        """
        unread = len(list(takewhile(lambda entry: entry.message is None, self._entries)))
        return (self._entries[unread].position if unread < len(self._entries) else end), unread

    def prepend(self, entry: Entry) -> bool:
        """Cache the line before the first one, if there is room for it and it can be needed."""
        room = len(self._entries) < _ENTRIES and self.size + _bytes_of(entry) <= _BYTES
        if not room or entry.position < self._floor:
            return False
        self._entries.appendleft(entry)
        self.size += _bytes_of(entry)
        self.start = entry.offset
        return True

    def append(self, entries: Iterable[Entry], *, end: int) -> None:
        """Cache lines that were written after the last one; the file is ``end`` bytes long now."""
        for entry in entries:
            if not self._entries:
                self.start = entry.offset
            self._entries.append(entry)
            self.size += _bytes_of(entry)
        self._trim(end)

    def need(self, cursor: int, *, end: int) -> None:
        """Drop the lines before the cursor, which nobody asks for any more."""
        self._floor = cursor
        self._trim(end)

    def clear(self, end: int) -> None:
        """Drop all lines."""
        self._entries.clear()
        self.size = 0
        self.start = end

    def _trim(self, end: int) -> None:
        while self._entries and (
            len(self._entries) > _ENTRIES or self.size > _BYTES or self._entries[0].position < self._floor
        ):
            self.size -= _bytes_of(self._entries.popleft())
        self.start = self._entries[0].offset if self._entries else end


def _bytes_of(entry: Entry) -> int:
    if entry.message is None:
        return _BYTES_OF_AN_ENTRY
    return _BYTES_OF_AN_ENTRY + max(sys.getsizeof(entry.message.content), entry.chars)


class RecentIds:
    """A set of recently written ids that keeps the last ``keep``; ``ids`` are on disk, oldest first."""

    def __init__(self, ids: Iterable[str], *, keep: int) -> None:
        self._keep = keep
        self._hashes = array("q", map(hash, ids))

    def __len__(self) -> int:
        return len(self._hashes)

    def may_contain(self, one: str) -> bool:
        """Return False if the id was not written; True if it was, or one with the same hash."""
        return hash(one) in self._hashes

    def add(self, one: str) -> None:
        """Note that an id has been written."""
        self._hashes.append(hash(one))
        if len(self._hashes) > 2 * self._keep:
            del self._hashes[: -self._keep]
