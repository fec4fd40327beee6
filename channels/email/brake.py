"""
The brake: what must not happen however wrong everything else is, two programs that write to each other. Pure.

The limits (``limits``) count questions, per sender and thread. The brake counts what goes out, and looks at
it: so many answers in an hour, the same text again and again, one bounce after another are a loop, whoever is
on the other side and whatever the header fields say. While it is pulled nothing is answered; what is to be
sent waits, what comes in waits in quarantine. It comes off by itself after a while, or with a restart.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from dataclasses import dataclass

from channels.email.config import AnswerBrake

__all__ = ["Brake", "Pulled"]

HOUR_S = 3600.0
MAX_KEPT = 5_000
EVERYWHERE = ""
JUST_NOW_S = 0.5


@dataclass(frozen=True, slots=True)
class Pulled:
    """Why nothing is answered, where (a thread, or `EVERYWHERE`), and until when on the monotonic clock."""

    thread: str
    why: str
    until: float


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float
    thread: str
    text: str


class Brake:
    """Watches answers. All times are seconds of one clock that never goes back."""

    def __init__(self, settings: AnswerBrake) -> None:
        self._settings = settings
        self._sent: deque[_Sent] = deque(maxlen=MAX_KEPT)
        self._bounced: deque[float] = deque(maxlen=MAX_KEPT)
        self._pulled: dict[str, Pulled] = {}

    def pulled(self, thread: str, now: float) -> Pulled | None:
        """Whether nothing may be answered in this thread."""
        for place in (EVERYWHERE, thread):
            found = self._pulled.get(place)
            if found is not None and now < found.until:
                return found
            self._pulled.pop(place, None)
        return None

    def may_send(self, thread: str, text: str, now: float) -> Pulled | None:
        """
        Ask before an answer is sent; it may be what pulls the brake. None: send it, and tell `sent`.

        The first who gets a `Pulled` with ``until`` a whole pause away has pulled it; see `is_new`.
        """
        found = self.pulled(thread, now)
        if found is not None:
            return found
        settings = self._settings
        self._forget(now)
        here = [sent for sent in self._sent if sent.thread == thread]
        same = Counter(sent.text for sent in here)[_digest(text)]
        if 0 < settings.identical_answers <= same:
            return self._pull(thread, f"the same answer was given {same} times in one thread", now)
        if 0 < settings.thread_answers_per_hour <= len(here):
            return self._pull(thread, f"{len(here)} answers went into one thread within an hour", now)
        if 0 < settings.answers_per_hour <= len(self._sent):
            return self._pull(EVERYWHERE, f"{len(self._sent)} answers went out within an hour", now)
        return None

    def sent(self, thread: str, text: str, now: float) -> None:
        """An answer went out."""
        self._sent.append(_Sent(now, thread, _digest(text)))

    def bounced(self, now: float) -> Pulled | None:
        """A mail of ours came back; the `Pulled` if that was one too many."""
        self._bounced.append(now)
        self._forget(now)
        if not 0 < self._settings.bounces_per_hour <= len(self._bounced):
            return None
        if self.pulled(EVERYWHERE, now) is not None:
            return None
        return self._pull(EVERYWHERE, f"{len(self._bounced)} mails came back within an hour", now)

    def is_new(self, pulled: Pulled, now: float) -> bool:
        """Whether this is the moment at which it was pulled."""
        return pulled.until - now > self._settings.closed_minutes * 60 - JUST_NOW_S

    def _pull(self, thread: str, why: str, now: float) -> Pulled:
        if len(self._pulled) >= MAX_KEPT:
            self._pulled = {place: one for place, one in self._pulled.items() if now < one.until}
        pulled = self._pulled[thread] = Pulled(thread, why, now + self._settings.closed_minutes * 60)
        # Otherwise the first answer afterwards would pull it again.
        self._sent = deque(
            (one for one in self._sent if thread not in (EVERYWHERE, one.thread)), maxlen=MAX_KEPT
        )
        if thread == EVERYWHERE:
            self._bounced.clear()
        return pulled

    def _forget(self, now: float) -> None:
        while self._sent and now - self._sent[0].at >= HOUR_S:
            self._sent.popleft()
        while self._bounced and now - self._bounced[0] >= HOUR_S:
            self._bounced.popleft()


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "replace")).hexdigest()
