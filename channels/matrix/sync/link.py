"""Tracks whether the homeserver answers; what is known about rooms is only as fresh as the last answer."""

from __future__ import annotations

import random

from agent_core.backoff import Backoff, BackoffPolicy
from channels.base import ChannelClock

SYNC_RETRY = BackoffPolicy(first_s=1.0, cap_s=30.0, factor=1.75, jitter=0.2, early_cap_s=1.75)
_CURRENT_S = 75.0


class SyncLink:
    """The link of one run: the time of the last answer, and the number of failures in a row."""

    def __init__(self, clock: ChannelClock) -> None:
        self._clock = clock
        self._backoff = Backoff(SYNC_RETRY)
        self._answered_at: float | None = None

    @property
    def failures(self) -> int:
        """The number of failures in a row."""
        return self._backoff.failures

    def is_current(self) -> bool:
        """Return True if the known room states are as fresh as a working link keeps them."""
        age_s = self._clock.monotonic() - (self._answered_at or 0.0)
        return self._answered_at is not None and self.failures == 0 and age_s < _CURRENT_S

    def note_success(self) -> None:
        """Note that an answer was taken in."""
        self._answered_at = self._clock.monotonic()
        self._backoff.reset()

    def note_failure(self, *, at_least_s: float | None = None) -> float:
        """Note that there was none; returns the pause before the next try."""
        return self._backoff.note_failure(random=random.random(), at_least_s=at_least_s)
