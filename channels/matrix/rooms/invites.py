"""
Invitations: accepted from people who may invite, else kept for a while and refused; never forgotten half-way.
A homeserver announces an invitation once, so open ones are committed with the sync token and tried until the
server answers. Joins run concurrently within `_JOIN_LIMIT_S`, the owner's beside others and a few per
inviter, whose server may hang; refusals have their own places. The inviter's server composes the stripped
state, so only our last own membership event counts, and after the join our server must confirm the inviter: a
room entered on a lie is left. A few of strangers stay open for `_KEPT_S`, as the owner may admit them. Joins
post an empty object; some servers refuse an empty body.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import anyio
import structlog

from agent_core.backoff import Backoff, BackoffPolicy
from channels.base import ChannelClock
from channels.matrix.client.homeserver import CLIENT, Homeserver, HttpAnswer, LinkBroken, quote_path
from channels.matrix.client.json_access import JsonObject, events_of, object_of, text_of
from channels.matrix.rooms.room_state import Rooms

MAX_OPEN = 500
_RETRY = BackoffPolicy(first_s=2.0, cap_s=300.0, jitter=0.4)
_JOIN_LIMIT_S = 90.0
_JOINS = 24
_JOINS_EACH = 3
"""Of one inviter; the owner has `_JOINS` beside those of others."""
_KEPT_S = 14 * 86_400.0
"""The time for which an invitation stays open, as a stranger's message does."""
_KEPT, _KEPT_EACH = 50, 3
"""The most open invitations of strangers, in all and of one inviter."""
_PACE_S = 0.4
"""A refusal keeps its slot for so long: the server has better things to do."""
_log = structlog.get_logger(__name__)
Save = Callable[[Callable[[], str]], Awaitable[None]]


@dataclass(slots=True)
class _Invite:
    room_id: str
    inviter: str
    welcome: bool
    direct: bool = False
    joined: bool = False
    genuine: bool = False
    """Our own server has said that it is the inviter's."""
    replaces: str = ""
    """The room that this one claims to have taken the place of."""
    kept_at: float = 0.0
    """Since when it waits for the owner's word, in Unix time; 0: it does not."""


@dataclass(slots=True)
class _Progress:
    backoff: Backoff
    due_at: float = 0.0
    unreached: bool = False
    """At the last try our own server was not reached."""


