"""
Limits how many answers go out: per sender (`AnswerLimiter`), and per thread and in all by a circuit breaker,
which stops mail loops. Pure. Mails count from their arrival, so that mails after a downtime are no burst.
While the breaker is open, answers wait; it survives restarts, which the loop may cause.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from agent_core.language import _
from channels.email.config import CircuitBreakerConfig, MailAnswerLimits

HOUR_S = 3600.0
MAX_KEPT = 5_000
ALL_SENDERS = ""


@dataclass(frozen=True, slots=True)
class BreakerOpen:
    """
    An open circuit breaker: the place (a thread, or `ALL_SENDERS`), the answers that went out there within an
    hour, and the end on the monotonic clock.
    """

    thread: str
    answers: int
    until: float

    @property
    def why(self) -> str:
        """The reason, in the language of its reader."""
        if self.thread == ALL_SENDERS:
            return _("{others} answers went out within an hour", others=self.answers)
        return _("{count} answers went into one thread within an hour", count=self.answers)


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float
    thread: str
    owner: bool = False


class CircuitBreaker:
    """Watches answers. All times are seconds of one clock that never goes back."""

    def __init__(self, settings: CircuitBreakerConfig) -> None:
        self._settings = settings
        self._sent: deque[_Sent] = deque(maxlen=MAX_KEPT)
        self._tripped: dict[str, BreakerOpen] = {}
        self._untold: set[str] = set()
        self.changed = False
        """Whether there is something that the last `dump` did not hold."""

    def all_open(self, now: float) -> list[BreakerOpen]:
        """All places where nothing is answered now."""
        return [found for found in self._tripped.values() if now < found.until]

    def reset(self, now: float) -> list[BreakerOpen]:
        """Close the breaker wherever it is open; returns what was open."""
        found = self.all_open(now)
        self._tripped.clear()
        self.changed = True
        return found

    def open_reason(self, thread: str, now: float, *, owner: bool = False) -> BreakerOpen | None:
        """Return why nothing may be answered in this thread, to the owner or to anybody else."""
        for place in (thread,) if owner else (ALL_SENDERS, thread):
            found = self._tripped.get(place)
            if found is not None and now < found.until:
                return found
            self._tripped.pop(place, None)
        return None

    def may_send(self, thread: str, now: float, *, owner: bool = False) -> BreakerOpen | None:
        """
        Call this before an answer is sent; the call may open the circuit breaker. None: send it, and then
        call `sent`.

        The first who gets a `BreakerOpen` has opened it; see `is_new`.
        """
        found = self.open_reason(thread, now, owner=owner)
        if found is not None:
            return found
        settings = self._settings
        self._forget(now)
        here = [sent for sent in self._sent if sent.thread == thread]
        others = sum(not sent.owner for sent in self._sent)
        most_here = settings.answers_per_hour if owner else settings.thread_answers_per_hour
        if 0 < most_here <= len(here):
            return self._trip(thread, len(here), now)
        if not owner and 0 < settings.answers_per_hour <= others:
            return self._trip(ALL_SENDERS, others, now)
        return None

    def count_answer(self, thread: str, now: float, *, owner: bool = False) -> None:
        """Count a sent answer."""
        if not (self._settings.answers_per_hour or self._settings.thread_answers_per_hour):
            return  # nobody will ask
        self._sent.append(_Sent(now, thread, owner))
        self.changed = True

    def is_new(self, tripped: BreakerOpen) -> bool:
        """Return True once after the circuit breaker has opened."""
        if tripped.thread not in self._untold:
            return False
        self._untold.discard(tripped.thread)
        return True

    def _trip(self, thread: str, answers: int, now: float) -> BreakerOpen:
        if len(self._tripped) >= MAX_KEPT:
            self._tripped = {place: one for place, one in self._tripped.items() if now < one.until}
        tripped = self._tripped[thread] = BreakerOpen(thread, answers, now + self._settings.open_minutes * 60)
        self._untold = {place for place in (*self._untold, thread) if place in self._tripped}
        self.changed = True
        # Otherwise the first answer afterwards would open it again.
        self._sent = deque(
            (one for one in self._sent if thread not in (ALL_SENDERS, one.thread)), maxlen=MAX_KEPT
        )
        return tripped

    def dump(self, now: float, wall: float) -> str:
        """Return the state as text; ``wall`` is the moment ``now`` as Unix time, for the next process."""
        self.changed = False
        self._forget(now)
        since = wall - now
        return json.dumps(
            {
                "pulled": [[one.thread, one.answers, one.until + since] for one in self.all_open(now)],
                "sent": [[one.at + since, one.thread, one.owner] for one in self._sent],
            }
        )

    def load(self, text: str, now: float, wall: float) -> bool:
        """Load the result of `dump`, no wait longer than from now on; False, without effect, if damaged."""
        since = wall - now
        longest = now + self._settings.open_minutes * 60
        try:
            kept = json.loads(text)
            tripped = [
                BreakerOpen(str(thread), int(answers), min(float(until) - since, longest))
                for thread, answers, until in kept["pulled"]
            ]
            sent = [
                _Sent(min(float(at) - since, now), str(thread), owner[-1] is True)
                for at, thread, *owner in kept["sent"]
            ]
        except (ValueError, TypeError, LookupError):
            return False
        self._tripped = {one.thread: one for one in tripped if now < one.until}
        self._sent = deque(sorted(sent, key=lambda one: one.at), maxlen=MAX_KEPT)
        self._forget(now)
        return True

    def _forget(self, now: float) -> None:
        while self._sent and now - self._sent[0].at >= HOUR_S:
            self._sent.popleft()


DAY_S = 86400.0
MAX_ENTRIES = 10_000
MAX_WAITING = 100
"""The most mails of one sender that wait."""
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

    def reserve(
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
