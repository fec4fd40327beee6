"""
The encryption gate, through which all content leaves: content for an encrypted room is encrypted or not sent.
What the sync loop knows about a room decides; when that is not current, or the room is not known, the server
is asked. It is also asked once before anything goes in clear: where two events were made at the same time,
such as the bot's joining and the room's encryption, the state in an answer of Synapse to ``/sync`` is that of
one of them, without the other. Who gets the key is everybody in the room, and who is invited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from channels.base import DeliveryFailed
from channels.matrix.client.homeserver import (
    CLIENT,
    Homeserver,
    TokenLost,
    channel_error,
    link_errors,
    quote_path,
    send_problem,
)
from channels.matrix.client.json_access import object_of, text_of
from channels.matrix.crypto.devices import KeyTokenRefused
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.events.inbound_events import MARK
from channels.matrix.events.outbound_events import MAX_CONTENT_BYTES, MAX_SECRET_BYTES, size_of
from channels.matrix.rooms.backfill import members_of
from channels.matrix.rooms.room_state import Room, Rooms

_log = structlog.get_logger(__name__)


class EncryptionGate:
    """
    Encrypts outgoing content; without ``crypto`` nothing is sent into encrypted rooms.

    The homeserver is asked unless ``rooms`` ``is_current``.
    """

    def __init__(
        self,
        homeserver: Homeserver,
        rooms: Rooms,
        *,
        is_current: Callable[[], bool],
        crypto: EncryptionEngine | None,
    ) -> None:
        self._homeserver = homeserver
        self._rooms = rooms
        self._is_current = is_current
        self._crypto = crypto
        self._members: dict[str, tuple[Room, int, list[str]]] = {}
        self._in_clear: dict[str, Room] = {}
        """Rooms of which the server has said that they are not encrypted; later news come by ``/sync``."""

    async def is_encrypted(self, room_id: str) -> bool:
        """Return True if a room is encrypted, asking the server in doubt. Raises ChannelError, TokenLost."""
        room = self._rooms.get(room_id)
        if room_id in self._rooms.secret:
            return True
        if room is not None and self._in_clear.get(room_id) is room and self._is_current():
            return False
        with link_errors():
            answer = await self._homeserver.request(
                "GET", f"{CLIENT}/rooms/{quote_path(room_id)}/state/m.room.encryption"
            )
        if answer.is_token_refused:
            raise TokenLost(answer)
        if answer.status in (403, 404) and answer.errcode and answer.errcode != "M_NOT_FOUND":
            raise send_problem(answer)
        if not answer.is_success and answer.errcode != "M_NOT_FOUND":
            raise channel_error(answer)
        if answer.is_success:
            self._rooms.is_secret(room_id)
        elif room is not None:
            self._in_clear[room_id] = room
        return room_id in self._rooms.secret  # it may have become so meanwhile

    def limit(self, *, encrypted: bool) -> int:
        """Return the most bytes of content of an event."""
        return MAX_SECRET_BYTES if encrypted else MAX_CONTENT_BYTES

    async def prepare(
        self, room_id: str, kind: str, content: Mapping[str, Any], *, encrypted: bool
    ) -> tuple[str, Mapping[str, Any]]:
        """
        Return type and content to send; the only place that decides about plaintext.

        ``encrypted`` is the room's state when this delivery began. Raises ChannelError or TokenLost.
        """
        if not encrypted and room_id not in self._rooms.secret:
            return kind, content
        if self._crypto is None:
            _log.error("matrix.plaintext_refused", room=room_id)
            raise DeliveryFailed(
                "this room is encrypted but encryption is not available, so nothing is sent to it"
            )
        if size_of(content) > MAX_SECRET_BYTES:
            content = {key: content[key] for key in content.keys() - {"format", "formatted_body"}}
        if size_of(content) > MAX_SECRET_BYTES:
            raise DeliveryFailed(f"the text is too long for one encrypted event ({size_of(content)} bytes)")
        try:
            covered = await self._crypto.encrypt(room_id, kind, content, await self._members_of(room_id))
        except KeyTokenRefused as refused:
            raise TokenLost(refused.answer) from refused
        if MARK in content:
            covered[MARK] = content[MARK]  # it says nothing, and a lost device could not find it inside
        return "m.room.encrypted", covered

    async def _members_of(self, room_id: str) -> list[str]:
        """Return the user ids that get the key: those joined or invited."""
        room = self._rooms.get(room_id)
        kept = self._members.get(room_id)
        if kept and room is kept[0] and room.revision == kept[1] and self._is_current():
            return kept[2]
        revision = room.revision if room is not None else 0
        with link_errors():
            events = await members_of(self._homeserver, room_id)
        if events is None:
            raise DeliveryFailed("the bot is not in this room, or no longer, or too many people are")
        found = [
            user_id
            for event in events
            if text_of(object_of(event, "content"), "membership") in ("join", "invite")
            and (user_id := text_of(event, "state_key"))
        ]
        if room is not None:
            self._members[room_id] = (room, revision, found)
        return found
