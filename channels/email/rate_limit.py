"""
Limits how many answers one sender gets; mails count from the time at which they arrived. Pure.

By arrival, so that mails after a downtime are no burst; by identity, so that a mail read twice counts once.
`AnswerLimiter.place` assigns the next free time instead of refusing; `AnswerLimiter.admit` knows only now or
never, for what needs no answer. The circuit breaker counts the total.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from channels.email.config import MailAnswerLimits

HOUR_S = 3600.0
DAY_S = 86400.0
MAX_ENTRIES = 10_000
MAX_WAITING = 100
"""So many mails of one sender wait at most."""
MAX_WAITING_IN_ALL = 1000
"""Whoever owns a domain has any number of addresses; what they send more, a person judges."""


@dataclass(frozen=True, slots=True)
class AnswerSlot:
    """
    The time of an answer: ``wait_s`` seconds after the intake.

    ``first`` means that no other mail of the sender waits, so the sender does not know of the wait yet.
    """

    wait_s: float = 0.0
    first: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    at: float
    sender: str
    allowed: bool
    due: float
    first: bool = False


class AnswerLimiter:
    """Remembers the mails of the last day, one bucket for each sender."""

    def __init__(self, limits: MailAnswerLimits) -> None:
        per = ((limits.sender_per_hour, HOUR_S), (limits.sender_per_day, DAY_S))
        self._rules = [(limit, window_s) for limit, window_s in per if limit]
        self._entries: dict[str, _Entry] = {}
        self.changed = False
        """Whether there is something that the last `dump` did not hold."""

    def place(
        self, native_id: str, *, sender: str, at: datetime, now: datetime | None = None
    ) -> AnswerSlot | None:
        """
        Reserve the next time for the answer to a mail.

        Args:
            native_id: The mail. A repeated call returns the same time and counts once.
            at: Its arrival; a time in the future counts as now.
            now: The intake, from which the wait is counted; None: the arrival.

        Returns: None if too many mails of this sender, or of all, wait already.
        """
        if not self._rules:
            return AnswerSlot()  # nothing to remember either
        taken = (now or at).timestamp()
        known = self._entries.get(native_id)
        if known is not None:
            return AnswerSlot(max(known.due - taken, 0.0), known.first) if known.allowed else None
        arrived = min(at.timestamp(), taken)
        counted = self._counted(arrived)
        used = sorted(entry.due for entry in counted if entry.sender == sender)
        due, before = arrived, -1.0
        while due > before:  # a gap of one rule may be none of the other
            before = due
            for limit, window_s in self._rules:
                due = _earliest(due, limit, window_s, used)
        first = due > taken and not any(taken < each for each in used)
        waiting = sum(entry.due > arrived for entry in counted)
        room = sum(each > arrived for each in used) < MAX_WAITING and waiting < MAX_WAITING_IN_ALL
        allowed = room or due <= arrived
        due = due if allowed else arrived
        self._note(native_id, _Entry(arrived, sender, allowed, due, first))
        return AnswerSlot(max(due - taken, 0.0), first) if allowed else None

    def admit(self, native_id: str, *, sender: str, at: datetime) -> bool:
        """Count a mail (repeated calls count once); return True if the limit allows it now."""
        known = self._entries.get(native_id)
        if known is not None:
            return known.allowed
        now = at.timestamp()
        used = [entry.due for entry in self._counted(now) if entry.sender == sender]
        allowed = all(sum(due > now - window_s for due in used) < limit for limit, window_s in self._rules)
        self._note(native_id, _Entry(now, sender, allowed, now))
        return allowed

    def _counted(self, now: float) -> list[_Entry]:
        """Return the counted entries; an arrival over a day ahead came from a wrong clock."""
        return [entry for entry in self._entries.values() if entry.allowed and entry.at < now + DAY_S]

    def _note(self, native_id: str, entry: _Entry) -> None:
        self._entries[native_id] = entry
        old = [key for key, each in self._entries.items() if entry.at - each.due > DAY_S]
        for key in old:
            del self._entries[key]
        while len(self._entries) > MAX_ENTRIES:
            # What is refused comes first: otherwise somebody could have what counts forgotten by it.
            refused = (key for key, each in self._entries.items() if not each.allowed)
            del self._entries[next(refused, None) or next(iter(self._entries))]
        self.changed = True

    def dump(self) -> str:
        """The state as text, for a file."""
        self.changed = False
        return json.dumps(
            [[key, e.at, e.sender, e.allowed, e.due, e.first] for key, e in self._entries.items()]
        )

    def load(self, text: str) -> bool:
        """Load what `dump` wrote; False if it is damaged; then nothing is loaded."""
        try:
            entries = {str(row[0]): _entry(row) for row in json.loads(text)}
        except (ValueError, TypeError, LookupError):
            return False
        self._entries = dict(list(entries.items())[-MAX_ENTRIES:])
        return True


def _entry(row: Sequence[object]) -> _Entry:
    _, at, sender, allowed, due, first = row
    return _Entry(float(str(at)), str(sender), bool(allowed), float(str(due)), bool(first))


def _earliest(start: float, limit: int, window_s: float, used: Sequence[float]) -> float:
    """Return the first moment from ``start`` at which no window exceeds ``limit``; ``used`` is sorted."""
    for first, last in zip(used, used[limit - 1 :], strict=False):
        # Where these fill a window, nothing fits from one before their end to one after their beginning.
        if last - first < window_s and last - window_s < start < first + window_s:
            start = first + window_s
    return start
