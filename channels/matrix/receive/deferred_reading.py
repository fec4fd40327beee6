"""
Fetches files, quoted events and what a limited timeline left out, beside the receiving loop, because a server
can be slow. Later messages of the same sender, or of a room with a gap, wait so that the order stays. The
position `FETCHING` holds the token from which a room is read again after a crash; repetitions are recognised
by event id. Slots are limited per sender and server; redactions never wait.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import anyio
import structlog

from agent_core.backoff import Backoff
from agent_core.messages import Amendment, InboundMessage
from channels.attachments import AttachmentsUnavailable
from channels.base import ChannelUnavailable, Inbox
from channels.matrix.client.homeserver import RETRY, LinkBroken
from channels.matrix.client.json_access import JsonObject
from channels.matrix.events.inbound_events import Skip
from channels.matrix.receive.downloads import Downloads
from channels.matrix.receive.event_handler import Unfinished

FETCHING = "fetching"
_AT_ONCE = 32
_AT_ONCE_PER_SERVER = _AT_ONCE // 2
_MAX_WAITING = 200
_log = structlog.get_logger(__name__)
Read = InboundMessage | Amendment | Unfinished
Place = Callable[[InboundMessage], InboundMessage]


@dataclass(eq=False, slots=True)
class _Item:
    read: Read
    placed: Place
    """Puts the message into its session."""
    late: str = ""
    """The message's key had come late: this event is waited for until the message is accepted."""


@dataclass(eq=False, slots=True)
class _SenderQueue:
    items: deque[_Item] = field(default_factory=deque)
    scope: anyio.CancelScope | None = None
    """Of what is being fetched at this moment."""
    hurried: bool = False
    """Nothing more is fetched."""
    dropped: bool = False
    """The bot has left the room."""


