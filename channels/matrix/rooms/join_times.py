"""
When people joined rooms whose history is hidden from later members. Pure. The bot must not tell people more
than the homeserver would show. The order in which our server hands events over decides: messages and joins
get increasing stamps of our clock (`JoinTimes.stamp`), and times in events count for nothing. A join that may
have been missed, or too many, begins everybody's view again: too little is shown rather than too much.
Members of a replaced room keep their view. A room closed once stays closed, as visibility at an event counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog

from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.rooms.room_state import Rooms

JOININGS = "joinings"
MAX_PEOPLE = 500
_STEP = timedelta(milliseconds=1)
_AHEAD = timedelta(minutes=1)
_EVERYBODY = "*"
_log = structlog.get_logger(__name__)


class JoinTimes:
    """The join times in one account's rooms."""

    def __init__(self, user_id: str, rooms: Rooms) -> None:
        self._user_id = user_id
        self._rooms = rooms
        self._since: dict[str, dict[str, datetime]] = {}
        """By room, since when people are in it; `_EVERYBODY` stands for all."""
        self._away: set[tuple[str, str]] = set()
        self._closed: set[str] = set()
        """Rooms that were seen with a closed past."""
        self._latest: datetime | None = None
        self._highest: datetime | None = None
        """Later than no stamp, also of a time when our clock was wrong."""
        self._changed = False

    def load(self, text: str | None) -> None:
        """Load what `position` returned in an earlier run; invalid data counts as nothing."""
        try:
            kept = json.loads(text) if text else {}
            self._latest = self._highest = datetime.fromisoformat(kept["highest"]) if kept else None
            self._away = {(room, person) for room, person in kept.get("away", [])}
            self._closed = {str(room) for room in kept.get("closed", [])}
            self._since = {
                room: {person: datetime.fromisoformat(at) for person, at in people.items()}
                for room, people in kept.get("since", {}).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            _log.error("matrix.joinings_unreadable", error=type(error).__name__)
            self._latest, self._highest = None, None
            self._away, self._closed, self._since = set(), set(), {}

    def position(self) -> dict[str, str]:
        """The text to commit with the messages; nothing if nothing has changed."""
        return {JOININGS: self._dump()} if self._changed else {}

    @contextmanager
    def committing(self) -> Iterator[None]:
        """While inside, what `position` gave is being committed; what changes meanwhile is not in it."""
        changed, self._changed = self._changed, False
        try:
            yield
        except BaseException:
            self._changed = self._changed or changed
            raise

    def stamp(self, room_id: str, now: datetime, *, late_since: float | None = None) -> datetime | None:
        """
        Return when a message was seen, later than all before it; None if the room's past is open.

        A message that became readable late was seen at ``late_since`` by our clock, before all that came
        after it.
        """
        if not self.is_closed(room_id):
            return None
        if late_since is not None:
            return datetime.fromtimestamp(late_since, now.tzinfo) - _STEP
        if self._latest is not None and timedelta() <= self._latest - now < _AHEAD:
            now = self._latest + _STEP  # the same instant, or a clock that was set a little
        return self._seen(now)

    def is_closed(self, room_id: str) -> bool:
        """Return True if people who join a room now cannot see all of its history."""
        here = (room_id, *self._rooms.successors.earlier(room_id))
        for one in here:
            room = self._rooms.get(one)
            if one not in self._closed and room is not None and (room.hides_past or room.was_closed):
                self._closed.add(one)
                self._changed = True
        return not self._closed.isdisjoint(here)

    def note_membership(self, room_id: str, event: JsonObject, now: datetime) -> bool:
        """Process a membership event; returns whether somebody has joined."""
        person = text_of(event, "state_key")
        membership = text_of(object_of(event, "content"), "membership")
        if person == self._user_id:
            return False  # see `joined`
        if membership in ("leave", "ban"):
            if self.is_closed(room_id) or person in self._since.get(room_id, {}):
                self._note(room_id, person, now)
                self._away.add((room_id, person))
            return False
        before = text_of(object_of(object_of(event, "unsigned"), "prev_content"), "membership")
        if membership != "join" or (before == "join" and (room_id, person) not in self._away):
            return False
        if self.is_closed(room_id):
            self._note(room_id, person, now)
        self._away.discard((room_id, person))
        return True

    def note_join(self, room_id: str, now: datetime) -> None:
        """Note that the bot has joined a room; must be called before any message in it is read."""
        if self.is_closed(room_id):
            self._since[room_id] = {self._user_id: self._after_all(now)}

    def note_replacement(self, now: datetime) -> None:
        """Rooms have taken the place of others: who is only there begins with this moment."""
        for room in self._rooms:
            follows = next(self._rooms.successors.earlier(room.room_id), None) is not None
            if follows and room.room_id not in self._since:
                self.note_join(room.room_id, now)

    def note_missed_joins(self, room_id: str, now: datetime) -> None:
        """Note that joins may have been missed in a room."""
        if self.is_closed(room_id):
            self._since[room_id] = {_EVERYBODY: self._after_all(now)}

    def visible_from(self, room_id: str, person: str) -> datetime | None:
        """The time from which a person may see messages of a room; None: from its beginning."""
        people = self._since.get(room_id, {})
        earlier = next(self._rooms.successors.earlier(room_id), None)
        if earlier is not None and _EVERYBODY not in people:
            there = self._rooms.get(earlier)
            if there is not None and person in there.joined:
                return self.visible_from(earlier, person)
        known = (people[one] for one in (person, self._user_id, _EVERYBODY) if one in people)
        return max(known, default=None)

    def forget(self, room_id: str) -> None:
        """Forget a room."""
        self._changed = self._changed or room_id in self._since
        self._since.pop(room_id, None)
        self._away = {(room, person) for room, person in self._away if room != room_id}

    def _note(self, room_id: str, person: str, now: datetime) -> None:
        people = self._since.setdefault(room_id, {})
        people.pop(person, None)
        people[person] = self._after_all(now)
        if len(people) > MAX_PEOPLE:
            newest = people[person]
            self.forget(room_id)
            self._since[room_id] = {_EVERYBODY: newest}

    def _after_all(self, now: datetime) -> datetime:
        """A stamp that is later than all that was seen, also if our clock was far ahead then."""
        return self._seen(now if self._highest is None else max(now, self._highest + _STEP))

    def _seen(self, at: datetime) -> datetime:
        self._latest = at
        self._highest = at if self._highest is None else max(at, self._highest)
        self._changed = True
        return at

    def _dump(self) -> str:
        since = {
            room: {person: at.isoformat() for person, at in people.items()}
            for room, people in self._since.items()
        }
        kept = {
            "highest": self._highest and self._highest.isoformat(),
            "away": sorted(self._away),
            "closed": sorted(self._closed),
            "since": since,
        }
        return json.dumps(kept, separators=(",", ":"))
