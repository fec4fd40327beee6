"""
Invitations: joined if somebody who may has sent them, refused otherwise, and never forgotten half-way.

Theory of operation. A homeserver announces an invitation once. So open ones are kept among the channel's own
positions, committed together with the sync token that brought them, and tried again until the server has
said yes or no. Joins and refusals are worked off by two tasks, so that a thousand invitations of strangers
do not keep a friend waiting. Lists are bounded: beyond `MAX_OPEN` of a kind, new ones are left lying.

Only our own membership event in the stripped state says that *we* are invited and by whom; the others in
there are of the inviter's choosing (B16). The join is posted with an empty object, because some servers
refuse an empty body (B17).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import anyio
import structlog

from channels.base import Clock
from channels.matrix.rooms import JsonObject, Rooms, events_of, object_of, text_of
from channels.matrix.wire import CLIENT, Answer, Homeserver, LinkBroken, Pauses, part

__all__ = ["MAX_OPEN", "Invites"]

MAX_OPEN = 500
_MAX_TRIES = 300
_MAX_MARK_TRIES = 5
_JOIN_LIMIT_S = 90.0
_AT_ONCE = 20
_UNPACED = 5
_PACE_S = 0.1
_log = structlog.get_logger(__name__)
Save = Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class _Invite:
    room_id: str
    inviter: str
    welcome: bool
    direct: bool = False
    joined: bool = False
    replaces: str = ""
    """The room that this one claims to have taken the place of."""


@dataclass(slots=True)
class _Progress:
    pauses: Pauses
    due_at: float = 0.0


class Invites:
    """
    The open invitations of one account.

    Args:
        homeserver: Where they are answered.
        rooms: Learns which rooms were called direct.
        clock: For the pauses between tries.
        user_id: The bot's own id.
        may_invite: Whether somebody's invitation is followed.
    """

    def __init__(
        self,
        homeserver: Homeserver,
        rooms: Rooms,
        clock: Clock,
        *,
        user_id: str,
        may_invite: Callable[[str], bool],
    ) -> None:
        self._homeserver = homeserver
        self._rooms = rooms
        self._clock = clock
        self._user_id = user_id
        self._may_invite = may_invite
        self._open: dict[str, _Invite] = {}
        self._progress: dict[str, _Progress] = {}
        self._changes = 0
        self._news = anyio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def load(self, text: str | None) -> None:
        """Take over what `dump` wrote in an earlier run; whoever was welcome then must still be so."""
        try:
            kept = [_Invite(**item) for item in json.loads(text)] if text else []
        except (ValueError, TypeError) as error:
            _log.error("matrix.invites_unreadable", error=type(error).__name__)
            return
        for invite in kept:
            invite.welcome = self._may_invite(invite.inviter)
            self._add(invite)

    def dump(self) -> str:
        """All open invitations, as a text to be committed with the position."""
        return json.dumps([asdict(invite) for invite in self._open.values()])

    def learn(self, sync: JsonObject) -> bool:
        """Learn from an answer of ``/sync``; returns whether `dump` has changed."""
        rooms = object_of(sync, "rooms")
        before = self._changes
        for room_id in object_of(rooms, "leave"):
            self._drop(room_id)
        for room_id in object_of(rooms, "join"):
            invite = self._open.get(room_id)
            if invite is not None and invite.welcome and not invite.joined:
                invite.joined = True
                self._changes += 1
        for room_id, room in object_of(rooms, "invite").items():
            invite = self._read(room_id, room)
            if invite is not None:
                self._add(invite)
        return self._changes != before

    def follow(self, old: str, new: str, inviter: str, *, direct: bool, joined: bool = False) -> None:
        """Go into the room that has taken the place of another, on the word of somebody who may invite."""
        self._add(_Invite(new, inviter, welcome=True, direct=direct, joined=joined, replaces=old))

    def wake(self) -> None:
        """What `learn` found is committed and may be acted on."""
        self._news.set()
        self._news = anyio.Event()

    async def run(self, save: Save) -> None:
        """Answer invitations until cancelled; ``save`` makes a new `dump` durable."""
        async with anyio.create_task_group() as workers:
            workers.start_soon(self._work, True, save)
            workers.start_soon(self._work, False, save)

    def _read(self, room_id: str, room: Any) -> _Invite | None:
        for event in events_of(room, "invite_state"):
            content = object_of(event, "content")
            if event.get("type") != "m.room.member" or event.get("state_key") != self._user_id:
                continue
            if content.get("membership") == "invite":
                inviter = text_of(event, "sender")
                welcome = self._may_invite(inviter)
                direct = welcome and content.get("is_direct") is True
                return _Invite(room_id, inviter, welcome, direct)
        _log.warning("matrix.invite_unreadable", room=room_id)
        return None

    def _add(self, invite: _Invite) -> None:
        same_kind = sum(1 for other in self._open.values() if other.welcome == invite.welcome)
        if invite.room_id not in self._open and same_kind >= MAX_OPEN:
            _log.warning("matrix.invite_ignored", room=invite.room_id, open=same_kind)
            return
        if self._open.get(invite.room_id) != invite:
            self._changes += 1
        self._open[invite.room_id] = invite
        self._progress[invite.room_id] = _Progress(Pauses(first_s=2.0, cap_s=300.0))
        if invite.direct:
            self._rooms.promise_direct(invite.room_id, invite.inviter)

    def _drop(self, room_id: str) -> None:
        if self._open.pop(room_id, None) is not None:
            self._changes += 1
        self._progress.pop(room_id, None)

    async def _work(self, welcome: bool, save: Save) -> None:  # noqa: FBT001 - see `run`
        while True:
            news = self._news
            now = self._clock.monotonic()
            mine = [invite for invite in self._open.values() if invite.welcome is welcome]
            due = [invite for invite in mine if self._progress[invite.room_id].due_at <= now]
            before = self._changes
            for number, invite in enumerate(due[:_AT_ONCE]):
                if self._open.get(invite.room_id) is invite:
                    await self._answer(invite)
                if welcome and self._changes != before:
                    await save(self.dump())
                    before = self._changes
                if not welcome and number >= _UNPACED:
                    await anyio.sleep(_PACE_S)  # the server has better things to do
            if self._changes != before:
                # Refusals together: one that is lost to a crash is made again, which does no harm.
                await save(self.dump())
            if due:
                continue
            next_at = min((self._progress[invite.room_id].due_at for invite in mine), default=now + 3600.0)
            with anyio.move_on_after(max(next_at - now, 0.05)):
                await news.wait()

    async def _answer(self, invite: _Invite) -> None:
        """One try; whatever its outcome, this invitation is either gone or due later."""
        progress = self._progress[invite.room_id]
        try:
            retry_s = await (self._join(invite, progress) if invite.welcome else self._refuse(invite))
        except LinkBroken as error:
            _log.info("matrix.invite_postponed", room=invite.room_id, error=str(error))
            retry_s = 0.0
        if retry_s is None:
            self._drop(invite.room_id)
        else:
            progress.due_at = self._clock.monotonic() + progress.pauses.next_s(at_least_s=retry_s)
            if progress.pauses.failures > _MAX_TRIES:
                _log.error("matrix.invite_given_up", room=invite.room_id, inviter=invite.inviter)
                self._drop(invite.room_id)

    async def _join(self, invite: _Invite, progress: _Progress) -> float | None:
        if not invite.joined:
            path, query = _way_in(invite)
            answer = await self._homeserver.request("POST", path, {}, query=query, timeout_s=_JOIN_LIMIT_S)
            if not answer.good:
                return self._not_done(invite, answer)
            invite.joined = True
            self._changes += 1
            if invite.replaces and not await self._is_successor(invite):
                return await self._refuse(invite)
            progress.pauses.reset()
            _log.info("matrix.joined", room=invite.room_id, inviter=invite.inviter, direct=invite.direct)
        if not invite.direct or await self._mark_direct(invite):
            return None
        return None if progress.pauses.failures >= _MAX_MARK_TRIES else 0.0

    async def _is_successor(self, invite: _Invite) -> bool:
        """Whether the room itself says so, too; what cannot be asked now is looked at with the next sync."""
        path = f"{CLIENT}/rooms/{part(invite.room_id)}/state/m.room.create"
        answer = await self._homeserver.request("GET", path)
        before = text_of(object_of(answer.body, "predecessor"), "room_id")
        if not answer.good or before == invite.replaces:
            return True
        _log.warning("matrix.upgrade_refused", room=invite.replaces, replacement=invite.room_id)
        return False

    async def _refuse(self, invite: _Invite) -> float | None:
        answer = await self._homeserver.request(
            "POST", f"{CLIENT}/rooms/{part(invite.room_id)}/leave", {}, timeout_s=_JOIN_LIMIT_S
        )
        if not answer.good:
            return self._not_done(invite, answer)
        _log.info("matrix.invite_refused", room=invite.room_id, inviter=invite.inviter)
        return None

    def _not_done(self, invite: _Invite, answer: Answer) -> float | None:
        """Seconds to wait at least, or None if the server has decided."""
        if answer.errcode and answer.status in (403, 404) and answer.errcode != "M_UNRECOGNIZED":
            _log.info("matrix.invite_gone", room=invite.room_id, errcode=answer.errcode)
            return None
        _log.info(
            "matrix.invite_postponed", room=invite.room_id, status=answer.status, errcode=answer.errcode
        )
        return answer.wait_s if answer.status == 429 else 0.0

    async def _mark_direct(self, invite: _Invite) -> bool:
        """Put the room into our own ``m.direct``, so that it is known as direct after a restart too."""
        path = f"{CLIENT}/user/{part(self._user_id)}/account_data/m.direct"
        known = await self._homeserver.request("GET", path)
        if not known.good and known.errcode != "M_NOT_FOUND":
            return False
        content: dict[str, Any] = dict(known.body) if known.good else {}
        rooms = content.get(invite.inviter)
        rooms = [room for room in rooms if isinstance(room, str)] if isinstance(rooms, list) else []
        if invite.room_id in rooms:
            return True
        content[invite.inviter] = [*rooms, invite.room_id]
        return (await self._homeserver.request("PUT", path, content)).good


def _way_in(invite: _Invite) -> tuple[str, dict[str, str] | None]:
    """Path and query of a join; without an invitation our server may have to be told whom to ask."""
    server = invite.inviter.partition(":")[2]
    if not invite.replaces or not server:
        return f"{CLIENT}/rooms/{part(invite.room_id)}/join", None
    return f"{CLIENT}/join/{part(invite.room_id)}", {"server_name": server, "via": server}
