"""
Backfill: fetches what a limited timeline left out, beside the receiving loop.

``/messages`` may be slow and long, so a room with a gap leaves the loop, and its later events are read after
the gap, in order. The position `FETCHING` holds the token to read again from after a crash (see
``fetching``), until the loop's next commit; repetitions are recognised by event id. A gap is reported and
left after `GAP_TRIES` between answered ``/sync`` requests. At most `_MAX_EVENTS` of a room are kept in
memory.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import anyio
import structlog

from agent_core.backoff import Backoff
from channels.base import ChannelUnavailable
from channels.matrix.client.homeserver import RETRY, LinkBroken
from channels.matrix.client.json_access import JsonObject
from channels.matrix.receive.deferred_reading import DeferredReading

GAP_TRIES = 8
_AT_ONCE = 16
_MAX_EVENTS = 100
_log = structlog.get_logger(__name__)


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
        self._slots = anyio.CapacityLimiter(_AT_ONCE)
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
        if sum(len(one.events or ()) for one in room.parts) > _MAX_EVENTS:
            room.parts = deque([_Part(room.parts[0].since, None)])

    def drop_room(self, room_id: str) -> None:
        """The bot has left this room."""
        room = self._rooms.pop(room_id, None)
        if room is not None:
            room.scope.cancel()
            self._done.add(room_id)

    def release_finished_gaps(self) -> None:
        """The finished gaps are about to be committed. Call it where positions are collected."""
        for room_id in self._done:
            self._fetching.unpin_room(room_id)
        self._done.clear()

    def note_sync(self) -> None:
        """An answer of ``/sync`` was committed."""
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
