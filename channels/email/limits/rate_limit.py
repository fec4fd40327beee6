"""
Limits how many answers one sender gets; mails count from the time at which they arrived. Pure.

By arrival and not by "now", so that what waited while the daemon was down is not one burst; and by identity,
so that a mail that is read twice (after a crash, after a renumbering of the mailbox) counts once and gets the
same verdict again. The total counts only senders who may write at all: otherwise strangers could use it up.

`AnswerLimiter.place` never refuses an answer for lack of room: the mail gets the next place in time. So two
programs that write to each other go on, but no faster than the limits. Places of later hours take none of
this one, and half of each hour's total is for people who are let in by name. `AnswerLimiter.admit` knows
only now and never, for what needs no answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from channels.email.config import AnswerLimits

HOUR_S = 3600.0
DAY_S = 86400.0
MAX_ENTRIES = 10_000
MAX_WAITING = 100
"""So many mails of one sender wait at most, or of all whom one pattern lets in."""
_FIELDS = 6


@dataclass(frozen=True, slots=True)
class Place:
    """
    When a mail is answered: so many seconds after it was taken in. ``first`` says that nothing else of its
    sender waits, so the sender does not know yet that there is something to wait for.
    """

    wait_s: float = 0.0
    first: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    at: float
    sender: str
    thread: str
    listed: bool
    allowed: bool
    due: float
    first: bool = False
    crowd: str = ""


class AnswerLimiter:
    """
    Remembers the mails of the last day.

    Args:
        breaker_per_hour: So many answers within an hour open the circuit breaker for everybody; 0: none do.
    """

    def __init__(self, limits: AnswerLimits, *, breaker_per_hour: int = 0) -> None:
        self._limits = limits
        most = min((each for each in (limits.total_per_hour, breaker_per_hour) if each), default=0)
        self._crowds_per_hour = (most + 1) // 2
        self._has_limits = any((*limits.model_dump().values(), self._crowds_per_hour))
        self._entries: dict[str, _Entry] = {}
        self.changed = False
        """Whether there is something that the last `dump` did not hold."""

    def place(
        self,
        native_id: str,
        *,
        sender: str,
        thread: str,
        listed: bool,
        at: datetime,
        now: datetime | None = None,
        crowd: str = "",
    ) -> Place | None:
        """
        When this mail is answered; its place is then taken.

        Args:
            native_id: The mail. Asking twice for one mail gives the same answer and counts once.
            listed: Whether the sender is among those who may write.
            at: When it arrived; a mail from the future has arrived now.
            now: When it is taken in, from which the wait is counted; None: when it arrived.
            crowd: The pattern that lets the sender in, if it is none by name: whoever owns a domain has any
                number of addresses, and must not fill the hours of others with them.

        Returns:
            None if too many mails of this sender or crowd wait already.
        """
        if not self._has_limits:
            return Place()  # nothing to remember either
        taken = (now or at).timestamp()
        known = self._entries.get(native_id)
        if known is not None:
            return Place(max(known.due - taken, 0.0), known.first) if known.allowed else None
        arrived = min(at.timestamp(), taken)
        rules = list(self._rules(arrived, sender, thread, listed=listed, crowd=crowd))
        due, before = arrived, -1.0
        while due > before:  # a gap of one rule may be none of another
            before = due
            for limit, window_s, used in rules:
                due = _earliest(due, limit, window_s, used)
        ahead = [entry for entry in self._counted(arrived) if entry.due > arrived]
        first = due > taken and not any(entry.sender == sender and entry.due > taken for entry in ahead)
        allowed = sum((entry.crowd or entry.sender) == (crowd or sender) for entry in ahead) < MAX_WAITING
        due = due if allowed else arrived
        self._note(native_id, _Entry(arrived, sender, thread, listed, allowed, due, first, crowd))
        return Place(max(due - taken, 0.0), first) if allowed else None

    def admit(self, native_id: str, *, sender: str, at: datetime) -> bool:
        """
        Whether there is room for this mail now; if so it is counted.

        Args:
            native_id: The mail. Asking twice for one mail gives the same answer and counts once.
        """
        known = self._entries.get(native_id)
        if known is not None:
            return known.allowed
        now = at.timestamp()
        allowed = all(
            limit == 0 or sum(1 for due in used if due > now - window_s) < limit
            for limit, window_s, used in self._rules(now, sender, "", listed=False)
        )
        self._note(native_id, _Entry(now, sender, "", False, allowed, now))
        return allowed

    def _counted(self, now: float) -> list[_Entry]:
        """What counts: an arrival more than a day ahead was noted by a clock that was wrong."""
        return [entry for entry in self._entries.values() if entry.allowed and entry.at < now + DAY_S]

    def _rules(
        self, now: float, sender: str, thread: str, *, listed: bool, crowd: str = ""
    ) -> Iterable[tuple[int, float, list[float]]]:
        """Each limit, the time for which it holds, and when the answers are due that it counts, in order."""
        limits, counted = self._limits, sorted(self._counted(now), key=lambda entry: entry.due)
        of_sender = [entry.due for entry in counted if entry.sender == sender]
        yield limits.sender_per_hour, HOUR_S, of_sender
        yield limits.sender_per_day, DAY_S, of_sender
        yield limits.thread_per_hour, HOUR_S, [entry.due for entry in counted if entry.thread == thread]
        if listed:
            yield limits.total_per_hour, HOUR_S, [entry.due for entry in counted if entry.listed]
        if listed and crowd:
            # Half of the hour is for people who are let in by name.
            yield (
                self._crowds_per_hour,
                HOUR_S,
                [entry.due for entry in counted if entry.listed and entry.crowd],
            )

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
            [
                [key, e.at, e.sender, e.thread, e.listed, e.allowed, e.due, e.first, e.crowd]
                for key, e in self._entries.items()
            ]
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
    """Earlier versions knew nothing of waiting."""
    at, sender, thread, listed, allowed = row[1:_FIELDS]
    due, first, *crowd = row[_FIELDS:] or (at, False)
    return _Entry(
        float(str(at)),
        str(sender),
        str(thread),
        bool(listed),
        bool(allowed),
        float(str(due)),
        bool(first),
        "".join(map(str, crowd)),
    )


def _earliest(start: float, limit: int, window_s: float, used: Sequence[float]) -> float:
    """
    The first moment from ``start`` on that makes no window hold more than ``limit`` places; ``used`` is in
    order.

    What waits for a later place takes none of the room before it.
    """
    if limit == 0:
        return start
    for first, last in zip(used, used[limit - 1 :], strict=False):
        # Where these fill a window, nothing fits from one before their end to one after their beginning.
        if last - first < window_s and last - window_s < start < first + window_s:
            start = first + window_s
    return start
