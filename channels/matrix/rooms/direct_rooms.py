"""
Conversations that the bot starts: finds the room of two with a person, or creates it once. A room counts if
our ``m.direct`` names it and only the person is in it or invited. ``createRoom`` has no transaction id, so a
token is committed first and written into the create event, by which the room is found after a crash or lost
answer. Somebody who left is invited again; rooms do not pile up.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import structlog

from channels.base import ChannelError, ChannelUnavailable, DeliveryFailed
from channels.matrix.client.homeserver import (
    CLIENT,
    Homeserver,
    HttpAnswer,
    channel_error,
    link_errors,
    quote_path,
    send_problem,
)
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.rooms.backfill import check_room, members_of, own_membership
from channels.matrix.rooms.room_state import Rooms

DIRECTS = "directs"
TOKEN = "org.squidbot.direct"  # noqa: S105 - the name of a key
_CREATE_LIMIT_S = 60.0
_log = structlog.get_logger(__name__)
Save = Callable[[Mapping[str, str]], Awaitable[None]]


class DirectRooms:
    """The rooms of two of one account; ``expects``: a person's own invitation is being followed."""

    def __init__(
        self,
        homeserver: Homeserver,
        rooms: Rooms,
        save: Save,
        *,
        user_id: str,
        encrypted: bool,
        expects: Callable[[str], bool] = lambda _person: False,
    ) -> None:
        self._homeserver = homeserver
        self._rooms = rooms
        self._save = save
        self._user_id = user_id
        self._encrypted = encrypted
        self._expects = expects
        self._made: dict[str, dict[str, str]] = {}
        self._lock = anyio.Lock()

    def load(self, text: str | None) -> None:
        """Load what an earlier run committed."""
        try:
            kept = json.loads(text) if text else {}
            self._made = {
                str(person): {str(k): str(v) for k, v in one.items()} for person, one in kept.items()
            }
        except (ValueError, AttributeError) as error:
            _log.error("matrix.directs_unreadable", error=type(error).__name__)

    async def room_with(self, person: str) -> str:
        """Return the room of two, created on demand. Raises ChannelUnavailable or DeliveryFailed."""
        async with self._lock:
            with link_errors():
                found = await self._found(person)
                if found is None and self._expects(person):
                    raise ChannelUnavailable("an invitation is being accepted right now", retry_after_s=1.0)
                return found or await self._own(person)

    async def alone_with(self, room_id: str, person: str) -> bool:
        """Return True if a private room holds only ``person`` and the bot. Raises ChannelUnavailable."""
        with link_errors():
            return await self._fits(room_id, person)

    async def is_in(self, room_id: str) -> bool:
        """Return True if the bot is in a room of any kind. Raises `ChannelUnavailable`."""
        if self._rooms.get(room_id) is not None:
            return True
        with link_errors():  # what is known is learned anew when the link was broken
            members = await members_of(self._homeserver, room_id)
        return any(own_membership(event, self._user_id) == "join" for event in members or ())

    async def _found(self, person: str) -> str | None:
        content = await self._known_directs()
        listed = content.get(person)
        rooms = [room for room in listed if isinstance(room, str)] if isinstance(listed, list) else []
        for room_id in reversed(rooms):
            newest = self._rooms.room_of(room_id)
            if await self._fits(newest, person):
                return newest
        return None

    async def _fits(self, room_id: str, person: str) -> bool:
        """Return True if exactly this person and the bot are in a room; invited people count."""
        room = self._rooms.get(room_id)
        if room is None or room.is_open or not await check_room(self._homeserver, room) or room.is_open:
            return False
        return room.joined | room.invited == {person, self._user_id}

    async def _own(self, person: str) -> str:
        """The room that was made for somebody, or a new one."""
        made = self._made.get(person, {})
        room_id = made.get("room") or (await self._search(made["token"]) if made.get("token") else None)
        if room_id is not None and await self._invited_again(room_id, person):
            await self._note(person, room_id)
            return room_id
        token = secrets.token_hex(16)
        await self._keep(person, {"token": token})
        room_id = await self._create(person, token)
        await self._note(person, room_id)
        _log.info("matrix.direct_created", room=room_id, person=person, encrypted=self._encrypted)
        return room_id

    async def _invited_again(self, room_id: str, person: str) -> bool:
        """Return True if a room made by the bot can be used; a person who has left is invited again."""
        members = await members_of(self._homeserver, room_id)
        if members is None:
            return False  # we are not in it ourselves
        there = {
            text_of(event, "state_key")
            for event in members
            if text_of(object_of(event, "content"), "membership") in ("join", "invite")
        }
        if there - {person, self._user_id}:
            return False
        if person in there:
            return True
        answer = await self._homeserver.request(
            "POST",
            f"{CLIENT}/rooms/{quote_path(room_id)}/invite",
            {"user_id": person},
            timeout_s=_CREATE_LIMIT_S,
        )
        if not answer.is_success:
            raise _refused(answer, person)
        return True

    async def _create(self, person: str, token: str) -> str:
        body: dict[str, Any] = {
            "preset": "trusted_private_chat",
            "is_direct": True,
            "invite": [person],
            "creation_content": {TOKEN: token},
        }
        if self._encrypted:
            algorithm = {"algorithm": "m.megolm.v1.aes-sha2"}
            body["initial_state"] = [{"type": "m.room.encryption", "state_key": "", "content": algorithm}]
        answer = await self._homeserver.request(
            "POST", f"{CLIENT}/createRoom", body, timeout_s=_CREATE_LIMIT_S
        )
        room_id = text_of(answer.body, "room_id")
        if answer.is_success and room_id:
            return room_id
        if answer.errcode and 400 <= answer.status < 500 and answer.status != 429:
            await self._keep(person, {})
        raise _refused(answer, person)

    async def _search(self, token: str) -> str | None:
        """The room with this token in its create event, if it came into being after all."""
        answer = await self._homeserver.request("GET", f"{CLIENT}/joined_rooms")
        rooms = answer.body.get("joined_rooms")
        if not answer.is_success or not isinstance(rooms, list):
            raise channel_error(answer)
        for room_id in rooms:
            path = f"{CLIENT}/rooms/{quote_path(str(room_id))}/state/m.room.create"
            made = await self._homeserver.request("GET", path)
            if not made.is_success and not (made.errcode and made.status in (403, 404)):
                raise channel_error(made)
            if made.is_success and made.body.get(TOKEN) == token:
                _log.info("matrix.direct_found", room=room_id)
                return str(room_id)
        return None

    async def _note(self, person: str, room_id: str) -> None:
        """Commit a room that is there, and tell other clients of the account what it is."""
        await self._keep(person, {"room": room_id})
        self._rooms.mark_direct(room_id, person)
        content = dict(await self._known_directs())
        listed = content.get(person)
        rooms = [room for room in listed if isinstance(room, str)] if isinstance(listed, list) else []
        if room_id in rooms:
            return
        content[person] = [*rooms, room_id]
        answer = await self._homeserver.request("PUT", self._path(), content)
        if not answer.is_success:
            raise channel_error(answer)

    async def _keep(self, person: str, made: dict[str, str]) -> None:
        self._made[person] = made
        self._made = {name: one for name, one in self._made.items() if one}
        await self._save({DIRECTS: json.dumps(self._made)})

    async def _known_directs(self) -> JsonObject:
        answer = await self._homeserver.request("GET", self._path())
        if not answer.is_success and answer.errcode != "M_NOT_FOUND":
            raise channel_error(answer)
        return answer.body if answer.is_success else {}

    def _path(self) -> str:
        return f"{CLIENT}/user/{quote_path(self._user_id)}/account_data/m.direct"


def _refused(answer: HttpAnswer, person: str) -> ChannelError:
    if answer.is_token_refused or answer.status == 429 or answer.status >= 500 or not answer.errcode:
        return channel_error(answer)
    error = send_problem(answer)
    if isinstance(error, DeliveryFailed):
        return DeliveryFailed(f"{person} cannot be written to: {answer.errcode} {answer.error}")
    return error
