"""
Follows room upgrades: decides which to believe, joins the new rooms, and continues the sessions there. The
rules are in ``upgrades``; joining is done by ``invites``, because it is the same: tried until the server has
said yes or no. Whose word is enough to follow is who may invite the bot.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import structlog

from channels.matrix.client.json_access import object_of, text_of
from channels.matrix.rooms.invites import Invites
from channels.matrix.rooms.room_state import Room, Rooms
from channels.matrix.rooms.upgrades import may_replace, predecessor_of

_ROOM_ID = re.compile(r"![!-~]{1,254}")
_log = structlog.get_logger(__name__)


class UpgradeFollower:
    """Follows upgrades of one account's rooms."""

    def __init__(self, rooms: Rooms, invites: Invites, *, may_invite: Callable[[str], bool]) -> None:
        self._rooms = rooms
        self._invites = invites
        self._may_invite = may_invite
        self._decided: dict[str, tuple[str, str]] = {}
        """By room, which one was to follow it last, and what came of that."""
        self.asked = False
        """Whether the newest `learn` has asked for a room to be joined."""

    def learn(self) -> bool:
        """Process replaced rooms; returns whether a session continues elsewhere now."""
        self.asked = False
        changed = False
        for room in self._rooms.replaced_rooms():
            new = text_of(object_of(room.tombstone, "content"), "replacement_room")
            if _ROOM_ID.fullmatch(new) and self._rooms.successors.last_of(room.room_id) != new:
                changed |= self._look_at(room, new)
        return changed

    def _look_at(self, room: Room, new: str) -> bool:
        sender = text_of(room.tombstone, "sender")
        replacement = self._rooms.get(new)
        if not may_replace(room, sender):
            return self._decide(room, new, "powerless")
        direct = self._rooms.was_made_for(room.room_id, sender)
        if replacement is None:
            return self._join(room, new, sender, direct=direct)
        if predecessor_of(replacement.create) != room.room_id:
            return self._decide(room, new, "no_predecessor")
        if not self._rooms.successors.follow(room.room_id, new):
            return self._decide(room, new, "impossible")
        if direct:
            self._invites.follow(room.room_id, new, sender, direct=True, joined=True)
            self.asked = True
        _log.info("matrix.upgrade_followed", room=room.room_id, replacement=new)
        return True

    def _join(self, room: Room, new: str, sender: str, *, direct: bool) -> bool:
        if not self._may_invite(sender):
            return self._decide(room, new, "not_allowed")
        if self._decided.get(room.room_id) != (new, "joining"):
            self._decide(room, new, "joining")
            self._invites.follow(room.room_id, new, sender, direct=direct)
            self.asked = True
        return False

    def _decide(self, room: Room, new: str, outcome: str) -> bool:
        if self._decided.get(room.room_id) != (new, outcome):
            self._decided[room.room_id] = (new, outcome)
            _log.info("matrix.upgrade_seen", room=room.room_id, replacement=new, outcome=outcome)
        return False
