"""
The brake: what must not happen however wrong everything else is, two programs that write to each other. Pure.

The limits (``limits``) count questions, per sender and thread. The brake counts what goes out, and looks at
it: so many answers in an hour, the same text again and again, one bounce after another are a loop, whoever is
on the other side and whatever the header fields say. While it is pulled nothing is answered; what is to be
sent waits, what comes in waits in quarantine. It comes off by itself after a while, or when a person says so;
a restart changes nothing, because a daemon that is restarted by the loop itself must not begin it anew.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from dataclasses import dataclass

from channels.email.config import AnswerBrake

__all__ = ["Brake", "Pulled"]

HOUR_S = 3600.0
MAX_KEPT = 5_000
EVERYWHERE = ""


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
        self._untold: set[str] = set()
        self.changed = False
        """Whether there is something that the last `dump` did not hold."""

    def all_pulled(self, now: float) -> list[Pulled]:
        """Everywhere where nothing is answered."""
        return [found for found in self._pulled.values() if now < found.until]

    def let_go(self, now: float) -> list[Pulled]:
        """Take it off, wherever it is; what it was is returned."""
        found = self.all_pulled(now)
        self._pulled.clear()
        self.changed = True
        return found

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

        The first who gets a `Pulled` has pulled it; see `is_new`.
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
        self.changed = True

    def bounced(self, now: float) -> Pulled | None:
        """A mail of ours came back; the `Pulled` if that was one too many."""
        self._bounced.append(now)
        self.changed = True
        self._forget(now)
        if not 0 < self._settings.bounces_per_hour <= len(self._bounced):
            return None
        if self.pulled(EVERYWHERE, now) is not None:
            return None
        return self._pull(EVERYWHERE, f"{len(self._bounced)} mails came back within an hour", now)

    def is_new(self, pulled: Pulled) -> bool:
        """Whether it was pulled just now; true once."""
        if pulled.thread not in self._untold:
            return False
        self._untold.discard(pulled.thread)
        return True

    def _pull(self, thread: str, why: str, now: float) -> Pulled:
        if len(self._pulled) >= MAX_KEPT:
            self._pulled = {place: one for place, one in self._pulled.items() if now < one.until}
        pulled = self._pulled[thread] = Pulled(thread, why, now + self._settings.closed_minutes * 60)
        self._untold = {place for place in (*self._untold, thread) if place in self._pulled}
        self.changed = True
        # Otherwise the first answer afterwards would pull it again.
        self._sent = deque(
            (one for one in self._sent if thread not in (EVERYWHERE, one.thread)), maxlen=MAX_KEPT
        )
        if thread == EVERYWHERE:
            self._bounced.clear()
        return pulled

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
                "pulled": [[one.thread, one.why, one.until + since] for one in self.all_pulled(now)],
                "sent": [[one.at + since, one.thread, one.text] for one in self._sent],
                "bounced": [at + since for at in self._bounced],
            }
        )

    def load(self, text: str, now: float, wall: float) -> bool:
        """
        Take over what `dump` wrote; False, and nothing taken, if it is damaged.

        A clock that was set back makes nothing last longer than it would have from now on.
        """
        since = wall - now
        longest = now + self._settings.closed_minutes * 60
        try:
            kept = json.loads(text)
            pulled = [
                Pulled(str(thread), str(why), min(float(until) - since, longest))
                for thread, why, until in kept["pulled"]
            ]
            sent = [
                _Sent(min(float(at) - since, now), str(thread), str(text))
                for at, thread, text in kept["sent"]
            ]
            bounced = [min(float(at) - since, now) for at in kept["bounced"]]
        except (ValueError, TypeError, KeyError):
            return False
        self._pulled = {one.thread: one for one in pulled if now < one.until}
        self._sent = deque(sorted(sent, key=lambda one: one.at), maxlen=MAX_KEPT)
        self._bounced = deque(sorted(bounced), maxlen=MAX_KEPT)
        self._forget(now)
        return True

    def _forget(self, now: float) -> None:
        while self._sent and now - self._sent[0].at >= HOUR_S:
            self._sent.popleft()
        while self._bounced and now - self._bounced[0] >= HOUR_S:
            self._bounced.popleft()


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "replace")).hexdigest()
