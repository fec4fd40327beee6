"""
The state of the rooms that the bot is in, from answers of ``/sync``. Pure: nothing is fetched. The first sync
of a run asks for the full state. A room stays encrypted once any ``m.room.encryption`` was seen; its absence
proves nothing (``encryption_gate``). It is direct only if it was called so for the very person who writes,
the summary counts two members, the writer is in it, and nobody can read or join uninvited; unknown counts as
a group. Membership events without a summary and restarts make the count unknown (`Rooms.is_size_unknown`), as
Synapse omits members with lazy loading, and its state may lack concurrent events (`Rooms.is_unchecked`). All
fields are untrusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from channels.matrix.client.json_access import JsonObject, events_of, object_of, text_of
from channels.matrix.rooms.upgrades import Successors

_MAX_MEMBERS_KEPT = 1000
_MAX_NAME = 100
_JOINERS = "\u200c\u200d"
"""Several scripts and many emoji are made with them."""
_OPEN_DOORS = frozenset({"public", "restricted", "knock_restricted"})
"""Rules by which people can join without being invited by somebody in the room."""


class Room:
    """One room that the bot has joined."""

    def __init__(self, room_id: str, *, encrypted: bool = False) -> None:
        self.room_id = room_id
        self.encrypted = encrypted
        self.member_count: int | None = None
        """Joined and invited members; None: unknown."""
        self.joined: set[str] = set()
        """Members of which it is known that they are there; with lazy loading not all of them."""
        self.invited: set[str] = set()
        """People who are invited and have not come yet."""
        self.names: dict[str, str] = {}
        self.revision = 0
        """Another one whenever there may be other members than before."""
        self.join_rule = "invite"
        self.visibility = "shared"
        self.was_closed = False
        """Who came in was at some time shown nothing of what was said before."""
        self.create: JsonObject = {}
        """The event that made the room."""
        self.power_levels: JsonObject = {}
        """The content of ``m.room.power_levels``."""
        self.tombstone: JsonObject = {}
        """The event that says that another room has taken this one's place."""
        self.name = ""
        """How people call it, as somebody who may has said."""
        self.named_by = ""
        """Who has said that."""
        self.checked = False
        """The homeserver was asked once who is in the room and who can come in."""

    @property
    def is_open(self) -> bool:
        """Return True if uninvited people can read the messages, now or later."""
        return self.join_rule in _OPEN_DOORS or self.visibility == "world_readable"

    @property
    def hides_past(self) -> bool:
        """Return True if people who join the room see no earlier messages."""
        return self.visibility not in ("shared", "world_readable")

    @property
    def version(self) -> str:
        """The version of the room; empty while it is unknown."""
        if not self.create:
            return ""
        return text_of(object_of(self.create, "content"), "room_version") or "1"

    def state(self, event: JsonObject) -> None:
        """Process one event of the state or the timeline; others are ignored."""
        if not isinstance(event.get("state_key"), str):
            return
        match event.get("type"):
            case "m.room.encryption" if event["state_key"] == "":
                self.encrypted = True
            case "m.room.member":
                self._member(event["state_key"], object_of(event, "content"))
            case "m.room.join_rules" if event["state_key"] == "":
                self.join_rule = text_of(object_of(event, "content"), "join_rule")
            case "m.room.history_visibility" if event["state_key"] == "":
                self.visibility = text_of(object_of(event, "content"), "history_visibility")
                self.was_closed = self.was_closed or self.hides_past
            case "m.room.create" if event["state_key"] == "":
                self.create = event
            case "m.room.power_levels" if event["state_key"] == "":
                self.power_levels = object_of(event, "content")
            case "m.room.tombstone" if event["state_key"] == "":
                self.tombstone = event
            case "m.room.name" if event["state_key"] == "":
                self.name = shown_name(text_of(object_of(event, "content"), "name"))
                self.named_by = text_of(event, "sender")
            case _:
                pass

    def summary(self, summary: JsonObject) -> None:
        """Process the member counts, which the server sends only when they change."""
        joined, invited = summary.get("m.joined_member_count"), summary.get("m.invited_member_count")
        if isinstance(joined, int) and isinstance(invited, int):
            self.member_count = joined + invited

    def members(self, events: Iterable[JsonObject]) -> None:
        """Process the complete list of members."""
        self.joined.clear()
        self.invited.clear()
        count = 0
        for event in events:
            membership = text_of(object_of(event, "content"), "membership")
            if event.get("type") == "m.room.member" and membership in ("join", "invite"):
                count += 1
                self.state(event)
        self.member_count = count

    def _member(self, user_id: str, content: JsonObject) -> None:
        if content.get("membership") != "join" or user_id not in self.joined:
            self.revision += 1
        self.invited.discard(user_id)
        if content.get("membership") != "join":
            if content.get("membership") == "invite" and len(self.invited) < _MAX_MEMBERS_KEPT:
                self.invited.add(user_id)
            self.joined.discard(user_id)
            self.names.pop(user_id, None)
            return
        if len(self.joined) >= _MAX_MEMBERS_KEPT and user_id not in self.joined:
            forgotten = next(iter(self.joined))
            self.joined.discard(forgotten)
            self.names.pop(forgotten, None)
        self.joined.add(user_id)
        self.names[user_id] = _name(content)