class DeferredReading:
    """
    The fetch queues of one account.

    ``is_gone``: an event was withdrawn; ``accepted`` is called per message, ``late`` per event with a late
    key, returning what to commit.
    """

    def __init__(
        self,
        inbox: Inbox,
        downloads: Downloads,
        *,
        is_gone: Callable[[str, str, str], bool],
        accepted: Callable[[InboundMessage], None],
        late: Callable[[str], Mapping[str, str]],
        is_owner: Callable[[str], bool] = lambda _user: False,
    ) -> None:
        self._inbox = inbox
        self._downloads = downloads
        self._is_gone = is_gone
        self._accepted = accepted
        self._late = late
        self._is_owner = is_owner
        self.commit = anyio.Lock()
        """Held while positions are put together and committed: no older ones overtake them."""
        self._queues: dict[tuple[str, str], _SenderQueue] = {}
        self._idle: list[tuple[str, str]] = []
        """Lanes that nobody works off yet."""
        self._since: dict[str, str] = {}
        """By room, from where it is to be read again."""
        self._held: set[str] = set()
        """Rooms that are being read by somebody else."""
        self._kept = json.dumps({})
        self._slots = anyio.CapacityLimiter(_AT_ONCE)
        self._shares: dict[str, anyio.CapacityLimiter] = {}
        """Of people, and of the servers that they are at."""
        self._news = anyio.Event()

    def load(self, text: str | None) -> dict[str, str]:
        """Load what an earlier run committed: the rooms to read again, and from where."""
        try:
            kept = json.loads(text or "{}")
            self._since = {room: since for room, since in kept.items() if isinstance(since, str) and since}
        except (ValueError, AttributeError) as error:
            _log.error("matrix.fetching_unreadable", error=type(error).__name__)
        self._kept = json.dumps(self._since)
        return dict(self._since)

    def note_reread(self, room_id: str) -> None:
        """Note that a room's messages of an earlier run were read."""
        if room_id not in self._held and not any(room == room_id for room, _ in self._queues):
            self._since.pop(room_id, None)

    def pin_room(self, room_id: str, since: str) -> None:
        """Until `release`, a room is to be read again from ``since`` on, whatever becomes of its queues."""
        self._since.setdefault(room_id, since)
        self._held.add(room_id)

    def unpin_room(self, room_id: str) -> None:
        """Note that the reason of `hold` is over: its messages are committed."""
        self._held.discard(room_id)
        self.note_reread(room_id)

    def position(self) -> dict[str, str]:
        """The text to commit; empty if nothing has changed. Call it with `commit` held."""
        text = json.dumps(self._since)
        if text == self._kept:
            return {}
        self._kept = text
        return {FETCHING: text}

    def must_defer(self, room_id: str, read: Read) -> bool:
        """Return True if a message must wait for a download or for its sender's earlier messages."""
        if isinstance(read, Unfinished):
            return True
        if isinstance(read, Amendment):
            return read.kind == "replace" and (room_id, read.sender) in self._queues
        waits = (room_id, read.sender.address) in self._queues
        return read.kind == "message" and (waits or self._downloads.needs_fetch(read))

    def enqueue(self, room_id: str, read: Read, placed: Place, *, since: str, late: str = "") -> None:
        """Queue this message; after a loss the room is read again from ``since`` on."""
        sender = read.sender if isinstance(read, Amendment) else _message(read).sender.address
        if not late:
            self._since.setdefault(room_id, since)
        key = (room_id, sender)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _SenderQueue()
            self._idle.append(key)
            self._news.set()
        queue.items.append(_Item(read, placed, late))
        if len(queue.items) > _MAX_WAITING and not queue.hurried:
            _log.warning("matrix.fetching_hurried", room=room_id, sender=sender, waiting=len(queue.items))
            queue.hurried = True
            if queue.scope is not None:
                queue.scope.cancel()

    def drop_room(self, room_id: str) -> None:
        """Note that the bot has left this room: nothing of it is answered."""
        for (room, _), queue in self._queues.items():
            if room == room_id:
                queue.dropped = queue.hurried = True
                if queue.scope is not None:
                    queue.scope.cancel()

    async def run(self) -> None:
        """Work queues off until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                while self._idle:
                    tasks.start_soon(self._work_off, *self._idle.pop(0))
                await self._news.wait()
                self._news = anyio.Event()

    async def _work_off(self, room_id: str, sender: str) -> None:
        queue = self._queues[room_id, sender]
        backoff = Backoff(RETRY)
        while self._queues.get((room_id, sender)) is queue:
            try:
                await self._work_on(room_id, sender, queue)
            except AttachmentsUnavailable as error:
                _log.error("matrix.file_blocked", error=str(error), room=room_id)
                with anyio.CancelScope() as queue.scope:
                    if not queue.hurried:
                        await anyio.sleep(backoff.note_failure(random=random.random()))
                queue.scope = None

    async def _work_on(self, room_id: str, sender: str, queue: _SenderQueue) -> None:
        """Work off a queue until it is empty. Raises AttachmentsUnavailable."""
        server = sender.partition(":")[2]
        try:
            async with AsyncExitStack() as places:
                await places.enter_async_context(self._share(sender, 2))
                if not self._is_owner(sender):
                    await places.enter_async_context(self._share(server, _AT_ONCE_PER_SERVER))
                    await places.enter_async_context(self._slots)
                while self._queues.get((room_id, sender)) is queue:
                    item = queue.items[0]
                    read = await self._fetched(queue, item)
                    await self._hand_over(room_id, sender, queue, item, read)
        finally:
            self._shares = {one: share for one, share in self._shares.items() if _is_used(share)}

    def _share(self, of: str, queues: int) -> anyio.CapacityLimiter:
        return self._shares.setdefault(of, anyio.CapacityLimiter(queues))

    async def _fetched(self, queue: _SenderQueue, item: _Item) -> InboundMessage | Amendment | Skip:
        """Return what was read, with everything it needs that can be fetched."""
        if isinstance(item.read, Amendment):
            return item.read
        read: InboundMessage | Skip = _message(item.read)
        if isinstance(item.read, Unfinished):
            read = (
                None if queue.hurried else await self._quoted(queue, item.read.finish)
            ) or item.read.without
        if isinstance(read, Skip):
            return read
        item.read = message = read  # it is not asked for again
        brought = None
        if not queue.hurried:  # it may have become so meanwhile
            with anyio.CancelScope() as queue.scope:
                brought = await self._downloads.fetch_file(message)
        queue.scope = None
        if brought is None:
            brought = self._downloads.without_file(message)
        return item.placed(brought)

    async def _quoted(
        self, queue: _SenderQueue, finish: Callable[[], Awaitable[InboundMessage | Skip]]
    ) -> InboundMessage | Skip | None:
        message = None
        try:
            with anyio.move_on_after(12.0) as queue.scope:
                message = await finish()
        except Exception as error:  # noqa: BLE001 - strangers write events; none may stop the others
            _log.error("matrix.event_unreadable", error=type(error).__name__)
        return message

    async def _hand_over(
        self,
        room_id: str,
        sender: str,
        queue: _SenderQueue,
        item: _Item,
        read: InboundMessage | Amendment | Skip,
    ) -> None:
        async with self.commit:
            queue.items.popleft()
            if not queue.items:
                del self._queues[room_id, sender]
                self.note_reread(room_id)
            gone = isinstance(read, InboundMessage) and self._is_gone(
                room_id, read.native_id, read.sender.address
            )
            taken = [] if gone or queue.dropped else [read]
            messages = [one for one in taken if isinstance(one, InboundMessage)]
            amendments = [one for one in taken if isinstance(one, Amendment)]
            positions = {**self.position(), **(self._late(item.late) if item.late else {})}
            if messages or amendments or positions:
                await self._inbox.accept(messages, positions or None, amendments)
        for message in messages:
            self._accepted(message)


def _is_used(share: anyio.CapacityLimiter) -> bool:
    return share.borrowed_tokens > 0 or share.statistics().tasks_waiting > 0


def _message(read: InboundMessage | Unfinished) -> InboundMessage:
    return read.message if isinstance(read, Unfinished) else read


GAP_TRIES = 8


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a room that was not read yet: these events, or (None) all that came after a token."""

    since: str
    events: Sequence[JsonObject] | None


