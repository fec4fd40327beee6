"""
The receiving loop: one ``/sync`` after the other; each is committed before the next request. Messages and the
next token (`POSITION`) are accepted together, so a crash repeats an answer and never skips one. The first
start ignores older messages; later ones ask for the full state. After a server's restore the token is
unknown: all rooms are read, but only events younger than `NEWEST`. Failures before a run's first success end
the run; later the loop retries, after at most 1.75 s in the first minute and then 30 s, until `GIVE_UP_S`,
with a short poll first, as deliveries wait for it. Too long answers are requested smaller or cut (`_LESS`),
as any server can fill an invitation.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import anyio
import structlog

from agent_core.backoff import Backoff, BackoffPolicy
from agent_core.messages import Amendment, Audience, InboundMessage, MessageContext, Sender, SessionKey
from channels.attachments import AttachmentStore
from channels.base import ChannelClock, ChannelUnavailable, LinkState
from channels.matrix.client.homeserver import (
    AnswerTooLong,
    HttpAnswer,
    LinkBroken,
    SyncRequest,
    channel_error,
    unreachable,
)
from channels.matrix.client.json_access import JsonObject, events_of, object_of, text_of
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.crypto.encryption_engine import CRYPTO
from channels.matrix.crypto.undecryptable import WAITING
from channels.matrix.events.inbound_events import MatrixRoute
from channels.matrix.receive.decryption import Decryption
from channels.matrix.receive.deferred_reading import FETCHING, DeferredReading
from channels.matrix.receive.downloads import Downloads
from channels.matrix.receive.event_handler import EventHandler
from channels.matrix.receive.timeline import RoomUnread, Timeline, TimelineResult
from channels.matrix.rooms.backfill import sent_at_ms
from channels.matrix.rooms.follow_upgrades import UpgradeFollower
from channels.matrix.rooms.invites import Invites
from channels.matrix.rooms.join_times import JOININGS
from channels.matrix.send.typing_and_receipts import TypingAndReceipts

SYNC_RETRY = BackoffPolicy(first_s=1.0, cap_s=30.0, factor=1.75, jitter=0.2, early_cap_s=1.75)


POSITION = "next_batch"
NEWEST = "newest_ms"
OPEN_INVITES = "invites"
UPGRADES = "upgrades"
ENCRYPTED = "encrypted_rooms"
GIVE_UP_S = 300.0
_TIMELINE = 50
_LESS = {50: (10, 4 * 2**20), 10: (2, 2**20), 2: (1, 2**16)}
"""
By how many events of a room were asked for: how many are asked for next, and how long one room or
invitation may be. Events that are left out that way are read as a gap.
"""
_POSITION_CODES = frozenset({"M_UNKNOWN", "M_UNKNOWN_POS", "M_INVALID_PARAM", "M_BAD_PARAM"})
_STREAM_TOKEN = re.compile(r"s(\d{1,18})_")
_log = structlog.get_logger(__name__)


class _PositionLost(Exception):
    """The homeserver does not know the position; the text says how that was seen."""


class SyncReceiver:
    """
    Receives the messages of one account.

    Args:
        events: Interprets what arrives; its homeserver, rooms and inbox are those of the account.
    invites, typing_receipts: The state it updates.
        on_up: Called when the link comes up.
        decryption: None: encrypted events are not read.
        attachments: The store of files, or None.
    """

    def __init__(
        self,
        login: MatrixLogin,
        events: EventHandler,
        *,
        invites: Invites,
        typing_receipts: TypingAndReceipts,
        link: SyncLink,
        on_up: Callable[[], None],
        decryption: Decryption | None = None,
        attachments: AttachmentStore | None = None,
    ) -> None:
        self._homeserver = events.homeserver
        self._login = login
        self._channel = events.me.channel
        self._me = events.me
        self._rooms = events.rooms
        self._invites = invites
        self._typing_receipts = typing_receipts
        self._inbox = events.inbox
        self._clock = events.clock
        self._link = link
        self._on_up = on_up
        self._decryption = decryption
        self._events = events
        downloads = Downloads(events.homeserver, attachments, allows=events.rules.admits)
        self.fetching = DeferredReading(
            events.inbox,
            downloads,
            is_gone=events.is_gone,
            accepted=lambda message: self._mark_read([message]),
            late=lambda event_id: decryption.note_acceptance(event_id) if decryption is not None else {},
            is_owner=events.is_owner,
        )
        """To be run beside `run`."""
        self._again: dict[str, str] = {}
        """Rooms of which something was left, and from where they are to be read again."""
        self._cut_out = False
        """Whether the newest answer has left out rooms."""
        self._timeline = Timeline(
            events,
            decryption=decryption,
            downloads=downloads,
            fetching=self.fetching,
            accepted=self._mark_read,
        )
        self.gaps = self._timeline.gaps
        """To be run beside `run`, too."""
        self._following = UpgradeFollower(events.rooms, invites, may_invite=events.rules.admits)
        self._up = False
        self.heard_at: datetime | None = None
        """When the homeserver has last answered well."""
        self._newest_ms = 0
        self._lost = ""
        self._secret = 0
        """How many rooms are known as encrypted in the position that was committed last."""
        self._reported: dict[str, Any] | None = None

    async def run(self) -> None:
        """Receive until cancelled, or raise the `ChannelError` that ended it."""
        since = await self._inbox.position(POSITION)
        newest = await self._inbox.position(NEWEST) or ""
        self._newest_ms = int(newest) if newest.isdecimal() else 0
        self._invites.load(await self._inbox.position(OPEN_INVITES))
        self._rooms.successors.load(await self._inbox.position(UPGRADES))
        self._events.joinings.load(await self._inbox.position(JOININGS))
        self._again = self.fetching.load(await self._inbox.position(FETCHING))
        self._rooms.load_secret(await self._inbox.position(ENCRYPTED))
        self._secret = len(self._rooms.secret)
        if self._decryption is not None:
            self._decryption.start(await self._inbox.position(CRYPTO), await self._inbox.position(WAITING))
        await self._events.start()
        full_state = True
        failing_since: float | None = None
        while True:
            try:
                since = await self._sync_once(since, full_state=full_state)
            except RoomUnread as error:
                failing_since = None  # the homeserver has answered
                await self._pause(error)
            except ChannelUnavailable as error:
                now = self._clock.monotonic()
                failing_since = now if failing_since is None else failing_since
                if not self._up or now - failing_since > GIVE_UP_S:
                    raise
                await self._pause(error)
            else:
                full_state = self._cut_out and not full_state
                failing_since = None

    async def _sync_once(self, since: str | None, *, full_state: bool) -> str:
        """Fetch one answer, have it accepted, and return the token that follows it."""
        request = SyncRequest(
            since,
            full_state=full_state and since is not None,
            wait_s=0.0 if full_state or self._link.failures or self._has_more else 30.0,
            timeline_limit=1 if since is None else _TIMELINE,
        )
        await self._login.keep_fresh()
        if self._decryption is not None:
            await self._decryption.prepare()
        try:
            answer = await self._fetch(request)
        except _PositionLost as lost:
            return await self._restart_without_token(str(lost))
        known = None if full_state else {room.room_id for room in self._rooms}
        return await self._accept_answer(answer.body, since=since, known=known)

    @property
    def _has_more(self) -> bool:
        """Return True if messages whose keys have arrived are still to be read."""
        return self._decryption is not None and self._decryption.has_more

    async def _restart_without_token(self, why: str) -> str:
        """Go on without a position, with what is younger than everything that was read."""
        _log.error("matrix.sync_token_lost", reason=why, resumed_after_ms=self._newest_ms)
        self._rooms.forget()
        answer = await self._fetch(SyncRequest(None, full_state=False, wait_s=0.0, timeline_limit=_TIMELINE))
        self._lost = (
            f"the homeserver does not know the point up to which squidbot had read ({why}): was it "
            "restored from a backup or set up anew? Messages that it lost cannot be answered"
        )
        return await self._accept_answer(answer.body, since=None, known=None, anew=True)

    async def _accept_answer(
        self, body: JsonObject, *, since: str | None, known: set[str] | None, anew: bool = False
    ) -> str:
        """Have an answer accepted; ``known`` are the rooms before it, None if that cannot be said."""
        following = text_of(body, POSITION)
        unread = set(self._rooms.unread)
        if known is None:
            self._rooms.forget()
        for room_id in self._rooms.update(body):
            _log.info("matrix.room_left", room=room_id)
            self.fetching.drop_room(room_id)
            self.gaps.drop_room(room_id)
            self._events.forget_room(room_id)
        if upgraded := self._following.learn():
            self._events.note_room_upgrade()
        invites_changed = self._invites.learn(body) or self._following.asked
        found = TimelineResult(amendments=self._departures(body, known))
        for room_id, event, seen_at in await self._receive_keys(body):
            late = text_of(event, "event_id")
            found.add(await self._timeline.read(room_id, [event], since=since, late=late, seen_at=seen_at))
        self._read_again(since)
        cut_out = self._rooms.unread - unread
        self._cut_out = since is not None and bool(cut_out)
        for room_id in cut_out:
            _log.error("matrix.room_too_long", room=room_id)
            if since is not None:
                self.fetching.pin_room(room_id, since)
                self._again[room_id] = since
        if since is not None:
            found.add(await self._timeline.read_answer(body, since, known))
        elif anew and self._newest_ms:
            found.add(await self._timeline.read_after(body, self._newest_ms))
        messages = [*await self._timeline.with_files(found.messages), *self._invitations()]
        async with self.fetching.commit:
            await self._commit(messages, found.amendments, body, upgraded=upgraded, invites=invites_changed)
        self._invites.link_is_up() if self._link.failures else self._invites.wake()
        self._mark_read(found.messages)
        self._expect_answers(found.messages)
        self.gaps.note_sync()
        self._link.note_success()
        if self._decryption is not None:
            await self._decryption.note_commit(room.room_id for room in self._rooms)
        self._report_up()
        return following

    def _invitations(self) -> list[InboundMessage]:
        """The invitations of strangers, for the owner to decide about; their words are ours."""
        return [
            InboundMessage(
                channel=self._channel,
                account=self._me.user_id,
                native_id=f"invitation:{room_id}:{int(kept_at)}",
                session=SessionKey(self._channel, room_id),
                sender=Sender(address=inviter, verified=True),
                text="(invites me into a room)",
                received_at=self._clock.now(),
                audience=Audience.DIRECT,
                context=MessageContext(invitation=room_id),
            )
            for room_id, inviter, kept_at in self._invites.pop_waiting()
        ]

    async def _commit(
        self,
        messages: list[InboundMessage],
        amendments: list[Amendment],
        body: JsonObject,
        *,
        upgraded: bool,
        invites: bool,
    ) -> None:
        """Have what was read accepted, together with the token that follows it and all that goes with it."""
        self.gaps.release_finished_gaps()
        positions = {POSITION: text_of(body, POSITION)} | self._newest(body)
        positions |= self._events.joinings.position() | self.fetching.position()
        if self._decryption is not None:
            positions |= self._decryption.positions()
        if invites:
            positions[OPEN_INVITES] = self._invites.dump()
        if upgraded:
            positions[UPGRADES] = self._rooms.successors.dump()
        secret = len(self._rooms.secret)  # it only grows
        if secret != self._secret:
            positions[ENCRYPTED] = self._rooms.dump_secret()
        with self._events.joinings.committing():
            await self._inbox.accept(messages, positions, amendments)
        self._secret = secret

    async def save(self, positions: Callable[[], Mapping[str, str]]) -> None:
        """Commit positions as they are when it is their turn, so that no older text follows a newer."""
        async with self.fetching.commit:
            await self._inbox.accept([], positions())

    async def save_invites(self, dump: Callable[[], str]) -> None:
        """Commit the open invitations, in order with all other positions."""
        await self.save(lambda: {OPEN_INVITES: dump()})

    def _read_again(self, since: str | None) -> None:
        """Read what an earlier run has left of rooms; without a position nobody knows where that begins."""
        for room_id, left_at in list(self._again.items()):
            if since is not None and self._rooms.get(room_id) is not None:
                self.gaps.add_events(room_id, left_at)
            else:
                self.fetching.unpin_room(room_id)
            del self._again[room_id]

    async def _receive_keys(self, body: JsonObject) -> list[tuple[str, JsonObject, float]]:
        """Learn what came about keys; returns earlier events that it has made readable."""
        if self._decryption is None:
            return []
        await self._decryption.prepare()  # a login meanwhile may have brought another device
        self._decryption.receive(body)
        return await self._decryption.late_messages()

    def _departures(self, body: JsonObject, known: set[str] | None) -> list[Amendment]:
        """Return the amendments for rooms that the bot left or was removed from."""
        amendments = []
        for room_id in object_of(object_of(body, "rooms"), "leave"):
            if known is not None and room_id not in known:
                continue  # an invitation that was refused
            if self._decryption is not None:
                self._decryption.forget_room(room_id)
            conversation = self._rooms.conversation_of(room_id)
            if self._rooms.room_of(conversation) == room_id:
                amendments.append(Amendment(kind="leave", session=SessionKey(self._channel, conversation)))
        return amendments

    def _newest(self, body: JsonObject) -> dict[str, str]:
        """The position that says how young the newest event is; one from the future counts as from now."""
        now_ms = int(self._clock.now().timestamp() * 1000)
        newest = self._newest_ms
        for room in object_of(object_of(body, "rooms"), "join").values():
            for event in events_of(room, "timeline"):
                newest = max(newest, min(sent_at_ms(event), now_ms))
        if newest == self._newest_ms:
            return {}
        self._newest_ms = newest
        return {NEWEST: str(newest)}

    async def _fetch(self, request: SyncRequest) -> HttpAnswer:
        while True:
            used = self._homeserver.credentials
            if used is None:
                raise ChannelUnavailable("not logged in")
            try:
                answer = await self._homeserver.sync(request)
            except AnswerTooLong as error:
                if request.timeline_limit == 1 and request.part_bytes is not None:
                    raise unreachable(error) from error
                limit, part_bytes = _LESS.get(request.timeline_limit, _LESS[2])
                _log.error("matrix.sync_too_long", events_asked_for=limit, part_bytes=part_bytes)
                request = replace(request, timeline_limit=limit, part_bytes=part_bytes)
                continue
            except LinkBroken as error:
                raise unreachable(error) from error
            if answer.is_token_refused:
                # It ends: `Login.renew` raises when it is asked too often in a row.
                await self._login.renew(used, answer)
                continue
            following = text_of(answer.body, POSITION)
            if request.since and answer.status == 400 and answer.errcode in _POSITION_CODES:
                raise _PositionLost(f"{answer.errcode} {answer.error}".strip())
            if not answer.is_success or not following:
                raise channel_error(answer)
            self._login.note_success()
            self.heard_at = self._clock.now()
            if request.since and _is_further_back(following, request.since):
                raise _PositionLost(f"it was at {request.since} and is at {following}")
            return answer

    async def _pause(self, error: ChannelUnavailable) -> None:
        pause_s = self._link.note_failure(at_least_s=error.retry_after_s)
        failures = self._link.failures
        log = _log.warning if failures & (failures - 1) == 0 else _log.debug
        log("matrix.sync_failed", error=str(error), failures=failures, retry_in_s=round(pause_s, 1))
        if failures >= 2:
            # A single failure is no news, and reporting it would hold back what could be sent.
            self._reported = None
            self._inbox.report(LinkState.DOWN, str(error))
        await anyio.sleep(pause_s)

    def _mark_read(self, messages: Iterable[InboundMessage]) -> None:
        if self._events.rules.config.display.read_receipts:
            for message in messages:
                if message.addressed and message.kind == "message":
                    room_id = message.context.read_route(MatrixRoute).room or message.session.conversation
                    self._typing_receipts.read(room_id, message.native_id)

    def _expect_answers(self, messages: Iterable[InboundMessage]) -> None:
        if self._decryption is not None:
            for message in messages:
                room_id = message.context.read_route(MatrixRoute).room or message.session.conversation
                if message.addressed and message.kind == "message" and room_id in self._rooms.secret:
                    self._decryption.prefetch_devices(message.sender.address)

    def _report_up(self) -> None:
        facts: dict[str, Any] = {
            "rooms": len(self._rooms),
            "encrypted_rooms": sum(1 for room in self._rooms if room.encrypted),
            **self._timeline.facts(),
        }
        if self._lost:
            facts["position_lost"] = self._lost
        if self._decryption is not None:
            facts |= self._decryption.facts()
        if facts == self._reported and self._up:
            return
        self._up = True
        self._on_up()
        self._reported = facts
        self._inbox.report(LinkState.UP, "", **facts)


def _is_further_back(following: str, since: str) -> bool:
    """Return True if a sync token of Synapse is older than the last one; other formats give False."""
    new, old = _STREAM_TOKEN.match(following), _STREAM_TOKEN.match(since)
    return new is not None and old is not None and int(new[1]) < int(old[1])


class SyncLink:
    """The link of one run: the time of the last answer, and the number of failures in a row."""

    def __init__(self, clock: ChannelClock) -> None:
        self._clock = clock
        self._backoff = Backoff(SYNC_RETRY)
        self._answered_at: float | None = None

    @property
    def failures(self) -> int:
        """The number of failures in a row."""
        return self._backoff.failures

    def is_current(self) -> bool:
        """Return True if the known room states are as fresh as a working link keeps them."""
        age_s = self._clock.monotonic() - (self._answered_at or 0.0)
        return self._answered_at is not None and self.failures == 0 and age_s < 75.0

    def note_success(self) -> None:
        """Note that an answer was taken in."""
        self._answered_at = self._clock.monotonic()
        self._backoff.reset()

    def note_failure(self, *, at_least_s: float | None = None) -> float:
        """Note that there was none; returns the pause before the next try."""
        return self._backoff.note_failure(random=random.random(), at_least_s=at_least_s)
