"""
Converts an answer of ``/sync`` into messages and amendments: every event of every room, in order. Limited
timelines are backfilled outside the loop (``gaps``). No event of a stranger prevents others from being read.
If our own server cannot say what a room contains, everything waits, and after `GAP_TRIES` the room is
reported and skipped. What needs other servers is requested for all rooms in parallel, within a limit that is
shorter after a hang.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import structlog

from agent_core.messages import Amendment, InboundMessage, SessionKey
from channels.base import ChannelError, ChannelUnavailable
from channels.matrix.client.homeserver import LinkBroken, unreachable
from channels.matrix.client.json_access import JsonObject, events_of, object_of, text_of
from channels.matrix.events.edits import edit_in
from channels.matrix.events.inbound_events import MatrixRoute, Skip
from channels.matrix.receive.decryption import Decryption
from channels.matrix.receive.deferred_reading import GAP_TRIES, DeferredReading, Gaps
from channels.matrix.receive.downloads import Downloads
from channels.matrix.receive.event_handler import EventHandler, Unfinished
from channels.matrix.rooms.backfill import (
    check_doors,
    check_room,
    members_of,
    own_membership,
    pages_since,
    read_back_to,
    read_since_invitation,
    was_just_joined,
)

_ASK_LIMIT_S = 4.0
_ASK_AGAIN_S = 60.0
_HUNG_LIMIT_S = 2.0
"""For what is not the owner's, in the minute after something hung."""
_QUIET = frozenset({"no_message", "own", "redacted", "robot", "ignored_sender"})
_log = structlog.get_logger(__name__)


class RoomUnread(ChannelUnavailable):
    """One room cannot be read now. The link works; the same answer must come again, a few times at most."""


@dataclass(slots=True)
class TimelineResult:
    """The messages and amendments that were read, in order."""

    messages: list[InboundMessage] = field(default_factory=list)
    amendments: list[Amendment] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.messages or self.amendments)

    def add(self, other: TimelineResult) -> None:
        """Append later ones."""
        self.messages += other.messages
        self.amendments += other.amendments


