"""
The real clock. Everything else gets its time from a `Clock`, so that tests can bring their own. Theory of
operation. Processes that share a database read each other's instants: one notes until when a message waits,
another one takes over and waits. The clocks of two machines may differ by minutes, so all of them follow the
clock of the database's server (`SystemClock.follow`). A small difference is left alone: it does no harm, and
a time that jumps at each look would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog

_LOGGED_STEP_S = 5.0
_log = structlog.get_logger(__name__)


class SystemClock:
    """Implements `agent_core.ports.Clock` with the machine's clocks."""

    _correction = timedelta()
    _correcting = threading.Lock()

    def now(self) -> datetime:
        """The wall clock as an aware UTC datetime."""
        return datetime.now(UTC) + self._correction

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def follow(self, ask: Callable[[], float]) -> float:
        """
        Follow another clock from now on, unless it is the same. Returns what that clock says.

        An answer that took long, because the process or the machine stood still, changes nothing. Several
        threads may ask at once: a difference is corrected once.
        """
        before, asked_at = self._correction, self.now().timestamp()
        theirs = ask()
        took_s = self.now().timestamp() - asked_at
        ahead_s = theirs - (asked_at + took_s / 2)
        if not 0 <= took_s <= 1.0 or abs(ahead_s) <= max(0.5, took_s):
            return theirs
        with self._correcting:
            is_first = self._correction is before
            if is_first:
                self._correction = before + timedelta(seconds=ahead_s)
        if is_first and abs(ahead_s) >= _LOGGED_STEP_S:
            _log.warning("clock.corrected", by_s=round(ahead_s, 1), remedy="synchronise this machine's clock")
        return theirs
