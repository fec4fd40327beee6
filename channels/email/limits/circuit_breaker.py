"""
The circuit breaker stops mail loops, in which two programs answer each other. Pure.

The limits (``rate_limit``) count questions, per sender and thread. The circuit breaker counts what goes out,
and looks at it: so many answers in an hour, the same text again and again are a loop, whoever is on the other
side and whatever the header fields say; and who gets one mail after another that comes back gets none for a
while. While it is open, nothing is answered: outgoing mails wait, and incoming mails wait in quarantine until
it closes. It closes automatically after a while, or when a person resets it. A restart changes nothing,
because a daemon that the loop itself restarts must not start the loop again.

Other people never shut the owner out: answers to the owner count for their own thread alone, and only
more answers than a person can ask for in an hour stop that thread.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from dataclasses import dataclass

from channels.email.config import CircuitBreakerConfig

HOUR_S = 3600.0
MAX_KEPT = 5_000
EVERYWHERE = ""
_TO = "to "


@dataclass(frozen=True, slots=True)
class BreakerOpen:
    """
    An open circuit breaker: the reason, the place (a thread, `EVERYWHERE`, or a recipient: `to`), and the end
    on the monotonic clock.
    """

    thread: str
    why: str
    until: float

    @property
    def recipient(self) -> str:
        """The recipient, if the breaker is open for mails to somebody; no thread has such a name."""
        return self.thread.removeprefix(_TO) if self.thread.startswith(_TO) else ""


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float
    thread: str
    text: str
    owner: bool = False


def to(recipient: str) -> str:
    """The place name for all mails to a recipient."""
    return f"{_TO}{recipient}"


class CircuitBreaker:
    """Watches answers. All times are seconds of one clock that never goes back."""

    def __init__(self, settings: CircuitBreakerConfig) -> None:
        self._settings = settings
        self._sent: deque[_Sent] = deque(maxlen=MAX_KEPT)
        self._bounced: deque[tuple[float, str]] = deque(maxlen=MAX_KEPT)
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

    def tripped(
        self, thread: str, now: float, *, recipient: str = "", owner: bool = False
    ) -> BreakerOpen | None:
        """Whether nothing may be answered in this thread, or to this recipient, who may be the owner."""
        for place in (thread,) if owner else (EVERYWHERE, thread, to(recipient)):
            found = self._tripped.get(place)
            if found is not None and now < found.until:
                return found
            self._tripped.pop(place, None)
        return None

    def may_send(
        self, thread: str, text: str, now: float, *, recipient: str = "", owner: bool = False
    ) -> BreakerOpen | None:
        """
        Call this before an answer is sent; the call may open the circuit breaker. None: send it, and then
        call `sent`.

        The first who gets a `BreakerOpen` has opened it; see `is_new`.
        """
        found = self.tripped(thread, now, recipient=recipient, owner=owner)
        if found is not None:
            return found
        settings = self._settings
        self._forget(now)
        here = [sent for sent in self._sent if sent.thread == thread]
        others = sum(not sent.owner for sent in self._sent)
        same = Counter(sent.text for sent in here)[_digest(text)]
        most_here = settings.answers_per_hour if owner else settings.thread_answers_per_hour
        if not owner and 0 < settings.max_identical_replies <= same:
            return self._trip(thread, f"the same answer was sent {same} times in one thread", now)
        if 0 < most_here <= len(here):
            return self._trip(thread, f"{len(here)} answers went into one thread within an hour", now)
        if not owner and 0 < settings.answers_per_hour <= others:
            return self._trip(EVERYWHERE, f"{others} answers went out within an hour", now)
        return None

    def sent(self, thread: str, text: str, now: float, *, owner: bool = False) -> None:
        """Count a sent answer."""
        limits = self._settings
        if not (limits.answers_per_hour or limits.thread_answers_per_hour or limits.max_identical_replies):
            return  # nobody will ask
        self._sent.append(_Sent(now, thread, _digest(text), owner))
        self.changed = True

    def bounced(self, recipient: str, now: float) -> BreakerOpen | None:
        """Count a bounce of a mail to somebody; returns the `BreakerOpen` if that was one too many."""
        self._bounced.append((now, recipient))
        self.changed = True
        self._forget(now)
        count = sum(whose == recipient for _, whose in self._bounced)
        if not 0 < self._settings.bounces_per_hour <= count:
            return None
        if self.tripped(EVERYWHERE, now, recipient=recipient) is not None:
            return None
        return self._trip(to(recipient), f"{count} mails to them bounced within an hour", now)

    def is_new(self, tripped: BreakerOpen) -> bool:
        """Whether it has opened since the last call."""
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
        self._bounced = deque((one for one in self._bounced if to(one[1]) != thread), maxlen=MAX_KEPT)
        return tripped

    def dump(self, now: float, wall: float) -> str:
        """
        The state as text, for a file.

        Args:
            now: By the clock of all other times here.
            wall: The same moment in seconds since 1970, which mean something to the next process.
        """
        self.changed = False
        self._forget(now)
        since = wall - now
        return json.dumps(
            {
                "pulled": [[one.thread, one.why, one.until + since] for one in self.all_open(now)],
                "sent": [[one.at + since, one.thread, one.text, one.owner] for one in self._sent],
                "returned": [[at + since, recipient] for at, recipient in self._bounced],
                "keeps_back": self.keeps_back,
            }
        )

    def load(self, text: str, now: float, wall: float) -> bool:
        """
        Load what `dump` wrote; False if it is damaged; then nothing is loaded.

        A clock that was set back makes nothing last longer than it would have from now on.
        """
        since = wall - now
        longest = now + self._settings.open_minutes * 60
        try:
            kept = json.loads(text)
            tripped = [
                BreakerOpen(str(thread), str(why), min(float(until) - since, longest))
                for thread, why, until in kept["pulled"]
            ]
            sent = [
                _Sent(min(float(at) - since, now), str(thread), str(text), any(owner))
                for at, thread, text, *owner in kept["sent"]
            ]
            bounced = [(min(float(at) - since, now), str(whose)) for at, whose in kept.get("returned", ())]
            keeps_back = bool(kept.get("keeps_back", True))
        except (ValueError, TypeError, KeyError):
            return False
        self._tripped = {one.thread: one for one in tripped if now < one.until}
        self._sent = deque(sorted(sent, key=lambda one: one.at), maxlen=MAX_KEPT)
        self._bounced = deque(sorted(bounced), maxlen=MAX_KEPT)
        self.keeps_back = keeps_back
        self._forget(now)
        return True

    def _forget(self, now: float) -> None:
        while self._sent and now - self._sent[0].at >= HOUR_S:
            self._sent.popleft()
        while self._bounced and now - self._bounced[0][0] >= HOUR_S:
            self._bounced.popleft()


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "replace")).hexdigest()