class Rooms:
    """All rooms of the account."""

    def __init__(self, user_id: str) -> None:
        self._user_id = user_id
        self._rooms: dict[str, Room] = {}
        self._direct: dict[str, set[str]] = {}
        """By room, whom ``m.direct`` names as the partner."""
        self._promised: dict[str, str] = {}
        """By room, who has invited the bot to it as to a direct one."""
        self._replaced: set[str] = set()
        self.secret: set[str] = set()
        """Rooms that were ever seen to be encrypted, left ones too: nothing that a server says undoes it."""
        self.unread: set[str] = set()
        """Rooms of which the server has told more than can be read, until the full state comes again."""
        self.successors = Successors()

    def __len__(self) -> int:
        return len(self._rooms)

    def __iter__(self) -> Iterator[Room]:
        return iter(self._rooms.values())

    def get(self, room_id: str) -> Room | None:
        """The room, or None if the bot is not known to be in it."""
        return self._rooms.get(room_id)

    def conversation_of(self, room_id: str) -> str:
        """The name of a room's session: that of the first of the rooms that it replaced."""
        return self.successors.first_of(room_id)

    def room_of(self, conversation: str) -> str:
        """The room in which a session continues."""
        return self.successors.last_of(conversation)

    def replaced_rooms(self) -> list[Room]:
        """The rooms whose own state says that another room has replaced them."""
        return [self._rooms[room_id] for room_id in sorted(self._replaced & self._rooms.keys())]

    def was_made_for(self, room_id: str, user_id: str) -> bool:
        """Return True if a room was marked as direct for a person, alone or not."""
        return user_id in self._direct.get(room_id, ()) or self._promised.get(room_id) == user_id

    def forget(self) -> None:
        """Start empty, before a sync with full state."""
        self._rooms.clear()
        self.unread.clear()

    def is_secret(self, room_id: str) -> None:
        """Mark a room as encrypted, for good."""
        self.secret.add(room_id)
        if room_id in self._rooms:
            self._rooms[room_id].encrypted = True

    def dump_secret(self) -> str:
        """The encrypted rooms as a text for `load_secret`."""
        return json.dumps(sorted(self.secret))

    def load_secret(self, text: str | None) -> None:
        """Load which rooms are encrypted; invalid data counts as nothing."""
        try:
            found = json.loads(text or "[]")
        except ValueError:
            found = []
        self.secret.update(one for one in found if isinstance(one, str))

    def mark_direct(self, room_id: str, partner: str) -> None:
        """Note that the invitation, which came from ``partner``, marked the room as direct."""
        self._promised[room_id] = partner

    def update(self, sync: JsonObject) -> list[str]:
        """Process a whole answer of ``/sync``; returns the rooms that were left."""
        for event in events_of(sync, "account_data"):
            if event.get("type") == "m.direct":
                before, self._direct = self._direct, _direct_rooms(object_of(event, "content"))
                for room_id in before.keys() - self._direct.keys():
                    self._promised.pop(room_id, None)  # somebody with our account says that it is none
        rooms = object_of(sync, "rooms")
        for room_id, room in object_of(rooms, "join").items():
            if room is None:
                self.unread.add(room_id)
                self._rooms.pop(room_id, None)
            elif room_id not in self.unread:
                self._joined(room_id, room)
        self.unread -= object_of(rooms, "leave").keys()
        gone = [room_id for room_id in object_of(rooms, "leave") if self._rooms.pop(room_id, None)]
        for room_id in object_of(rooms, "leave"):
            self._promised.pop(room_id, None)
        return gone

    def seen_in_gap(self, room_id: str, events: Iterable[JsonObject], state: Iterable[JsonObject]) -> None:
        """Process events from ``/messages``: names, encryption, and that counts may be outdated."""
        room = self._room(room_id)
        for event in state:
            if event.get("type") == "m.room.member" and text_of(event, "state_key") not in room.joined:
                # The state as of then: good for a name, not for knowing who is there now.
                room.names.setdefault(text_of(event, "state_key"), _name(object_of(event, "content")))
        for event in events:
            if event.get("type") == "m.room.member" and isinstance(event.get("state_key"), str):
                room.member_count = None
            elif event.get("type") == "m.room.encryption":
                room.state(event)
        self._note(room)

    def name_in(self, room_id: str, user_id: str) -> str:
        """Return a person's display name in a room, or ""."""
        room = self._rooms.get(room_id)
        return "" if room is None else room.names.get(user_id, "")

    def was_abandoned(self, room_id: str, events: Iterable[JsonObject]) -> bool:
        """
        Return True if ``events``, just received, left the bot alone in a room made by somebody else.

        A room with a tombstone does not count: its people have moved to another.
        """
        room = self._rooms.get(room_id)
        if room is None or room.member_count != 1 or room.tombstone or not room.create:
            return False
        return text_of(room.create, "sender") != self._user_id and any(
            event.get("type") == "m.room.member"
            and event.get("state_key") != self._user_id
            and text_of(object_of(event, "content"), "membership") in ("leave", "ban")
            for event in events
        )

    def is_size_unknown(self, room_id: str) -> bool:
        """Return True if the room may be one of two, but its number of members is unknown."""
        room = self._rooms.get(room_id)
        if room is None or room.member_count is not None:
            return False
        others = (room.joined | room.invited) - {self._user_id}
        return self.is_called_direct(room_id) or len(others) <= 1

    def is_unchecked(self, room_id: str) -> bool:
        """Return True if this room is marked as direct and the homeserver did not confirm its privacy."""
        room = self._rooms.get(room_id)
        return room is not None and not room.checked and self.is_called_direct(room_id)

    def is_called_direct(self, room_id: str) -> bool:
        """Return True if somebody marked this room as direct."""
        return room_id in self._direct or room_id in self._promised

    def is_direct(self, room_id: str, sender: str) -> bool:
        """Return True if ``sender`` and the bot are alone in a room that was made for the two."""
        room = self._rooms.get(room_id)
        return (
            room is not None
            and self.was_made_for(room_id, sender)
            and self.is_alone_with(room_id, sender)
            and not room.is_open
        )

    def is_alone_with(self, room_id: str, sender: str) -> bool:
        """Return True if nobody but ``sender`` and the bot is in a room or invited, whatever its purpose."""
        room = self._rooms.get(room_id)
        return (
            room is not None and room.member_count == 2 and sender in room.joined and sender != self._user_id
        )

    def is_overheard(self, room_id: str, partner: str | None) -> bool:
        """
        Return True if others may read words to ``partner`` here; an unknown state counts as yes.

        Without a partner the words are for the person the room is direct for.
        """
        room = self._rooms.get(room_id)
        if room is None or room.member_count is None or room.is_open:
            return True
        meant = {partner} if partner else self._direct.get(room_id, set()) | {self._promised.get(room_id, "")}
        alone = room.member_count <= 1
        return not alone and (room.member_count > 2 or not meant & (room.joined | room.invited))

    def _room(self, room_id: str) -> Room:
        return self._rooms.setdefault(room_id, Room(room_id, encrypted=room_id in self.secret))

    def _note(self, room: Room) -> None:
        if room.encrypted:
            self.secret.add(room.room_id)

    def _joined(self, room_id: str, joined: JsonObject) -> None:
        room = self._room(room_id)
        counted = object_of(joined, "summary")
        timeline = events_of(joined, "timeline")
        for event in (*events_of(joined, "state"), *timeline):
            room.state(event)
        self._note(room)
        if room.tombstone:
            self._replaced.add(room_id)
        if any(event.get("type") == "m.room.member" for event in timeline) and not counted:
            room.member_count = None
        room.summary(counted)


def _name(content: JsonObject) -> str:
    """Return a display name on one line, shortened and without control characters."""
    return shown_name(text_of(content, "displayname"))


def shown_name(name: str) -> str:
    """A name in one line, without invisible characters."""
    name = name[: 10 * _MAX_NAME]
    shown = "".join(char for char in name if char.isprintable() or char.isspace() or char in _JOINERS)
    return " ".join(shown.split())[:_MAX_NAME]


def _direct_rooms(content: JsonObject) -> dict[str, set[str]]:
    """Invert ``m.direct``: from person → rooms to room → people."""
    partners: dict[str, set[str]] = {}
    for user_id, room_ids in content.items():
        for room_id in room_ids if isinstance(room_ids, list) else []:
            if isinstance(room_id, str):
                partners.setdefault(room_id, set()).add(user_id)
    return partners
