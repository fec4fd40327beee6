"""
The context of a reply: the message that it answers and the start of its thread, fetched and cut to fit.
Events are requested by id in the room of the reply only, and the asker must have been in the room then, by
our server's state at that event (`ReplyContext.is_for`); times in events count for nothing. So nobody can
make the bot quote what they could not see. Recent ones are cached; the rest is fetched within a limit or left
out. The newest edit counts, and chains are followed a few steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import structlog

from agent_core.bounded import Bounded
from agent_core.messages import Background
from channels.matrix.client.homeserver import CLIENT, Homeserver, LinkBroken, quote_path
from channels.matrix.client.json_access import JsonObject, object_of, objects_of, text_of
from channels.matrix.events.edits import bundled_edit
from channels.matrix.events.inbound_events import Skip, file_in, message_text, replies_to
from channels.matrix.events.matrix_threads import EVENT_ID
from channels.matrix.events.media_events import FileNote
from channels.matrix.events.polls import RESPONSES, STARTS, Poll, poll_in, result_of
from channels.matrix.rooms.room_state import Rooms

_MAX_CHARS = 2000
_MAX_REMEMBERED = 300
_LIMIT_S = 4.0
_RELATIONS = "/_matrix/client/v1"
_CUT = " […]"
_log = structlog.get_logger(__name__)
Decrypt = Callable[[str, JsonObject], JsonObject | None]
"""An event in clear, None if it cannot be read; without any other effect."""


def read_plain_event(_room_id: str, event: JsonObject) -> JsonObject | None:
    """An event that can be read without keys."""
    return None if event.get("type") == "m.room.encrypted" else event


@dataclass(frozen=True, slots=True)
class _Seen:
    event_id: str
    sender: str
    text: str
    answers: str
    edit: str = ""
    """The id of the newest edit, and what it says; empty if there is none."""
    edited: str = ""
    joined: bool = False
    """The event is the root of a thread in which the bot has said something."""
    file: FileNote | None = None


class Asker(NamedTuple):
    """The person who asks, and whether they are alone with the bot."""

    address: str
    direct: bool


class ReplyContext:
    """Finds the messages that a message refers to."""

    def __init__(self, homeserver: Homeserver, rooms: Rooms, decrypt: Decrypt, *, user_id: str) -> None:
        self._homeserver = homeserver
        self._rooms = rooms
        self._decrypt = decrypt
        self._user_id = user_id
        self._seen: Bounded[tuple[str, str], _Seen] = Bounded(_MAX_REMEMBERED)
        self._memberships: Bounded[tuple[str, str, str], str] = Bounded(_MAX_REMEMBERED)
        """What somebody was in a room at an event, by room, event and person."""

    def forget(self, room_id: str, event_id: str) -> None:
        """Forget an event that was edited or redacted."""
        self._seen.pop((room_id, event_id), None)

    async def is_for(self, room_id: str, seen: _Seen, asker: Asker) -> bool:
        """Return True if the asker could see an event; an unknown membership counts as no."""
        if seen.sender == asker.address:
            return True
        membership = await self._membership(room_id, seen.event_id, asker.address)
        # What the bot says first in a room for two is said to the one who is invited to it.
        first_words = asker.direct and seen.sender == self._user_id
        return membership == "join" or (first_words and membership == "invite")

    async def _shown(self, room_id: str, event_id: str, asker: Asker) -> _Seen | None:
        seen = await self._find(room_id, event_id, asker.address) if EVENT_ID.fullmatch(event_id) else None
        if seen is None or not await self.is_for(room_id, seen, asker):
            return None
        if seen.edit and await self.is_for(room_id, replace(seen, event_id=seen.edit), asker):
            return replace(seen, text=seen.edited)
        return seen

    async def chain(self, room_id: str, event_id: str, asker: Asker) -> tuple[Background, ...]:
        """The message that a message answers, and what that answers in turn; oldest first."""
        found: list[Background] = []
        left = _MAX_CHARS
        for _ in range(3):
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
        """The start of a thread."""
        seen = await self._shown(room_id, event_id, asker)
        return () if seen is None else (self._said("thread", room_id, seen, limit=_MAX_CHARS),)

    async def has_bot_written(self, room_id: str, root: str) -> bool:
        """Return True if the bot has written in a thread, as far as the homeserver reports."""
        seen = await self._find(room_id, root, self._user_id)
        return seen is not None and seen.joined

    async def file(self, room_id: str, event_id: str, asker: Asker) -> FileNote | None:
        """Return what is needed to fetch an event's file; None if it has none."""
        seen = await self._shown(room_id, event_id, asker)
        return None if seen is None else seen.file

    async def relation_of(self, room_id: str, event_id: str) -> JsonObject | None:
        """Return what a message is related to, as a reply or in a thread; None if it cannot be had."""
        event = await self._look(room_id, event_id, self._user_id)
        return None if event is None else object_of(object_of(event, "content"), "m.relates_to")

    async def poll(self, room_id: str, event_id: str) -> tuple[str, Poll] | None:
        """Return who has started a poll, and the poll; None if it cannot be had."""
        event = await self._look(room_id, event_id, self._user_id)
        clear = None if event is None else self._decrypt(room_id, event)
        found = None if clear is None else poll_in(object_of(clear, "content"))
        return None if clear is None or found is None else (text_of(clear, "sender"), found)

    async def result(self, room_id: str, event_id: str, poll: Poll, ended_at_ms: Any) -> str | None:
        """Return the result of a poll of this room by the votes that can be read; None if none can be had."""
        path = f"{_RELATIONS}/rooms/{quote_path(room_id)}/relations/{quote_path(event_id)}/m.reference"
        votes: list[JsonObject] = []
        query = {"limit": "500"}
        for _ in range(4):
            page = await self._ask(path, query)
            if page is None:
                return None
            clear = (self._decrypt(room_id, one) for one in objects_of(page, "chunk"))
            votes += [one for one in clear if one is not None and one.get("type") in RESPONSES]
            if not (more := text_of(page, "next_batch")):
                break
            query = {**query, "from": more}
        return result_of(poll, votes, ended_at_ms)

    def _said(self, kind: str, room_id: str, seen: _Seen, *, limit: int) -> Background:
        room = self._rooms.get(room_id)
        name = room.names.get(seen.sender, "") if room is not None else ""
        text = seen.text if len(seen.text) <= limit else seen.text[: limit - len(_CUT)] + _CUT
        return Background(
            kind="thread" if kind == "thread" else "quoted", sender=seen.sender, name=name, text=text
        )

    async def _find(self, room_id: str, event_id: str, person: str) -> _Seen | None:
        key = (room_id, event_id)
        if key not in self._seen:
            event = await self._look(room_id, event_id, person)
            seen = None if event is None else self._read(room_id, event_id, event)
            if seen is None:
                return None
            self._seen[key] = seen
        return self._seen[key]

    async def _membership(self, room_id: str, event_id: str, person: str) -> str:
        key = (room_id, event_id, person)
        if key not in self._memberships:
            await self._look(room_id, event_id, person)
        return self._memberships.get(key, "")

    async def _look(self, room_id: str, event_id: str, person: str) -> JsonObject | None:
        """An event of this room; what ``person`` was at it is remembered."""
        # A join is its person's own event; an invitation of ours to somebody is ours.
        wanted = {"types": ["m.room.member"], "senders": sorted({person, self._user_id})}
        path = f"{CLIENT}/rooms/{quote_path(room_id)}/context/{quote_path(event_id)}"
        answer = await self._ask(path, {"limit": "0", "filter": json.dumps(wanted)})
        event = object_of(answer, "event")
        # What is in here is the server's word; that it is of this room is checked all the same.
        if answer is None or event.get("event_id") != event_id or event.get("room_id", room_id) != room_id:
            return None
        members = {
            text_of(one, "state_key"): text_of(object_of(one, "content"), "membership")
            for one in objects_of(answer, "state")
            if one.get("type") == "m.room.member"
        }
        self._memberships[room_id, event_id, person] = members.get(person, "")
        return event

    async def _ask(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject | None:
        try:
            answer = await self._homeserver.request("GET", path, query=query, timeout_s=_LIMIT_S)
        except LinkBroken as error:
            _log.info("matrix.quote_missed", error=str(error))
            return None
        return answer.body if answer.is_success else None

    def _read(self, room_id: str, event_id: str, event: JsonObject) -> _Seen | None:
        clear = self._decrypt(room_id, event)
        kind = None if clear is None else clear.get("type")
        if clear is None or kind not in ("m.room.message", "m.sticker", *STARTS):
            return None
        content = object_of(clear, "content")
        newest = bundled_edit(event)
        edit = self._decrypt(room_id, newest) if newest is not None else None
        changed = object_of(object_of(edit, "content"), "m.new_content") if edit is not None else {}
        text = _text(content)
        if not text:
            return None
        edited = _text(changed) if changed else ""
        thread = object_of(object_of(object_of(event, "unsigned"), "m.relations"), "m.thread")
        return _Seen(
            event_id,
            text_of(clear, "sender"),
            text,
            replies_to(content),
            edit=text_of(edit or {}, "event_id") if edited else "",
            edited=edited,
            joined=thread.get("current_user_participated") is True,
            file=file_in(kind, content),
        )


def _text(content: JsonObject) -> str:
    text = message_text(content)
    if isinstance(text, Skip):
        text = text_of(content, "body").strip()  # a notice may well be answered
    return text[:_MAX_CHARS]
