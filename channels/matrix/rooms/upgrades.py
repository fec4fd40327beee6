"""
Room upgrades: who may replace a room by another, and where a session continues. Pure. A tombstone counts only
if its sender has at least a moderator's power (a room can set the required level to nothing) and the new room
names the old one as predecessor; else any writer could lead the bot away. `Successors` keeps the first room's
name for the session, with history and memory; answers go to the newest room. Since room version 12 creators
stand above all levels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from typing import Protocol

import structlog

from channels.matrix.client.json_access import JsonObject, object_of, text_of

MODERATOR = 50.0
_MOST = 1000
_OLD_VERSIONS = frozenset(str(number) for number in range(1, 12))
_log = structlog.get_logger(__name__)


class Replaced(Protocol):
    """The data of a room that was replaced."""

    create: JsonObject
    power_levels: JsonObject
    tombstone: JsonObject


def power_of(room: Replaced, user_id: str) -> float:
    """A person's power level in a room; unreadable levels count as none."""
    content = object_of(room.create, "content")
    creator = text_of(room.create, "sender") or text_of(content, "creator")
    if text_of(content, "room_version") not in _OLD_VERSIONS | {""}:
        additional = content.get("additional_creators")
        if user_id == creator or (isinstance(additional, list) and user_id in additional):
            return inf
    elif not room.power_levels:
        return 100.0 if user_id == creator else 0.0
    default = _level(room.power_levels.get("users_default"), 0.0)
    return _level(object_of(room.power_levels, "users").get(user_id), default)


def may_redact(room: Replaced, user_id: str) -> bool:
    """Return True if a person's power level allows redacting others' messages."""
    return power_of(room, user_id) >= _level(room.power_levels.get("redact"), MODERATOR)


def may_moderate(room: Replaced, user_id: str) -> bool:
    """Return True if a person is a moderator who may redact others' messages."""
    return power_of(room, user_id) >= MODERATOR and may_redact(room, user_id)


def may_replace(room: Replaced, user_id: str) -> bool:
    """Return True if a person's tombstone is believed: their power level allows it."""
    events = object_of(room.power_levels, "events")
    needed = _level(events.get("m.room.tombstone"), _level(room.power_levels.get("state_default"), MODERATOR))
    return power_of(room, user_id) >= max(needed, MODERATOR)


def predecessor_of(create: JsonObject) -> str:
    """The earlier room that a room's creation event names; empty if none."""
    return text_of(object_of(object_of(create, "content"), "predecessor"), "room_id")


class Successors:
    """Maps replaced rooms to their successors."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._after: dict[str, str] = {}

    def load(self, text: str | None) -> None:
        """Load what `dump` wrote in an earlier run."""
        try:
            kept = json.loads(text) if text else {}
            pairs = [(old, new) for new, old in kept.items() if isinstance(old, str)]
        except (ValueError, AttributeError) as error:
            _log.error("matrix.upgrades_unreadable", error=type(error).__name__)
            return
        self._before.clear()
        self._after.clear()
        for old, new in pairs:
            self.follow(old, new)

    def dump(self) -> str:
        """All replacements, as a text to be committed with the position."""
        return json.dumps(self._before, separators=(",", ":"))

    def follow(self, old: str, new: str) -> bool:
        """Note that ``new`` continues ``old``; return True if that was unknown."""
        if self._before.get(new) == old:
            return False
        if old == new or new in self.earlier(old) or new in self._before or len(self._before) >= _MOST:
            return False  # a circle, or a room that already is somebody else's successor
        given_up = self._after.pop(old, None)
        if given_up is not None:
            self._before.pop(given_up, None)
        self._before[new] = old
        self._after[old] = new
        return True

    def first_of(self, room_id: str) -> str:
        """The first of the rooms that lead to this one."""
        while room_id in self._before:
            room_id = self._before[room_id]
        return room_id

    def last_of(self, room_id: str) -> str:
        """The room that this one has led to."""
        while room_id in self._after:
            room_id = self._after[room_id]
        return room_id

    def earlier(self, room_id: str) -> Iterator[str]:
        """The rooms that led to this one, the newest first."""
        while room_id in self._before:
            room_id = self._before[room_id]
            yield room_id


def _level(value: object, default: float) -> float:
    """A power level, of any size before room version 6; old rooms may write it as a text."""
    if isinstance(value, bool):
        return default
    if isinstance(value, int | float):
        return value
    try:
        return int(value) if isinstance(value, str) else default
    except ValueError:
        return default
