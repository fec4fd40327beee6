"""
From an answer of ``/sync`` to messages and amendments: every event of every room, in order, gaps filled.

Theory of operation. What a room's timeline leaves out is fetched first (``gaps``), each event is uncovered if
it is encrypted and read (``inbound``), and nothing that strangers write into one event keeps its neighbours
from being read. A gap that cannot be filled holds everything up, because nothing may be lost, but not for
ever: after `GAP_TRIES` the room's gap is reported and left. One broken room must not make the account deaf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import structlog

from agent_core.messages import Amendment, InboundMessage, SessionKey
from channels.base import ChannelError, ChannelUnavailable, Inbox
from channels.matrix.client.api import Homeserver, LinkBroken
from channels.matrix.client.login import unreachable
from channels.matrix.events.inbound import Me, Skip
from channels.matrix.rooms.backfill import (
    back_to,
    check_doors,
    check_room,
    members_of,
    own_membership,
    pages_since,
    since_invited,
    was_just_joined,
)
from channels.matrix.rooms.state import JsonObject, Room, Rooms, events_of, object_of, text_of
from channels.matrix.sync.decryption import Reading
from channels.matrix.sync.downloads import Downloads
from channels.matrix.sync.event_handler import Conversation, Unfinished
from channels.matrix.sync.fetching import Fetching

__all__ = ["GAP_TRIES", "Found", "Timeline"]

GAP_TRIES = 8
_ASK_LIMIT_S = 4.0
_ASK_AGAIN_S = 60.0
_FIRST_WORDS_LIMIT_S = 8.0
_QUIET = frozenset({"no_message", "own", "redacted", "robot", "ignored_sender"})
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Found:
    """What was read, in order."""

    messages: list[InboundMessage] = field(default_factory=list)
    amendments: list[Amendment] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.messages or self.amendments)

    def add(self, other: Found) -> None:
        """What came after it."""
        self.messages += other.messages
        self.amendments += other.amendments


class Timeline:
    """
    Reads for one account.

    Args:
        homeserver: Where gaps are filled from.
        me: Who the bot is.
        rooms: What is known about rooms.
        inbox: Takes over the pages of a gap.
        conversation: Knows what events mean.
        reading: Reads what is encrypted; None: nobody does.
        downloads: Fetches the files of messages.
        fetching: Takes over what needs a server that may be slow.
    """

    def __init__(
        self,
        homeserver: Homeserver,
        *,
        me: Me,
        rooms: Rooms,
        inbox: Inbox,
        conversation: Conversation,
        downloads: Downloads,
        fetching: Fetching,
        reading: Reading | None = None,
    ) -> None:
        self._homeserver = homeserver
        self._me = me
        self._rooms = rooms
        self._inbox = inbox
        self._conversation = conversation
        self._reading = reading
        self._downloads = downloads
        self._fetching = fetching
        self._skipped: Counter[str] = Counter()
        self._secret_rooms: set[str] = set()
        self._gap_failures: Counter[str] = Counter()
        self._gaps_left = 0
        self._doors_seen: set[str] = set()
        """Rooms of which the homeserver was asked what newcomers see."""
        self._unknown: dict[str, int] = {}
        """Rooms whose members were asked for, and their revision then."""
        self._ask_again_at: dict[str, float] = {}
        """Rooms about which our server could not say anything in time."""

    def facts(self) -> dict[str, Any]:
        """For the operator."""
        return {
            "encrypted_messages_unread": self._skipped["encrypted"],
            "events_unreadable": self._skipped["malformed"],
            "gaps_left": self._gaps_left,
        }

    async def read_answer(self, body: JsonObject, since: str, known: set[str] | None) -> Found:
        """
        What an answer says; ``known`` are the rooms before it, None if that cannot be said.

        Raises:
            ChannelUnavailable: A gap cannot be filled now; the same answer has to come again.
        """
        found = Found()
        for room_id, room in object_of(object_of(body, "rooms"), "join").items():
            timeline = events_of(room, "timeline")
            section = object_of(room, "timeline")
            is_new = known is not None and room_id not in known
            just_joined = was_just_joined(timeline, self._me.user_id, is_new=is_new)
            if is_new or just_joined:
                self._conversation.joined(room_id)
            if just_joined:
                timeline = await self._first_words(room_id, timeline, text_of(section, "prev_batch"))
            elif section.get("limited") is True:
                await self.fill(room_id, since)
            found.add(await self.read(room_id, timeline, since=since))
        return found

    async def read_after(self, body: JsonObject, newest_ms: int) -> Found:
        """What an answer without a position says that is newer than ``newest_ms`` on the server's clock."""
        found = Found()
        for room_id, room in object_of(object_of(body, "rooms"), "join").items():
            section = object_of(room, "timeline")
            timeline = events_of(room, "timeline")
            self._conversation.missed(room_id)
            try:
                timeline = await back_to(
                    self._homeserver, room_id, timeline, text_of(section, "prev_batch"), newest_ms=newest_ms
                )
            except (ChannelUnavailable, LinkBroken) as error:
                self._gap_failed(room_id, error)
            found.add(await self.read(room_id, timeline))
        return found

    async def read(
        self,
        room_id: str,
        events: Sequence[JsonObject],
        *,
        since: str | None = None,
        late: str = "",
        seen_at: float | None = None,
    ) -> Found:
        """
        What these events of a room say.

        What needs a server that may be slow is left to ``fetching``, for which ``since`` says from where the
        room can be read again; without it, it is waited for. ``late``: this event's key has come late, and it
        was seen first ``seen_at``.
        """
        if self._rooms.is_unchecked(room_id) or self._rooms.lacks_members(room_id):
            await self._learn_privacy(room_id, events)
        if any(own_membership(event, text_of(event, "state_key")) == "join" for event in events):
            await self._learn_visibility(room_id)
        if self._reading is not None:
            await self._reading.meet(events)
        found = Found()
        for event in events:
            read = await self._begun(room_id, event, finish=since is None, seen_at=seen_at)
            if read is None:
                continue
            if isinstance(read, Unfinished) or (since is not None and self._fetching.takes(room_id, read)):
                place = partial(self._placed, room_id)
                self._fetching.put(room_id, read, place, since=since or "", late=late)
                late = ""
            elif isinstance(read, Amendment):
                found.amendments.append(read)
                if read.kind == "withdraw" and self._reading is not None:
                    self._reading.forget(room_id, read.native_id, read.sender)
            else:
                found.messages.append(self._placed(room_id, read))
        if late and self._reading is not None:
            self._reading.handed_over(late)
        return found

    async def _begun(
        self, room_id: str, event: JsonObject, *, finish: bool, seen_at: float | None
    ) -> InboundMessage | Amendment | Unfinished | None:
        """What an event says, with ``finish`` also what it needs; None if that is nothing for us."""
        try:
            clear = event if self._reading is None else self._reading.uncover(room_id, event)
            if clear is None:
                return None
            read = await self._conversation.begin(room_id, clear, seen_at=seen_at)
            if isinstance(read, Skip):
                self._skip(room_id, event, read.reason)
                return None
            return await read.finish() if finish and isinstance(read, Unfinished) else read
        except Exception as error:  # noqa: BLE001 - strangers write events; none may stop the others
            _log.error("matrix.event_unreadable", room=room_id, error=type(error).__name__)
            self._skipped["malformed"] += 1
            return None

    async def with_files(self, messages: Sequence[InboundMessage]) -> list[InboundMessage]:
        """The messages with their files, or with the reason why those cannot be had."""
        return await self._downloads.bring(messages)

    def _placed(self, room_id: str, message: InboundMessage) -> InboundMessage:
        """The message in its session."""
        conversation = self._rooms.conversation_of(room_id)
        if conversation == room_id:
            return message
        # The room has replaced another one, whose session goes on.
        session = SessionKey(message.session.channel, conversation, message.session.thread)
        context = {**message.context, "room": room_id}
        return message.model_copy(update={"session": session, "context": context})

    async def _first_words(
        self, room_id: str, timeline: list[JsonObject], prev_batch: str
    ) -> list[JsonObject]:
        found = None
        try:
            with anyio.move_on_after(_FIRST_WORDS_LIMIT_S):
                found = await since_invited(
                    self._homeserver, room_id, timeline, prev_batch, user_id=self._me.user_id
                )
        except (ChannelUnavailable, LinkBroken) as error:
            self._gap_failed(room_id, error)
            return timeline
        if found is None:  # the room's past is at another server, which keeps ours waiting
            _log.warning("matrix.first_words_cut", room=room_id)
            return timeline
        self._gap_failures.pop(room_id, None)
        return found

    async def fill(self, room_id: str, since: str) -> None:
        """
        Hand over what came in a room after ``since``, page by page.

        Raises:
            ChannelUnavailable: It cannot be fetched now; the same answer has to come again.
        """
        count = 0
        try:
            async for page in pages_since(self._homeserver, room_id, since):
                self._rooms.seen_in_gap(room_id, page.events, page.state)
                found = await self.read(room_id, page.events, since=since)
                count += len(found.messages)
                if found:
                    messages = await self.with_files(found.messages)
                    await self._inbox.accept(messages, None, found.amendments)
        except (ChannelUnavailable, LinkBroken) as error:
            self._gap_failed(room_id, error)
            return
        self._gap_failures.pop(room_id, None)
        _log.info("matrix.gap_filled", room=room_id, messages=count)

    async def _learn_privacy(self, room_id: str, events: Sequence[JsonObject]) -> None:
        """
        Find out whether a conversation is one of two, if somebody says something in it; while that is unknown
        it counts as a group.
        """
        room = self._rooms.get(room_id)
        if room is None or not any(
            event.get("type") in ("m.room.message", "m.room.encrypted")
            and self._conversation.is_heard(room_id, text_of(event, "sender"))
            and event.get("sender") != self._me.user_id
            for event in events
        ):
            return
        now = anyio.current_time()
        if self._ask_again_at.get(room_id, now) <= now:
            with anyio.move_on_after(_ASK_LIMIT_S) as limit:
                await self._ask_about(room)
            if not limit.cancelled_caught:
                return
            # Our server may have to wait for another one, which would keep everybody waiting.
            _log.warning("matrix.room_unchecked", room=room_id)
            self._ask_again_at[room_id] = now + _ASK_AGAIN_S
        room.member_count = None

    async def _ask_about(self, room: Room) -> None:
        room_id = room.room_id
        try:
            if self._rooms.is_unchecked(room_id):
                await check_room(self._homeserver, room)
            elif self._unknown.get(room_id) != room.revision:
                self._unknown[room_id] = room.revision  # asked once, whatever comes of it
                members = await members_of(self._homeserver, room_id)
                if members is not None:
                    room.members(members)
        except (ChannelUnavailable, LinkBroken) as error:
            if self._rooms.is_called_direct(room_id):
                self._unknown.pop(room_id, None)
                self._gap_failed(room_id, error)

    async def _learn_visibility(self, room_id: str) -> None:
        """Somebody has come: find out, once, whether they see what was said before."""
        room = self._rooms.get(room_id)
        if room is None or room.hides_past or room_id in self._doors_seen:
            return
        try:
            await check_doors(self._homeserver, room)
        except (ChannelUnavailable, LinkBroken) as error:
            self._gap_failed(room_id, error)
            return
        self._doors_seen.add(room_id)

    def _gap_failed(self, room_id: str, error: ChannelError | LinkBroken) -> None:
        """Try the whole answer again later; or, after many tries, go on without."""
        self._gap_failures[room_id] += 1
        if self._gap_failures[room_id] < GAP_TRIES:
            raise (unreachable(error) if isinstance(error, LinkBroken) else error) from error
        self._gap_failures.pop(room_id, None)
        self._conversation.missed(room_id)
        self._gaps_left += 1
        _log.error("matrix.gap_left", room=room_id, tries=GAP_TRIES, error=str(error))

    def _skip(self, room_id: str, event: JsonObject, reason: str) -> None:
        if reason in _QUIET:
            return
        self._skipped[reason] += 1
        if reason == "malformed":
            _log.warning("matrix.event_skipped", room=room_id, reason=reason)
        elif reason == "encrypted" and room_id not in self._secret_rooms:
            self._secret_rooms.add(room_id)
            _log.warning("matrix.encrypted_unread", room=room_id, sender=text_of(event, "sender"))
