"""
How many mails are answered: counted when they are taken in, by the time at which they arrived. Pure.

By arrival and not by "now", so that what waited while the daemon was down is not one burst; and by identity,
so that a mail that is read twice (after a crash, after a renumbering of the mailbox) counts once and gets the
same verdict again. The total counts only senders who may write at all: otherwise strangers could use it up.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from channels.email.config import AnswerLimits

__all__ = ["AnswerLimiter"]

HOUR_S = 3600.0
DAY_S = 86400.0
MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class _Entry:
    at: float
    sender: str
    thread: str
    listed: bool
    allowed: bool


class AnswerLimiter:
    """Remembers the last day."""

    def __init__(self, limits: AnswerLimits) -> None:
        self._limits = limits
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.changed = False
        """Whether there is something that the last `dump` did not hold."""

    def admit(self, native_id: str, *, sender: str, thread: str, listed: bool, at: datetime) -> bool:
        """
        Whether this mail may be answered; if so it is counted.

        Args:
            native_id: The mail. Asking twice for one mail gives the same answer and counts once.
            sender: Its proven sender.
            thread: Its session.
            listed: Whether the sender is among those who may write.
            at: When it arrived.
        """
        if self._limits == AnswerLimits(
            sender_per_hour=0, sender_per_day=0, thread_per_hour=0, total_per_hour=0
        ):
            return True
        known = self._entries.get(native_id)
        if known is not None:
            return known.allowed
        now = at.timestamp()
        allowed = self._room(now, sender, thread, listed=listed)
        self._entries[native_id] = _Entry(now, sender, thread, listed, allowed)
        self._forget(now)
        self.changed = True
        return allowed

    def _room(self, now: float, sender: str, thread: str, *, listed: bool) -> bool:
        limits = self._limits
        counted = [entry for entry in self._entries.values() if entry.allowed and abs(now - entry.at) < DAY_S]
        hour = [entry for entry in counted if abs(now - entry.at) < HOUR_S]
        rules = [
            (limits.sender_per_hour, sum(1 for entry in hour if entry.sender == sender)),
            (limits.sender_per_day, sum(1 for entry in counted if entry.sender == sender)),
            (limits.thread_per_hour, sum(1 for entry in hour if entry.thread == thread)),
        ]
        if listed:
            rules.append((limits.total_per_hour, sum(1 for entry in hour if entry.listed)))
        return all(limit == 0 or used < limit for limit, used in rules)

    def _forget(self, now: float) -> None:
        old = [key for key, entry in self._entries.items() if now - entry.at > DAY_S]
        for key in old:
            del self._entries[key]
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def dump(self) -> str:
        """The state as text, for a file."""
        self.changed = False
        return json.dumps(
            [[key, e.at, e.sender, e.thread, e.listed, e.allowed] for key, e in self._entries.items()]
        )

    def load(self, text: str) -> bool:
        """Take over what `dump` wrote; False, and nothing taken, if it is damaged."""
        try:
            entries = {
                str(key): _Entry(float(at), str(sender), str(thread), bool(listed), bool(allowed))
                for key, at, sender, thread, listed, allowed in json.loads(text)
            }
        except (ValueError, TypeError):
            return False
        self._entries = OrderedDict(list(entries.items())[-MAX_ENTRIES:])
        return True
