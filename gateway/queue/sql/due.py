"""
When a row that waits is due. Pure: the time is an argument.

Rows wait until an instant of the wall clock, because a wait must outlast a restart. A clock that was in the
future for a while leaves instants that nobody lives to see, so no row waits for longer than `LONGEST_S`: what
is due later than that from now on was noted by a wrong clock, and is due at once.
"""

from __future__ import annotations

LONGEST_S = 2 * 3600.0


def due_at(now: float, delay_s: float) -> float:
    """The instant to note for a wait that begins now."""
    return now + min(delay_s, LONGEST_S)


def wait_s(next_at: float | None, now: float) -> float:
    """How long a row with this instant still waits; 0.0 if it is due."""
    left_s = 0.0 if next_at is None else next_at - now
    return left_s if 0.0 < left_s <= LONGEST_S else 0.0
