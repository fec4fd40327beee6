"""
The receiving loop: one ``/sync`` after the other, each committed before the next is asked for.

Theory of operation. `Inbox.accept` takes the messages of an answer together with the token that follows it
(`POSITION`), so a crash at any point repeats an answer and never skips one; what is repeated is recognised
by its event id. The very first start has no token: it takes one and leaves everything older alone. Every
later start resumes from the token and asks for the full state, because the registry of rooms is not kept.

Failures before the first success of a run end the run: the supervisor knows how to wait. Afterwards the
loop waits by itself, 1 s doubled up to 30 s with jitter, and gives up after `GIVE_UP_S`. nio's own loop does
none of this (facts B2 to B7), which is why it is not used.

A gap that cannot be filled holds everything up, because nothing may be lost, but not for ever: after
`GAP_TRIES` the room's gap is reported and left. One broken room must not make the account deaf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio
import structlog

from agent_core.messages import InboundMessage
from channels.base import ChannelError, ChannelUnavailable, Clock, Inbox, LinkState
from channels.matrix.crypto import CRYPTO
from channels.matrix.gaps import members_of, pages_since, since_invited, was_just_joined
from channels.matrix.hints import Hints
from channels.matrix.inbound import Me, Skip, read_event
from channels.matrix.invites import Invites
from channels.matrix.reading import Reading
from channels.matrix.rooms import JsonObject, Rooms, events_of, object_of, text_of
from channels.matrix.session import Login, unreachable
from channels.matrix.waiting import WAITING
from channels.matrix.wire import Answer, Homeserver, LinkBroken, Pauses, SyncRequest, problem

__all__ = ["GAP_TRIES", "GIVE_UP_S", "OPEN_INVITES", "POSITION", "Receiver"]

POSITION = "next_batch"
OPEN_INVITES = "invites"
GIVE_UP_S = 300.0
GAP_TRIES = 8
_LONG_POLL_S = 30.0
_CURRENT_S = 75.0
_TIMELINE = 50
_TALK = ("m.room.message", "m.room.encrypted")
_QUIET = frozenset({"no_message", "own", "redacted"})
_log = structlog.get_logger(__name__)


class Receiver:
    """
    Receives for one account.

    Args:
        homeserver, login: The connection.
        me: Who the bot is.
        rooms, invites, hints: What it keeps up to date.
        inbox: Where messages go.
        clock: For ages and the time of reception.
        on_up: Called whenever the link has come up.
        reading: Reads what is encrypted; None: nobody does.
        read_receipts: Whether accepted messages are marked as read.
    """

    def __init__(
        self,
        homeserver: Homeserver,
        login: Login,
        *,
        me: Me,
        rooms: Rooms,
        invites: Invites,
        hints: Hints,
        inbox: Inbox,
        clock: Clock,
        on_up: Callable[[], None],
        reading: Reading | None = None,
        read_receipts: bool = True,
    ) -> None:
        self._homeserver = homeserver
        self._login = login
        self._me = me
        self._rooms = rooms
        self._invites = invites
        self._hints = hints
        self._inbox = inbox
        self._clock = clock
        self._on_up = on_up
        self._reading = reading
        self._read_receipts = read_receipts
        self._pauses = Pauses()
        self._up = False
        self._answered_at: float | None = None
        self._skipped: Counter[str] = Counter()
        self._secret_rooms: set[str] = set()
        self._gap_failures: Counter[str] = Counter()
        self._gaps_left = 0
        self._reported: dict[str, Any] | None = None

    @property
    def is_current(self) -> bool:
        """Whether what is known about rooms is as fresh as a working link keeps it."""
        age_s = self._clock.monotonic() - (self._answered_at or 0.0)
        return self._answered_at is not None and self._pauses.failures == 0 and age_s < _CURRENT_S

    async def run(self) -> None:
        """Receive until cancelled, or raise the `ChannelError` that ended it."""
        since = await self._inbox.position(POSITION)
        self._invites.load(await self._inbox.position(OPEN_INVITES))
        if self._reading is not None:
            self._reading.start(await self._inbox.position(CRYPTO), await self._inbox.position(WAITING))
        self._rooms.forget()
        full_state = True
        failing_since: float | None = None
        while True:
            try:
                since = await self._once(since, full_state=full_state)
            except ChannelUnavailable as error:
                now = self._clock.monotonic()
                failing_since = now if failing_since is None else failing_since
                if not self._up or now - failing_since > GIVE_UP_S:
                    raise
                await self._pause(error)
            else:
                full_state = False
                failing_since = None

    async def _once(self, since: str | None, *, full_state: bool) -> str:
        """Fetch one answer, have it accepted, and return the token that follows it."""
        request = SyncRequest(
            since,
            full_state=full_state and since is not None,
            wait_s=0.0 if full_state else _LONG_POLL_S,
            timeline_limit=1 if since is None else _TIMELINE,
        )
        if self._reading is not None:
            await self._reading.prepare()
        answer = await self._fetch(request)
        following = text_of(answer.body, POSITION)
        known = None if full_state else {room.room_id for room in self._rooms}
        for room_id in self._rooms.update(answer.body):
            _log.info("matrix.room_left", room=room_id)
        invites_changed = self._invites.learn(answer.body)
        late = await self._receive_keys(answer.body)
        messages = [] if since is None else late + await self._messages(answer.body, since, known)
        positions = {POSITION: following}
        if self._reading is not None:
            positions |= self._reading.positions()
        if invites_changed:
            positions[OPEN_INVITES] = self._invites.dump()
        await self._inbox.accept(messages, positions)
        self._invites.wake()
        self._mark_read(messages)
        self._answered_at = self._clock.monotonic()
        self._pauses.reset()
        if self._reading is not None:
            await self._reading.committed()
        self._report_up()
        return following

    async def _receive_keys(self, body: JsonObject) -> list[InboundMessage]:
        """Learn what came about keys; returns earlier messages that it has made readable."""
        if self._reading is None:
            return []
        await self._reading.prepare()  # a login meanwhile may have brought another device
        self._reading.receive(body)
        late = [await self._read(room_id, [event]) for room_id, event in await self._reading.late()]
        return [message for messages in late for message in messages]

    async def _fetch(self, request: SyncRequest) -> Answer:
        while True:
            used = self._homeserver.credentials
            if used is None:
                raise ChannelUnavailable("not logged in")
            try:
                answer = await self._homeserver.sync(request)
            except LinkBroken as error:
                raise unreachable(error) from error
            if answer.token_refused:
                # It ends: `Login.renew` raises when it is asked too often in a row.
                await self._login.renew(used, answer)
                continue
            if not answer.good or not text_of(answer.body, POSITION):
                raise problem(answer)
            self._login.works()
            return answer

    async def _pause(self, error: ChannelUnavailable) -> None:
        pause_s = self._pauses.next_s(at_least_s=error.retry_after_s)
        _log.warning("matrix.sync_failed", error=str(error), retry_in_s=round(pause_s, 1))
        if self._pauses.failures >= 2:
            # A single failure is no news, and reporting it would hold back what could be sent.
            self._reported = None
            self._inbox.report(LinkState.DOWN, str(error))
        await anyio.sleep(pause_s)

    # ── from an answer to messages ──
    async def _messages(self, body: JsonObject, since: str, known: set[str] | None) -> list[InboundMessage]:
        """The messages of an answer; ``known`` are the rooms before it, None if that cannot be said."""
        messages: list[InboundMessage] = []
        for room_id, room in object_of(object_of(body, "rooms"), "join").items():
            timeline = events_of(room, "timeline")
            section = object_of(room, "timeline")
            is_new = known is not None and room_id not in known
            if was_just_joined(timeline, self._me.user_id, is_new=is_new):
                timeline = await self._first_words(room_id, timeline, text_of(section, "prev_batch"))
            elif section.get("limited") is True:
                await self._fill_gap(room_id, since)
            messages += await self._read(room_id, timeline)
        return messages

    async def _first_words(
        self, room_id: str, timeline: list[JsonObject], prev_batch: str
    ) -> list[JsonObject]:
        try:
            found = await since_invited(
                self._homeserver, room_id, timeline, prev_batch, user_id=self._me.user_id
            )
        except (ChannelUnavailable, LinkBroken) as error:
            self._gap_failed(room_id, error)
            return timeline
        self._gap_failures.pop(room_id, None)
        return found

    async def _fill_gap(self, room_id: str, since: str) -> None:
        """Hand over what came between the committed position and the timeline, page by page."""
        count = 0
        try:
            async for page in pages_since(self._homeserver, room_id, since):
                self._rooms.seen_in_gap(room_id, page.events, page.state)
                messages = await self._read(room_id, page.events)
                count += len(messages)
                if messages:
                    await self._inbox.accept(messages)
        except (ChannelUnavailable, LinkBroken) as error:
            self._gap_failed(room_id, error)
            return
        self._gap_failures.pop(room_id, None)
        _log.info("matrix.gap_filled", room=room_id, messages=count)

    async def _learn_members(self, room_id: str) -> None:
        """Find out whether a conversation is one of two; while that is unknown it counts as a group."""
        try:
            members = await members_of(self._homeserver, room_id)
        except (ChannelUnavailable, LinkBroken) as error:
            self._gap_failed(room_id, error)
            return
        room = self._rooms.get(room_id)
        if room is not None and members is not None:
            room.members(members)

    def _gap_failed(self, room_id: str, error: ChannelError | LinkBroken) -> None:
        """Try the whole answer again later; or, after many tries, go on without."""
        self._gap_failures[room_id] += 1
        if self._gap_failures[room_id] < GAP_TRIES:
            raise (unreachable(error) if isinstance(error, LinkBroken) else error) from error
        self._gap_failures.pop(room_id, None)
        self._gaps_left += 1
        _log.error("matrix.gap_left", room=room_id, tries=GAP_TRIES, error=str(error))

    async def _read(self, room_id: str, events: Sequence[JsonObject]) -> list[InboundMessage]:
        if self._rooms.lacks_members(room_id) and any(
            event.get("type") in ("m.room.message", "m.room.encrypted")
            and event.get("sender") != self._me.user_id
            for event in events
        ):
            await self._learn_members(room_id)
        now = self._clock.now()
        messages = []
        for event in events:
            try:
                clear = event if self._reading is None else self._reading.uncover(room_id, event)
                if clear is None:
                    continue
                read = read_event(clear, room_id, me=self._me, rooms=self._rooms, now=now)
            except Exception as error:  # noqa: BLE001 - strangers write events; none may stop the others
                _log.error("matrix.event_unreadable", room=room_id, error=type(error).__name__)
                self._skipped["malformed"] += 1
                continue
            if isinstance(read, Skip):
                self._skip(room_id, event, read.reason)
            else:
                messages.append(await self._addressed_by_reply(read))
        return messages

    async def _addressed_by_reply(self, message: InboundMessage) -> InboundMessage:
        """An answer to the bot's own message is meant for it, mentioned or not."""
        answered = message.context.get("in_reply_to")
        if message.addressed or self._me.group_policy != "mention" or not isinstance(answered, str):
            return message
        if await self._inbox.delivered_id(answered) is None:
            return message
        return message.model_copy(update={"addressed": True})

    def _skip(self, room_id: str, event: JsonObject, reason: str) -> None:
        if reason in _QUIET:
            return
        self._skipped[reason] += 1
        if reason == "malformed":
            _log.warning("matrix.event_skipped", room=room_id, reason=reason)
        elif reason == "encrypted" and room_id not in self._secret_rooms:
            self._secret_rooms.add(room_id)
            _log.warning("matrix.encrypted_unread", room=room_id, sender=text_of(event, "sender"))

    def _mark_read(self, messages: Iterable[InboundMessage]) -> None:
        if self._read_receipts:
            for message in messages:
                if message.addressed:
                    self._hints.read(message.session.conversation, message.native_id)

    def _report_up(self) -> None:
        facts = {
            "rooms": len(self._rooms),
            "encrypted_rooms": sum(1 for room in self._rooms if room.encrypted),
            "encrypted_messages_unread": self._skipped["encrypted"],
            "events_unreadable": self._skipped["malformed"],
            "gaps_left": self._gaps_left,
        }
        if self._reading is not None:
            facts |= self._reading.facts()
        if facts == self._reported and self._up:
            return
        self._up = True
        self._on_up()
        self._reported = facts
        self._inbox.report(LinkState.UP, "", **facts)
