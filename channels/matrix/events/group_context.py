"""
Collects the talk of groups that does not address the bot, as context for the next question there. Pure.
Theory of operation. Somebody who asks "which of the two?" means what was said before. So the newest lines of
a room (or of one of its threads) wait here, bounded in number and length, and go along with the next question
as its background, but only with that of somebody who was in the room when they were said or edited. They are
kept in memory only: what nobody asks about is never written down.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from agent_core.messages import Background
from channels.matrix.events.media_events import FileNote

_MAX_LINE = 1000
_CUT = " […]"


@dataclass(slots=True)
class _Line:
    event_id: str
    said: Background
    file: FileNote | None
    unseen_by: set[str] = field(default_factory=set)
    """Who has come into the room since."""


class GroupContext:
    """Recent lines per *place* (room id, thread root or ""), up to ``messages`` and ``chars``."""

    def __init__(self, *, messages: int, chars: int) -> None:
        self._messages = messages
        self._chars = chars
        self._places: OrderedDict[tuple[str, str], deque[_Line]] = OrderedDict()

    def remember(
        self, place: tuple[str, str], event_id: str, said: Background, file: FileNote | None = None
    ) -> None:
        """Add a line, with what is needed to fetch its file if it has one."""
        if self._messages == 0:
            return
        lines = self._places.setdefault(place, deque())
        self._places.move_to_end(place)
        if any(line.event_id == event_id for line in lines):
            return
        lines.append(_Line(event_id, _short(said), file))
        while len(lines) > self._messages or sum(len(line.said.text) for line in lines) > self._chars:
            lines.popleft()
        while len(self._places) > 500:
            self._places.popitem(last=False)

    def change(self, room_id: str, event_id: str, sender: str, text: str) -> None:
        """Apply an edit of a line by its sender; edits by others change nothing."""
        for _, line in self._lines(room_id, event_id):
            if line.said.sender == sender:
                line.said = _short(line.said.model_copy(update={"text": text}))

    def place_of(self, room_id: str, event_id: str, sender: str) -> tuple[str, str] | None:
        """Return where a line of this sender is, which nobody has asked about yet; None if there is none."""
        for place, lines in self._places.items():
            if place[0] == room_id and any(
                (line.event_id, line.said.sender) == (event_id, sender) for line in lines
            ):
                return place
        return None

    def remove_redacted_line(self, room_id: str, event_id: str, sender: str = "") -> None:
        """Remove a redacted line: by its sender, or by somebody who may redact."""
        for lines, line in self._lines(room_id, event_id):
            if sender in ("", line.said.sender):
                lines.remove(line)

    def _lines(self, room_id: str, event_id: str) -> list[tuple[deque[_Line], _Line]]:
        places = [lines for (room, _), lines in self._places.items() if room == room_id]
        return [(lines, line) for lines in places for line in lines if line.event_id == event_id]

    def note_join(self, room_id: str, person: str) -> None:
        """Note that somebody has joined or rejoined a room and has not seen the earlier lines."""
        for (room, _), lines in self._places.items():
            for line in lines if room == room_id else ():
                line.unseen_by.add(person)

    def newest_file_for(self, place: tuple[str, str], asker: str) -> FileNote | None:
        """Return the newest file that ``asker`` has seen in a place."""
        lines = reversed(self._places.get(place, deque[_Line]()))
        return next((line.file for line in lines if line.file and asker not in line.unseen_by), None)

    def lines_for(self, place: tuple[str, str], asker: str, *, keep: bool) -> tuple[Background, ...]:
        """Return the lines that ``asker`` has seen, oldest first; remove them unless ``keep``."""
        lines = self._places.get(place, deque[_Line]())
        told = [line for line in lines if asker not in line.unseen_by]
        if not keep:
            left = deque(line for line in lines if asker in line.unseen_by)
            self._places[place] = left
            if not left:
                del self._places[place]
        return tuple(line.said for line in told)

    def forget(self, room_id: str) -> None:
        """Remove a room that the bot has left."""
        for place in [place for place in self._places if place[0] == room_id]:
            del self._places[place]


def _short(said: Background) -> Background:
    if len(said.text) <= _MAX_LINE:
        return said
    return said.model_copy(update={"text": said.text[: _MAX_LINE - len(_CUT)] + _CUT})
