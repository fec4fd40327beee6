"""
Computes when a waiting row is due. Pure: the time is an argument.

Rows wait until an instant of the wall clock, because a wait must survive a restart. A clock that was
temporarily in the future leaves instants that are unreasonably late. So no row waits for longer than
`LONGEST_S`: a wrong clock wrote any instant that is later than that from now, and the row is due at once.
"""

from __future__ import annotations

LONGEST_S = 2 * 3600.0


def due_at(now: float, delay_s: float) -> float:
    """Return the instant to store for a wait that begins now."""
    return now + min(delay_s, LONGEST_S)


def wait_s(next_at: float | None, now: float) -> float:
    """Return the seconds that a row with this instant still waits; 0.0 if it is due."""
    left_s = 0.0 if next_at is None else next_at - now
    return left_s if 0.0 < left_s <= LONGEST_S else 0.0
