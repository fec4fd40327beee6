"""
The circuit breaker stops mail loops, in which two programs answer each other. Pure.

It counts what goes out per hour, in a thread and in all, whoever the other side is. While open, outgoing
mails wait and incoming ones are quarantined; it closes after a while or by a person, and survives restarts,
which the loop may cause. Answers to the owner count only for their own thread and a limit beyond what a
person asks.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass

from channels.email.config import CircuitBreakerConfig

HOUR_S = 3600.0
MAX_KEPT = 5_000
EVERYWHERE = ""


@dataclass(frozen=True, slots=True)
class BreakerOpen:
    """
    An open circuit breaker: the reason, the place (a thread, or `EVERYWHERE`), and the end on the monotonic
    clock.
    """

    thread: str
    why: str
    until: float


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
        self.keeps_back = False
        """Whether something may be in quarantine because of it; see `all_let_in`."""

    def all_open(self, now: float) -> list[BreakerOpen]:
        """All places where nothing is answered now."""
        return [found for found in self._tripped.values() if now < found.until]

    def reset(self, now: float) -> list[BreakerOpen]:
        """Close the breaker wherever it is open; returns what was open."""
        found = self.all_open(now)
        self._tripped.clear()
        self.changed = True
        return found

    def all_let_in(self) -> None:
        """The mails that it held back have been accepted, except where it is open again."""
        self.keeps_back = bool(self._tripped)
        self.changed = True

    def open_reason(self, thread: str, now: float, *, owner: bool = False) -> BreakerOpen | None:
        """Return True if nothing may be answered in this thread, to the owner or to anybody else."""
        for place in (thread,) if owner else (EVERYWHERE, thread):
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
            return self._trip(thread, f"{len(here)} answers went into one thread within an hour", now)
        if not owner and 0 < settings.answers_per_hour <= others:
            return self._trip(EVERYWHERE, f"{others} answers went out within an hour", now)
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

    def _trip(self, thread: str, why: str, now: float) -> BreakerOpen:
        if len(self._tripped) >= MAX_KEPT:
            self._tripped = {place: one for place, one in self._tripped.items() if now < one.until}
        tripped = self._tripped[thread] = BreakerOpen(thread, why, now + self._settings.open_minutes * 60)
        self._untold = {place for place in (*self._untold, thread) if place in self._tripped}
        self.changed = self.keeps_back = True
        # Otherwise the first answer afterwards would open it again.
        self._sent = deque(
            (one for one in self._sent if thread not in (EVERYWHERE, one.thread)), maxlen=MAX_KEPT
        )
        return tripped

    def dump(self, now: float, wall: float) -> str:
        """Return the state as text; ``wall`` is the moment ``now`` as Unix time, for the next process."""
        self.changed = False
        self._forget(now)
        since = wall - now
        return json.dumps(
            {
                "pulled": [[one.thread, one.why, one.until + since] for one in self.all_open(now)],
                "sent": [[one.at + since, one.thread, one.owner] for one in self._sent],
                "keeps_back": self.keeps_back,
            }
        )

    def load(self, text: str, now: float, wall: float) -> bool:
        """Load the result of `dump`, no wait longer than from now on; False, without effect, if damaged."""
        since = wall - now
        longest = now + self._settings.open_minutes * 60
        try:
            kept = json.loads(text)
            tripped = [
                BreakerOpen(str(thread), str(why), min(float(until) - since, longest))
                for thread, why, until in kept["pulled"]
            ]
            sent = [
                _Sent(min(float(at) - since, now), str(thread), owner[-1] is True)
                for at, thread, *owner in kept["sent"]
            ]
            keeps_back = bool(kept.get("keeps_back", True))
        except (ValueError, TypeError, LookupError):
            return False
        self._tripped = {one.thread: one for one in tripped if now < one.until}
        self._sent = deque(sorted(sent, key=lambda one: one.at), maxlen=MAX_KEPT)
        self.keeps_back = keeps_back
        self._forget(now)
        return True

    def _forget(self, now: float) -> None:
        while self._sent and now - self._sent[0].at >= HOUR_S:
            self._sent.popleft()