class Timeline:
    """
    Reads the timelines of one account.

    ``inbox`` gets the pages of a gap, ``fetching`` slow requests, ``accepted`` each other message;
    ``is_owner`` conversations are always awaited.
    """

    def __init__(
        self,
        events: EventHandler,
        *,
        downloads: Downloads,
        fetching: DeferredReading,
        decryption: Decryption | None = None,
        accepted: Callable[[Sequence[InboundMessage]], None] = lambda _messages: None,
    ) -> None:
        self._homeserver = events.homeserver
        self._me = events.me
        self._rooms = events.rooms
        self._inbox = events.inbox
        self._events = events
        self._decryption = decryption
        self._downloads = downloads
        self._fetching = fetching
        self._accepted = accepted
        self._is_owner = events.is_owner
        self.gaps = Gaps(
            fetching,
            fill=self._fill,
            read=self._hand_over,
            left=self._leave_gap,
            is_urgent=self._is_the_owners,
        )
        """To be run beside the loop."""
        self._hung_at = -math.inf
        """When our server was last waited for in vain."""
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
        """Facts for the operator."""
        return {
            "encrypted_messages_unread": self._skipped["encrypted"],
            "events_unreadable": self._skipped["malformed"],
            "gaps_left": self._gaps_left,
        }

    async def read_answer(self, body: JsonObject, since: str, known: set[str] | None) -> TimelineResult:
        """Read an answer; ``known``: earlier rooms or None. Raises ChannelUnavailable to get it again."""
        joined = self._read_rooms(body)
        said = {room_id: events_of(room, "timeline") for room_id, room in joined.items()}
        entered = []
        for room_id, timeline in said.items():
            is_new = known is not None and room_id not in known
            just_joined = was_just_joined(timeline, self._me.user_id, is_new=is_new)
            if is_new or just_joined:
                self._events.note_join(room_id)
            entered += [room_id] if just_joined else []
        prev = {room_id: text_of(object_of(joined[room_id], "timeline"), "prev_batch") for room_id in entered}
        said |= await self._first_words({room_id: (said[room_id], prev[room_id]) for room_id in entered})
        await self._learn_privacy(said.items())
        if self._decryption is not None:
            await self._decryption.learn_senders(event for timeline in said.values() for event in timeline)
        gaps = [
            room_id
            for room_id, room in joined.items()
            if room_id not in prev and object_of(room, "timeline").get("limited") is True
        ]
        for room_id in gaps:
            self.gaps.add_events(room_id, since)
        found = TimelineResult()
        for room_id, events in said.items():
            if room_id in self.gaps:
                self.gaps.add_events(room_id, since, events)
            else:
                found.add(await self.read(room_id, events, since=since))
        return found

    def _read_rooms(self, body: JsonObject) -> JsonObject:
        """Return the rooms of an answer that can be read."""
        joined = object_of(object_of(body, "rooms"), "join")
        return {room_id: room for room_id, room in joined.items() if room_id not in self._rooms.unread}

    async def read_after(self, body: JsonObject, newest_ms: int) -> TimelineResult:
        """Read the part of an answer without a position that is newer than ``newest_ms`` (server time)."""
        found = TimelineResult()
        for room_id, room in self._read_rooms(body).items():
            section = object_of(room, "timeline")
            timeline = events_of(room, "timeline")
            self._events.note_missed_event(room_id)
            try:
                timeline = await read_back_to(
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
    ) -> TimelineResult:
        """
        Read these events of a room.

        Slow requests go to ``fetching``, which can read the room again from ``since``; without it they are
        awaited. ``late``: the event whose key came late, first seen at ``seen_at``.
        """
        # That they are of this room is the server's word; it is checked all the same.
        events = [event for event in events if event.get("room_id", room_id) == room_id]
        await self._learn_privacy([(room_id, events)])
        if any(own_membership(event, text_of(event, "state_key")) == "join" for event in events):
            await self._learn_visibility(room_id)
        if self._decryption is not None:
            await self._decryption.learn_senders(events)
        found = TimelineResult()
        for event in events:
            begun = await self._begun(room_id, event, finish=since is None, seen_at=seen_at)
            for read in _with_edit(begun):
                if isinstance(read, Unfinished) or (
                    since is not None and self._fetching.must_defer(room_id, read)
                ):
                    place = partial(self._placed, room_id)
                    self._fetching.enqueue(room_id, read, place, since=since or "", late=late)
                    late = ""
                elif isinstance(read, Amendment):
                    found.amendments.append(read)
                    if read.kind == "withdraw" and self._decryption is not None:
                        self._decryption.forget(room_id, read.native_id, read.sender)
                else:
                    found.messages.append(self._placed(room_id, read))
        if late and self._decryption is not None:
            self._decryption.note_acceptance(late)
        return found

    async def _begun(
        self, room_id: str, event: JsonObject, *, finish: bool, seen_at: float | None
    ) -> InboundMessage | Amendment | Unfinished | None:
        """Read an event, with ``finish`` also what it needs; None if it is not for us."""
        try:
            clear = event if self._decryption is None else self._decryption.decrypt(room_id, event)
            if clear is None:
                return None
            read = await self._events.begin(room_id, clear, seen_at=seen_at)
            if isinstance(read, Skip):
                self._skip(room_id, event, read.reason)
                return None
            if not finish or not isinstance(read, Unfinished):
                return read
            whole = await read.finish()
            return None if isinstance(whole, Skip) else whole
        except Exception as error:  # noqa: BLE001 - strangers write events; none may stop the others
            _log.error("matrix.event_unreadable", room=room_id, error=type(error).__name__)
            self._skipped["malformed"] += 1
            return None

    async def with_files(self, messages: Sequence[InboundMessage]) -> list[InboundMessage]:
        """The messages with their files, or with the reason why those cannot be had."""
        return await self._downloads.fetch_files(messages)

    def _placed(self, room_id: str, message: InboundMessage) -> InboundMessage:
        """The message in its session."""
        conversation = self._rooms.conversation_of(room_id)
        if conversation == room_id:
            return message
        # The room has replaced another one, whose session goes on.
        session = SessionKey(message.session.channel, conversation, message.session.thread)
        context = message.context.with_route(replace(message.context.read_route(MatrixRoute), room=room_id))
        return message.model_copy(update={"session": session, "context": context})

    async def _first_words(
        self, entered: Mapping[str, tuple[list[JsonObject], str]]
    ) -> dict[str, list[JsonObject]]:
        """Return what was said since the invitation, by room; ``entered`` has timelines and tokens."""
        found = {room_id: timeline for room_id, (timeline, _) in entered.items()}

        async def read_room(room_id: str) -> None:
            timeline, prev_batch = entered[room_id]
            try:
                found[room_id] = await read_since_invitation(
                    self._homeserver, room_id, timeline, prev_batch, user_id=self._me.user_id
                )
            except (ChannelUnavailable, LinkBroken) as error:
                self._gap_failed(room_id, error)
                return
            self._gap_failures.pop(room_id, None)

        limit_s = min(8.0, self._patience_s)
        # Of those that do not come the room's past is at another server, which keeps ours waiting.
        for room_id in await self._side_by_side(dict.fromkeys(entered, (read_room, limit_s))):
            _log.warning("matrix.first_words_cut", room=room_id)
        return found

    @property
    def _patience_s(self) -> float:
        """Return the seconds to wait for data that may need another server."""
        lately = anyio.current_time() - self._hung_at < _ASK_AGAIN_S
        return _HUNG_LIMIT_S if lately else math.inf

    async def _side_by_side(
        self, asks: Mapping[str, tuple[Callable[[str], Awaitable[None]], float]]
    ) -> list[str]:
        """Ask about rooms concurrently; return those without answer. Raises ChannelError to get all again."""
        late: list[str] = []
        failed: list[ChannelError] = []
        slots = anyio.CapacityLimiter(40)
        patient_first = sorted(asks.items(), key=lambda each: each[1][1], reverse=True)

        async def read_room(room_id: str, ask: Callable[[str], Awaitable[None]], limit_s: float) -> None:
            with anyio.move_on_after(limit_s) as scope:
                async with slots:
                    try:
                        await ask(room_id)
                    except ChannelError as error:
                        failed.append(error)
            if scope.cancelled_caught:
                late.append(room_id)

        async with anyio.create_task_group() as group:
            for room_id, (ask, limit_s) in patient_first:
                group.start_soon(read_room, room_id, ask, limit_s)
        if late:
            self._hung_at = anyio.current_time()
        if failed:
            raise failed[0]
        return late

    async def _fill(self, room_id: str, since: str) -> None:
        """Hand over what came in a room after ``since``, page by page; raises what a page raises."""
        count = 0
        async for page in pages_since(self._homeserver, room_id, since):
            self._rooms.seen_in_gap(room_id, page.events, page.state)
            count += await self._hand_over(room_id, page.events, since)
        _log.info("matrix.backfill_completed", room=room_id, messages=count)

    async def _hand_over(self, room_id: str, events: Sequence[JsonObject], since: str) -> int:
        """Have these events accepted by themselves; returns how many messages they are."""
        found = await self.read(room_id, events, since=since)
        if found:
            messages = await self.with_files(found.messages)
            await self._inbox.accept(messages, None, found.amendments)
            self._accepted(messages)
        return len(found.messages)

    def _is_the_owners(self, room_id: str) -> bool:
        room = self._rooms.get(room_id)
        return room is not None and any(self._is_owner(one) for one in room.joined)

    async def _learn_privacy(self, said: Iterable[tuple[str, Sequence[JsonObject]]]) -> None:
        """Find out if conversations with news have two people; until then they count as groups."""
        asks: dict[str, tuple[Callable[[str], Awaitable[None]], float]] = {}
        now, limit_s = anyio.current_time(), min(_ASK_LIMIT_S, self._patience_s)
        for room_id, events in said:
            room = self._rooms.get(room_id)
            open_question = self._rooms.is_unchecked(room_id) or self._rooms.is_size_unknown(room_id)
            senders = {
                text_of(event, "sender") for event in events if open_question and "state_key" not in event
            } - {self._me.user_id}
            if room is None or not any(self._events.rules.is_context(room_id, one) for one in senders):
                continue
            if self._ask_again_at.get(room_id, now) > now:
                room.member_count = None
                continue
            owners = any(self._is_owner(one) for one in senders)
            asks[room_id] = (self._ask_about, _ASK_LIMIT_S if owners else limit_s)
        # Of those that do not come our server may have to wait for another one.
        for room_id in await self._side_by_side(asks):
            _log.warning("matrix.room_unchecked", room=room_id)
            self._ask_again_at[room_id] = anyio.current_time() + _ASK_AGAIN_S
            if (room := self._rooms.get(room_id)) is not None:
                room.member_count = None

    async def _ask_about(self, room_id: str) -> None:
        room = self._rooms.get(room_id)
        if room is None:
            return
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
        if self._ask_again_at.get(room_id, 0.0) > anyio.current_time():
            self._events.note_missed_event(room_id)  # too little is shown rather than too much
            return
        failed: ChannelError | LinkBroken | None = None
        with anyio.move_on_after(min(_ASK_LIMIT_S, self._patience_s)) as limit:
            try:
                await check_doors(self._homeserver, room)
                self._doors_seen.add(room_id)
            except (ChannelUnavailable, LinkBroken) as error:
                failed = error
        if limit.cancelled_caught:
            self._hung_at = anyio.current_time()
            failed = LinkBroken("the homeserver does not say who may join a room", maybe_taken=False)
        if failed is not None:
            self._gap_failed(room_id, failed)
            self._ask_again_at[room_id] = anyio.current_time() + _ASK_AGAIN_S

    def _gap_failed(self, room_id: str, error: ChannelError | LinkBroken) -> None:
        """Try the whole answer again later; or, after many tries, go on without."""
        self._gap_failures[room_id] += 1
        if self._gap_failures[room_id] < GAP_TRIES:
            known = unreachable(error) if isinstance(error, LinkBroken) else error
            if isinstance(known, ChannelUnavailable):
                known = RoomUnread(str(known), retry_after_s=known.retry_after_s, **known.fields)
            raise known from error
        self._gap_failures.pop(room_id, None)
        self._leave_gap(room_id, error)

    def _leave_gap(self, room_id: str, error: Exception) -> None:
        self._events.note_missed_event(room_id)
        self._gaps_left += 1
        _log.error("matrix.backfill_abandoned", room=room_id, tries=GAP_TRIES, error=str(error))

    def _skip(self, room_id: str, event: JsonObject, reason: str) -> None:
        if reason in _QUIET:
            return
        self._skipped[reason] += 1
        if reason == "malformed":
            _log.warning("matrix.event_skipped", room=room_id, reason=reason)
        elif reason == "encrypted" and room_id not in self._secret_rooms:
            self._secret_rooms.add(room_id)
            _log.warning("matrix.encrypted_unread", room=room_id, sender=text_of(event, "sender"))


def _with_edit(
    read: InboundMessage | Amendment | Unfinished | None,
) -> Sequence[InboundMessage | Amendment | Unfinished]:
    """Return what was read; a question that an edit made also as that edit."""
    if read is None or isinstance(read, Amendment):
        return [] if read is None else [read]
    return [read, *edit_in(read.message if isinstance(read, Unfinished) else read)]