class Invites:
    """The open invitations of one account."""

    def __init__(
        self,
        homeserver: Homeserver,
        rooms: Rooms,
        clock: ChannelClock,
        *,
        user_id: str,
        may_invite: Callable[[str], bool],
        is_owner: Callable[[str], bool] = lambda _user: False,
    ) -> None:
        self._homeserver = homeserver
        self._rooms = rooms
        self._clock = clock
        self._user_id = user_id
        self._may_invite = may_invite
        self._is_owner = is_owner
        self._open: dict[str, _Invite] = {}
        self._progress: dict[str, _Progress] = {}
        self._changes = 0
        self._asked: list[tuple[str, str, float]] = []
        self._news = anyio.Event()
        self._pursued: set[str] = set()
        self._refusals = anyio.CapacityLimiter(4)
        self._owner_joins = anyio.CapacityLimiter(_JOINS)
        self._joins = anyio.CapacityLimiter(_JOINS)
        self._joins_of: WeakValueDictionary[str, anyio.CapacityLimiter] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._open)

    def load(self, text: str | None) -> None:
        """Load what `dump` wrote in an earlier run; inviters must still be allowed."""
        try:
            kept = [_Invite(**item) for item in json.loads(text)] if text else []
        except (ValueError, TypeError) as error:
            _log.error("matrix.invites_unreadable", error=type(error).__name__)
            return
        for invite in kept:
            invite.welcome = self._may_invite(invite.inviter)
            invite.kept_at = 0.0 if invite.welcome else invite.kept_at
            self._add(invite)

    def dump(self) -> str:
        """All open invitations, as a text to be committed with the position."""
        return json.dumps([asdict(invite) for invite in self._open.values()])

    def learn(self, sync: JsonObject) -> bool:
        """Learn from an answer of ``/sync``; returns whether `dump` has changed."""
        rooms = object_of(sync, "rooms")
        before = self._changes
        for kept in [one for one in self._open.values() if one.kept_at and self._may_invite(one.inviter)]:
            self._add(replace(kept, welcome=True, kept_at=0.0))
        for room_id in object_of(rooms, "leave"):
            self._drop(room_id)
        for room_id, room in object_of(rooms, "join").items():
            invite = self._open.get(room_id)
            if invite is not None and invite.welcome:
                self._entered(invite, room)
            elif self._rooms.was_abandoned(room_id, events_of(room, "timeline")):
                self._add(_Invite(room_id, "", welcome=False))
        for room_id, room in object_of(rooms, "invite").items():
            invite = self._read(room_id, room)
            if invite is not None:
                self._add(invite)
                if invite.kept_at:
                    self._asked.append((room_id, invite.inviter, invite.kept_at))
        return self._changes != before

    def pop_waiting(self) -> list[tuple[str, str, float]]:
        """The invitations that came and wait for the owner's word: room, inviter, time."""
        asked, self._asked = self._asked, []
        return asked

    def follow(self, old: str, new: str, inviter: str, *, direct: bool, joined: bool = False) -> None:
        """Join the successor of a room for an allowed inviter, instead of an earlier candidate."""
        for other in [one for one in self._open.values() if one.replaces == old and not one.joined]:
            if other.room_id != new:
                self._drop(other.room_id)
        self._add(_Invite(new, inviter, welcome=True, direct=direct, joined=joined, replaces=old))

    def expects(self, person: str) -> bool:
        """Return True if a person's invitation into a room of two is being accepted."""
        return any(
            one.direct
            and one.welcome
            and one.inviter == person
            and self._progress[one.room_id].backoff.failures < 3
            for one in self._open.values()
        )

    def wake(self) -> None:
        """Let the worker act on what `learn` found, once that is committed."""
        self._news.set()
        self._news = anyio.Event()

    def link_is_up(self) -> None:
        """Note that the homeserver can be reached again: failed attempts are due at once."""
        for progress in self._progress.values():
            if progress.unreached:
                progress.unreached, progress.due_at = False, 0.0
                progress.backoff.reset()
        self.wake()

    async def run(self, save: Save) -> None:
        """Answer invitations until cancelled; ``save`` makes a `dump` of its own moment durable."""
        self._pursued.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep, save)
            while True:
                news = self._news
                for room_id in [one for one in self._open if one not in self._pursued]:
                    self._pursued.add(room_id)
                    tasks.start_soon(self._pursue, room_id)
                await news.wait()

    def _read(self, room_id: str, room: Any) -> _Invite | None:
        if room is None:
            _log.warning("matrix.invite_too_long", room=room_id)
            return _Invite(room_id, "", welcome=False)
        own = [event for event in events_of(room, "invite_state") if self._is_own_membership(event)]
        if not own or not _invites(own[-1]):
            _log.warning("matrix.invite_unreadable", room=room_id)
            return None
        inviters = list(dict.fromkeys(text_of(event, "sender") for event in own if _invites(event)))
        inviter = inviters[-1]
        if len(inviters) > 1:
            _log.warning("matrix.invite_forged", room=room_id, inviters=inviters[:5])
            return _Invite(room_id, inviter, welcome=False)
        welcome = self._may_invite(inviter)
        kept_at = 0.0 if welcome else self._kept_at(room_id, inviter)
        wanted = object_of(own[-1], "content").get("is_direct") is True
        return _Invite(room_id, inviter, welcome, wanted and (welcome or kept_at > 0), kept_at=kept_at)

    def _kept_at(self, room_id: str, inviter: str) -> float:
        """Since when a stranger's invitation is left open; 0 if there is no room for it."""
        known = self._open.get(room_id)
        if known is not None and known.inviter == inviter and known.kept_at:
            return known.kept_at
        kept = Counter(one.inviter for one in self._open.values() if one.kept_at)
        if kept.total() >= _KEPT or kept[inviter] >= _KEPT_EACH:
            return 0.0
        return self._clock.now().timestamp()

    def _is_own_membership(self, event: JsonObject) -> bool:
        return event.get("type") == "m.room.member" and event.get("state_key") == self._user_id

    def _entered(self, invite: _Invite, room: Any) -> None:
        """Note that ``/sync`` has brought the room; mostly it says at once who had invited us."""
        if not invite.joined:
            invite.joined = True
            self._changes += 1
        if invite.genuine or invite.replaces:
            return
        for event in (*events_of(room, "state"), *events_of(room, "timeline")):
            inviter = _inviter_in(event) if self._is_own_membership(event) else ""
            if inviter:
                self._decide(invite, genuine=inviter == invite.inviter)

    def _decide(self, invite: _Invite, *, genuine: bool) -> None:
        """Our own server has said whether the invitation is by whom it seemed to be."""
        if not genuine:
            _log.warning("matrix.invite_forged", room=invite.room_id, inviters=[invite.inviter])
        self._changes += 1
        invite.genuine, invite.welcome = genuine, genuine
        if genuine and invite.direct:
            self._rooms.mark_direct(invite.room_id, invite.inviter)

    def _add(self, invite: _Invite) -> None:
        same_kind = sum(1 for other in self._open.values() if other.welcome == invite.welcome)
        if invite.room_id not in self._open and same_kind >= MAX_OPEN:
            _log.warning("matrix.invite_ignored", room=invite.room_id, open=same_kind)
            return
        if self._open.get(invite.room_id) != invite:
            self._changes += 1
        self._open[invite.room_id] = invite
        self._progress[invite.room_id] = _Progress(Backoff(_RETRY))
        if invite.direct and (invite.genuine or invite.replaces):
            self._rooms.mark_direct(invite.room_id, invite.inviter)

    def _drop(self, room_id: str) -> None:
        if self._open.pop(room_id, None) is not None:
            self._changes += 1
        self._progress.pop(room_id, None)

    async def _keep(self, save: Save) -> None:
        """Make changes durable, several together; one that is lost to a crash is made again."""
        kept = self._changes
        while True:
            news = self._news
            if self._changes != kept:
                kept = self._changes
                await save(self.dump)
            else:
                await news.wait()

    async def _pursue(self, room_id: str) -> None:
        """Answer an invitation whenever that is due, until it is gone."""
        while (invite := self._open.get(room_id)) is not None:
            news, progress = self._news, self._progress[room_id]
            wait_s = progress.due_at - self._clock.monotonic()
            if invite.kept_at and (self._clock.now().timestamp() - invite.kept_at < _KEPT_S):
                wait_s = 3600.0
            if wait_s > 0:
                with anyio.move_on_after(wait_s):
                    await news.wait()
                continue
            async with AsyncExitStack() as places:
                for place in self._places_of(invite):
                    await places.enter_async_context(place)
                if self._open.get(room_id) is invite:
                    await self._try(invite, progress)
        self._pursued.discard(room_id)

    def _places_of(self, invite: _Invite) -> Sequence[anyio.CapacityLimiter]:
        """Return the limiters of which a try takes a place; the owner's joins have their own."""
        if not invite.welcome:
            return (self._refusals,)
        if self._is_owner(invite.inviter):
            return (self._owner_joins,)
        each = self._joins_of.setdefault(invite.inviter, anyio.CapacityLimiter(_JOINS_EACH))
        return (each, self._joins)

    async def _try(self, invite: _Invite, progress: _Progress) -> None:
        """One try; whatever its outcome, this invitation is either gone or due later."""
        refused = not invite.welcome
        progress.unreached = False
        try:
            retry_s = await (self._refuse(invite) if refused else self._join(invite, progress))
        except LinkBroken as error:
            progress.unreached = True
            _log.info("matrix.invite_deferred", room=invite.room_id, error=str(error))
            retry_s = 0.0
        if refused:
            await anyio.sleep(_PACE_S)
        if self._open.get(invite.room_id) is invite:
            self._outcome(invite, progress, retry_s)
        self.wake()

    def _outcome(self, invite: _Invite, progress: _Progress, retry_s: float | None) -> None:
        if retry_s is None:
            self._drop(invite.room_id)
            return
        progress.due_at = self._clock.monotonic() + progress.backoff.note_failure(
            random=random.random(), at_least_s=retry_s
        )
        if progress.backoff.failures > 300:
            _log.error("matrix.invite_abandoned", room=invite.room_id, inviter=invite.inviter)
            self._drop(invite.room_id)

    async def _join(self, invite: _Invite, progress: _Progress) -> float | None:
        if not invite.joined:
            path, query = _way_in(invite)
            answer = await self._homeserver.request("POST", path, {}, query=query, timeout_s=_JOIN_LIMIT_S)
            if not answer.is_success:
                return self._not_done(invite, answer)
            invite.joined = True
            self._changes += 1
            if invite.replaces and not await self._is_successor(invite):
                return await self._refuse(invite)
            progress.backoff.reset()
            _log.info("matrix.joined", room=invite.room_id, inviter=invite.inviter, direct=invite.direct)
        if not invite.replaces and not invite.genuine and invite.welcome:
            genuine = await self._is_genuine(invite)
            if genuine is None:
                return 0.0
            if invite.welcome and not invite.genuine:  # an answer of /sync may have said it meanwhile
                self._decide(invite, genuine=genuine)
        if not invite.welcome:
            return await self._refuse(invite)
        if not invite.direct or await self._mark_direct(invite):
            return None
        return None if progress.backoff.failures >= 5 else 0.0

    async def _is_genuine(self, invite: _Invite) -> bool | None:
        """Return True if our own server confirms the inviter; None if it cannot say so now."""
        own = await self._state_of(invite.room_id, self._user_id)
        if own is None:
            return None
        inviter = _inviter_in(own)
        replaced = text_of(object_of(own, "unsigned"), "replaces_state")
        if not inviter and replaced:
            path = f"{CLIENT}/rooms/{quote_path(invite.room_id)}/event/{quote_path(replaced)}"
            before = await self._homeserver.request("GET", path)
            if before.is_success and _invites(before.body):
                inviter = text_of(before.body, "sender")
        if inviter:
            return inviter == invite.inviter
        # A server that does not tell what was before: at least the inviter has to be there.
        theirs = await self._state_of(invite.room_id, invite.inviter)
        if theirs is None:
            return None
        return "join" in (theirs.get("membership"), object_of(theirs, "content").get("membership"))

    async def _state_of(self, room_id: str, person: str) -> JsonObject | None:
        """Somebody's membership event, or on some servers its content; empty: none; None: not known now."""
        path = f"{CLIENT}/rooms/{quote_path(room_id)}/state/m.room.member/{quote_path(person)}"
        answer = await self._homeserver.request("GET", path, query={"format": "event"})
        if not answer.is_success:
            return {} if answer.errcode and answer.status in (403, 404) else None
        return answer.body

    async def _is_successor(self, invite: _Invite) -> bool:
        """Return True if the room's creation event confirms its predecessor, or cannot be read now."""
        path = f"{CLIENT}/rooms/{quote_path(invite.room_id)}/state/m.room.create"
        answer = await self._homeserver.request("GET", path)
        before = text_of(object_of(answer.body, "predecessor"), "room_id")
        if not answer.is_success or before == invite.replaces:
            return True
        _log.warning("matrix.upgrade_refused", room=invite.replaces, replacement=invite.room_id)
        return False

    async def _refuse(self, invite: _Invite) -> float | None:
        answer = await self._homeserver.request(
            "POST", f"{CLIENT}/rooms/{quote_path(invite.room_id)}/leave", {}, timeout_s=_JOIN_LIMIT_S
        )
        if not answer.is_success:
            return self._not_done(invite, answer)
        _log.info("matrix.invite_refused", room=invite.room_id, inviter=invite.inviter)
        return None

    def _not_done(self, invite: _Invite, answer: HttpAnswer) -> float | None:
        """Seconds to wait at least, or None if the server has decided."""
        if answer.errcode and answer.status in (403, 404) and answer.errcode != "M_UNRECOGNIZED":
            _log.info("matrix.invite_gone", room=invite.room_id, errcode=answer.errcode)
            return None
        _log.info("matrix.invite_deferred", room=invite.room_id, status=answer.status, errcode=answer.errcode)
        return answer.wait_s if answer.status == 429 else 0.0

    async def _mark_direct(self, invite: _Invite) -> bool:
        """Put the room into our own ``m.direct``, so that it is known as direct after a restart too."""
        path = f"{CLIENT}/user/{quote_path(self._user_id)}/account_data/m.direct"
        known = await self._homeserver.request("GET", path)
        if not known.is_success and known.errcode != "M_NOT_FOUND":
            return False
        content: dict[str, Any] = dict(known.body) if known.is_success else {}
        rooms = content.get(invite.inviter)
        rooms = [room for room in rooms if isinstance(room, str)] if isinstance(rooms, list) else []
        if invite.room_id in rooms:
            return True
        content[invite.inviter] = [*rooms, invite.room_id]
        return (await self._homeserver.request("PUT", path, content)).is_success


def _invites(event: JsonObject) -> bool:
    return object_of(event, "content").get("membership") == "invite"


def _inviter_in(event: JsonObject) -> str:
    """Return the sender of the invitation that a membership event replaced, or ""."""
    unsigned = object_of(event, "unsigned")
    if object_of(unsigned, "prev_content").get("membership") != "invite":
        return ""
    return text_of(unsigned, "prev_sender")


def _way_in(invite: _Invite) -> tuple[str, dict[str, str] | None]:
    """Path and query of a join; without an invitation our server may have to be told whom to ask."""
    server = invite.inviter.partition(":")[2]
    if not invite.replaces or not server:
        return f"{CLIENT}/rooms/{quote_path(invite.room_id)}/join", None
    return f"{CLIENT}/join/{quote_path(invite.room_id)}", {"server_name": server, "via": server}