@dataclass(eq=False, slots=True)
class _Room:
    parts: deque[_Part] = field(default_factory=deque)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Gaps:
    """
    The rooms of one account that have gaps.

    ``fetching`` stores where to read again; ``fill`` reads a room from a token, ``read`` given events;
    ``left`` is called with an abandoned gap's error.
    """

    def __init__(
        self,
        fetching: DeferredReading,
        *,
        fill: Callable[[str, str], Awaitable[None]],
        read: Callable[[str, Sequence[JsonObject], str], Awaitable[object]],
        left: Callable[[str, Exception], None],
        is_urgent: Callable[[str], bool] = lambda _room: False,
    ) -> None:
        self._fetching = fetching
        self._fill = fill
        self._read = read
        self._left = left
        self._is_urgent = is_urgent
        self._rooms: dict[str, _Room] = {}
        self._idle: list[str] = []
        """Rooms that nobody works off yet."""
        self._done: set[str] = set()
        """Rooms that were read, which is not committed yet."""
        self._answers = 0
        self._slots = anyio.CapacityLimiter(16)
        self._news = anyio.Event()

    def __contains__(self, room_id: str) -> bool:
        """Return True if the room's messages are deferred until its gap is filled."""
        return room_id in self._rooms

    def add_events(self, room_id: str, since: str, events: Sequence[JsonObject] | None = None) -> None:
        """Take over these events of a room, or without them all that came after ``since``."""
        room = self._rooms.get(room_id)
        if room is None:
            room = self._rooms[room_id] = _Room()
            self._idle.append(room_id)
            self._done.discard(room_id)
            self._fetching.pin_room(room_id, since)
        if events is None and any(one.events is None for one in room.parts):
            return  # that one, when its turn comes, reads all there is
        room.parts.append(_Part(since, events))
        if sum(len(one.events or ()) for one in room.parts) > 100:
            room.parts = deque([_Part(room.parts[0].since, None)])

    def drop_room(self, room_id: str) -> None:
        """Note that the bot has left this room."""
        room = self._rooms.pop(room_id, None)
        if room is not None:
            room.scope.cancel()
            self._done.add(room_id)

    def release_finished_gaps(self) -> None:
        """Note that the finished gaps are about to be committed. Call it where positions are collected."""
        for room_id in self._done:
            self._fetching.unpin_room(room_id)
        self._done.clear()

    def note_sync(self) -> None:
        """Note that an answer of ``/sync`` was committed."""
        self._answers += 1
        self._news.set()

    async def run(self) -> None:
        """Fill gaps until cancelled."""
        async with anyio.create_task_group() as rooms:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                while self._idle:
                    room_id = self._idle.pop(0)
                    if room_id in self._rooms:
                        rooms.start_soon(self._work_off, room_id, self._rooms[room_id])

    async def _work_off(self, room_id: str, room: _Room) -> None:
        with room.scope:
            while room.parts:
                await self._read_part(room_id, room.parts.popleft())
            if self._rooms.get(room_id) is room:
                del self._rooms[room_id]
                self._done.add(room_id)

    async def _read_part(self, room_id: str, part: _Part) -> None:
        backoff, tries, counted = Backoff(RETRY), 0, 0
        while True:
            try:
                async with AsyncExitStack() as slots:
                    if not self._is_urgent(room_id):
                        await slots.enter_async_context(self._slots)
                    if part.events is None:
                        await self._fill(room_id, part.since)
                    else:
                        await self._read(room_id, part.events, part.since)
            except (ChannelUnavailable, LinkBroken) as error:
                tries += counted != self._answers
                counted = self._answers
                if tries >= GAP_TRIES and part.events is None:
                    self._left(room_id, error)
                    return
                _log.info("matrix.backfill_deferred", room=room_id, error=str(error), tries=tries)
                await anyio.sleep(backoff.note_failure(random=random.random()))
            else:
                return
