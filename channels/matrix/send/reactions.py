"""
Reactions: people's reactions to the bot's messages, and the bot's own, which show the progress of a question.
A mark is set when a question is taken up and replaced when it is answered or given up. Transaction ids derive
from the question, so that repetitions are the same event and an unknown id is learned by sending again. Marks
are hints in a bounded queue, tried a few times by one task. They leave the server's limit to answers: none is
sent for `MIN_INTERVAL_S` after a refusal, nor while more than two of the events that Synapse lets through are
taken.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import anyio
import structlog

from agent_core.bounded import Bounded
from agent_core.messages import Audience, InboundMessage, MessageContext, Sender, SessionKey
from channels.base import AckState
from channels.matrix.client.homeserver import CLIENT, Homeserver, HttpAnswer, LinkBroken, quote_path
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.events.inbound_events import BotIdentity, MatrixRoute, Skip, received_at
from channels.matrix.events.matrix_threads import EVENT_ID, SHARED
from channels.matrix.rooms.room_state import Rooms

SIGNS = {AckState.RECEIVED: "👀", AckState.DONE: "✅", AckState.FAILED: "⚠️"}

_MAX_WAITING = 500
_LIMIT_S = 10.0
MIN_INTERVAL_S = 60.0
"""Within it Synapse's default limit (10 events, and one more every `_EVENT_S`) is full again."""
_EVENT_S = 5.0
_log = structlog.get_logger(__name__)


def reacts_to(event: JsonObject) -> str:
    """The id of the event that a reaction is about; empty if it is none."""
    relation = object_of(object_of(event, "content"), "m.relates_to")
    target = text_of(relation, "event_id")
    good = relation.get("rel_type") == "m.annotation" and text_of(relation, "key")
    return target if good and EVENT_ID.fullmatch(target) else ""


def read_reaction(
    event: JsonObject,
    room_id: str,
    *,
    outbound: str,
    me: BotIdentity,
    rooms: Rooms,
    now: datetime,
    allowed_here: bool | None = None,
) -> InboundMessage | Skip:
    """A reaction to something of ours, which left under the key ``outbound``, as a message."""
    event_id, sender = text_of(event, "event_id"), text_of(event, "sender")
    key = text_of(object_of(object_of(event, "content"), "m.relates_to"), "key")[:100]
    if not EVENT_ID.fullmatch(event_id) or "state_key" in event:
        return Skip("malformed")
    direct = rooms.is_direct(room_id, sender)
    name = rooms.name_in(room_id, sender)
    context = MessageContext(outbound=outbound, allowed_here=allowed_here)
    return InboundMessage(
        channel=me.channel,
        account=me.user_id,
        native_id=event_id,
        session=SessionKey(me.channel, room_id) if direct else SessionKey(me.channel, room_id, SHARED),
        sender=Sender(address=sender, name=name, verified=True),
        text=key.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd"),
        received_at=received_at(event, now),
        audience=Audience.DIRECT if direct else Audience.GROUP,
        kind="reaction",
        context=context.with_route(MatrixRoute(event_id=event_id, sender=sender, direct=direct)),
    )


class AckReactions:
    """Puts reactions on questions."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver
        self._waiting: deque[tuple[str, str, AckState]] = deque()
        self._known: Bounded[tuple[str, AckState], str] = Bounded(1000)
        self._news = anyio.Event()
        self._rests_until = -math.inf
        self._left_out: deque[str] = deque(maxlen=_MAX_WAITING)
        """Questions that have no mark, and need no other one."""

    def rest(self) -> None:
        """Note that the server has refused something: leave what it takes now to answers."""
        self._rests_until = anyio.current_time() + MIN_INTERVAL_S

    def note_event(self) -> None:
        """Note that an event is sent, which counts for the server's limit."""
        now = anyio.current_time()
        rests_until = max(self._rests_until, now - 2 * _EVENT_S) + _EVENT_S
        self._rests_until = min(rests_until, now + MIN_INTERVAL_S)

    def show(self, room_id: str, event_id: str, stage: AckState) -> None:
        """Show the progress of the question with this id; returns at once."""
        if not EVENT_ID.fullmatch(event_id):
            return
        if (room_id, event_id, stage) in self._waiting:
            return
        if stage is AckState.RECEIVED and (event_id, stage) in self._known:
            return
        if stage is AckState.RECEIVED and anyio.current_time() < self._rests_until:
            self._left_out.append(event_id)
        if event_id in self._left_out:
            return
        while len(self._waiting) >= _MAX_WAITING:
            self._waiting.popleft()
        self._waiting.append((room_id, event_id, stage))
        self._news.set()

    async def run(self) -> None:
        """Send reactions until cancelled."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            while self._waiting:
                room_id, event_id, stage = self._waiting.popleft()
                later = any(one[:2] == (room_id, event_id) for one in self._waiting)
                if stage is AckState.RECEIVED and later and (event_id, stage) not in self._known:
                    continue  # it is over already; never having been marked is as good as not any more
                if await self._react(room_id, event_id, stage) and stage is not AckState.RECEIVED:
                    await self._take_back(room_id, event_id, AckState.RECEIVED)

    async def _react(self, room_id: str, event_id: str, stage: AckState) -> bool:
        relation = {"rel_type": "m.annotation", "event_id": event_id, "key": SIGNS[stage]}
        path = f"{CLIENT}/rooms/{quote_path(room_id)}/send/m.reaction/{_txn(event_id, stage)}"
        answer = await self._put(path, {"m.relates_to": relation})
        found = text_of(answer.body, "event_id") if answer is not None and answer.is_success else ""
        if found:
            self._known[event_id, stage] = found
        return bool(found)

    async def _take_back(self, room_id: str, event_id: str, stage: AckState) -> None:
        if (event_id, stage) not in self._known and not await self._react(room_id, event_id, stage):
            return
        ours = self._known.pop((event_id, stage))
        path = f"{CLIENT}/rooms/{quote_path(room_id)}/redact/{quote_path(ours)}/{_txn(event_id, stage)}r"
        await self._put(path, {})

    async def _put(self, path: str, body: Mapping[str, Any]) -> HttpAnswer | None:
        for attempt in range(4):
            while (wait_s := self._rests_until - anyio.current_time()) > 0:  # noqa: ASYNC110
                await anyio.sleep(wait_s)
            self.note_event()
            try:
                answer = await self._homeserver.request("PUT", path, body, timeout_s=_LIMIT_S)
            except LinkBroken as error:
                _log.debug("matrix.reaction_lost", error=str(error))
                await anyio.sleep(2.0**attempt)
                continue
            if answer.status == 429:
                self.rest()
                continue
            if answer.status >= 500:
                await anyio.sleep(2.0**attempt)
                continue
            return answer
        return None


def _txn(event_id: str, stage: AckState) -> str:
    return "sqm" + hashlib.sha256(f"{event_id}\0{stage}".encode()).hexdigest()[:30]
