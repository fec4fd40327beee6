"""The real clock. Everything else gets its time from a `Clock`, so that tests can bring their own."""

from __future__ import annotations

import time
from datetime import UTC, datetime

__all__ = ["SystemClock"]


class SystemClock:
    """Implements `agent_core.ports.Clock` with the machine's clocks."""

    def now(self) -> datetime:
        """The wall clock as an aware UTC datetime."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
