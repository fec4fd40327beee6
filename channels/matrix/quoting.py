"""
What a message answers, and how its thread began: fetched, read and cut to a size that fits into a question.

Theory of operation. An event is only ever asked for by its id *in the room of the message that points to it*,
so nobody can have the bot quote from a room that they are not in. Nor from a time at which they were not in
it: the bot may read what two people said before a third joined, and the third may know the event's id. So
what the asker did not write must be younger than the asker's membership (`Quotes.is_for`).

What was seen lately is remembered; the rest is fetched, within a limit, and left out when it does not come: a
quotation helps, and nothing waits for it. Of an event that was edited the newest text counts. A chain of
answers is followed a few steps back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from agent_core.messages import Background
from channels.matrix.edits import bundled_edit
from channels.matrix.gaps import sent_at_ms
from channels.matrix.inbound import Skip, file_in, replies_to, said_in
from channels.matrix.rooms import JsonObject, Rooms, object_of, text_of
from channels.matrix.threads import EVENT_ID
from channels.matrix.wire import CLIENT, Homeserver, LinkBroken, part

__all__ = ["Asker", "Quotes", "Uncover", "in_clear"]

_CHAIN = 3
_MAX_CHARS = 2000
_MAX_REMEMBERED = 300
_LIMIT_S = 4.0
_CUT = " […]"
_log = structlog.get_logger(__name__)
Uncover = Callable[[str, JsonObject], JsonObject | None]
"""An event in clear, None if it cannot be read; without any other effect."""


def in_clear(_room_id: str, event: JsonObject) -> JsonObject | None:
    """What can be read without keys."""
    return None if event.get("type") == "m.room.encrypted" else event


@dataclass(frozen=True, slots=True)
class _Seen:
    sender: str
    text: str
    answers: str
    sent_at_ms: int
    joined: bool = False
    """The event is the root of a thread in which the bot has said something."""
    file: Mapping[str, Any] = field(default_factory=dict)
    """What is needed to fetch its file; empty if it has none."""


class Asker(NamedTuple):
    """Who asks, and whether alone with the bot."""

    address: str
    direct: bool


class Quotes:
    """
    Finds what messages point to.

    Args:
        homeserver: Where events are fetched.
        rooms: For the names of people.
        user_id: Who we are.
        uncover: Reads what is encrypted.
    """

    def __init__(self, homeserver: Homeserver, rooms: Rooms, uncover: Uncover, *, user_id: str) -> None:
        self._homeserver = homeserver
        self._rooms = rooms
        self._uncover = uncover
        self._user_id = user_id
        self._since: OrderedDict[tuple[str, str, int], int] = OrderedDict()
        """Since when somebody is in a room (or has their present name), by room, person and its revision."""
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()

    def forget(self, room_id: str, event_id: str) -> None:
        """An event was edited or taken back."""
        self._seen.pop((room_id, event_id), None)

    async def is_for(self, room_id: str, seen: _Seen, asker: Asker) -> bool:
        """Whether the asker has seen an event with their own eyes; what is not known counts as no."""
        if seen.sender == asker.address or (asker.direct and seen.sender == self._user_id):
            return True
        room = self._rooms.get(room_id)
        key = (room_id, asker.address, room.revision if room is not None else 0)
        if key not in self._since:
            path = f"{CLIENT}/rooms/{part(room_id)}/state/m.room.member/{part(asker.address)}"
            event = await self._ask(path, {"format": "event"})
            content = object_of(event, "content")
            since = sent_at_ms(event) if event is not None and content.get("membership") == "join" else 0
            if not since:
                return False
            self._since[key] = since
            while len(self._since) > _MAX_REMEMBERED:
                self._since.popitem(last=False)
        return seen.sent_at_ms >= self._since[key]

    async def _shown(self, room_id: str, event_id: str, asker: Asker) -> _Seen | None:
        seen = await self._find(room_id, event_id) if EVENT_ID.fullmatch(event_id) else None
        return seen if seen is not None and await self.is_for(room_id, seen, asker) else None

    async def chain(self, room_id: str, event_id: str, asker: Asker) -> tuple[Background, ...]:
        """What a message answers, and what that answers in turn; oldest first."""
        found: list[Background] = []
        left = _MAX_CHARS
        for _ in range(_CHAIN):
            seen = await self._shown(room_id, event_id, asker)
            if seen is None:
                break
            said = self._said("quoted", room_id, seen, limit=left)
            left -= len(said.text)
            found.append(said)
            event_id = seen.answers
            if left < len(_CUT) + 1:
                break
        return tuple(reversed(found))

    async def root(self, room_id: str, event_id: str, asker: Asker) -> tuple[Background, ...]:
        """How a thread began."""
        seen = await self._shown(room_id, event_id, asker)
        return () if seen is None else (self._said("thread", room_id, seen, limit=_MAX_CHARS),)

    async def takes_part(self, room_id: str, root: str) -> bool:
        """Whether the bot has said something in a thread, as far as the homeserver tells."""
        seen = await self._find(room_id, root)
        return seen is not None and seen.joined

    async def file(self, room_id: str, event_id: str, asker: Asker) -> Mapping[str, Any]:
        """What is needed to fetch the file of an event, as in the context of a message; empty if none."""
        seen = await self._shown(room_id, event_id, asker)
        return {} if seen is None else seen.file

    def _said(self, kind: str, room_id: str, seen: _Seen, *, limit: int) -> Background:
        room = self._rooms.get(room_id)
        name = room.names.get(seen.sender, "") if room is not None else ""
        text = seen.text if len(seen.text) <= limit else seen.text[: limit - len(_CUT)] + _CUT
        return Background(
            kind="thread" if kind == "thread" else "quoted", sender=seen.sender, name=name, text=text
        )

    async def _find(self, room_id: str, event_id: str) -> _Seen | None:
        key = (room_id, event_id)
        if key not in self._seen:
            event = await self._fetch(room_id, event_id)
            seen = None if event is None else self._read(room_id, event)
            if seen is None:
                return None
            self._seen[key] = seen
            while len(self._seen) > _MAX_REMEMBERED:
                self._seen.popitem(last=False)
        return self._seen[key]

    async def _fetch(self, room_id: str, event_id: str) -> JsonObject | None:
        event = await self._ask(f"{CLIENT}/rooms/{part(room_id)}/event/{part(event_id)}")
        # What is in here is the server's word; that it is of this room is checked all the same.
        return event if event is not None and event.get("room_id", room_id) == room_id else None

    async def _ask(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject | None:
        try:
            answer = await self._homeserver.request("GET", path, query=query, timeout_s=_LIMIT_S)
        except LinkBroken as error:
            _log.info("matrix.quote_missed", error=str(error))
            return None
        return answer.body if answer.good else None

    def _read(self, room_id: str, event: JsonObject) -> _Seen | None:
        clear = self._uncover(room_id, event)
        kind = None if clear is None else clear.get("type")
        if clear is None or kind not in ("m.room.message", "m.sticker"):
            return None
        content = object_of(clear, "content")
        newest = bundled_edit(event)
        edit = self._uncover(room_id, newest) if newest is not None else None
        changed = object_of(object_of(edit, "content"), "m.new_content") if edit is not None else {}
        text = said_in(changed) if changed else said_in(content)
        if isinstance(text, Skip):
            text = text_of(changed or content, "body").strip()  # a notice may well be answered
        if not text:
            return None
        thread = object_of(object_of(object_of(event, "unsigned"), "m.relations"), "m.thread")
        joined = thread.get("current_user_participated") is True
        sender, file = text_of(clear, "sender"), file_in(kind, content)
        return _Seen(sender, text[:_MAX_CHARS], replies_to(content), sent_at_ms(event), joined, file)
