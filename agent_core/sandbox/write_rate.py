"""
How fast a program may write to the disk. Pure.

A disk that takes gigabytes of one program lets everybody else's `fsync` wait meanwhile, whatever their
priorities are, and each turn of the daemon waits for several.
"""

from __future__ import annotations


class Pace:
    """
    A bucket: so many bytes at once, and so many each second. A rate of 0 is no limit.

    ``now`` is monotonic time in seconds.
    """

    def __init__(self, rate: int, burst: int, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left = float(burst)
        self._written, self._at = 0, now

    def is_ahead(self, written: int, now: float) -> bool:
        """Whether whoever has written so many bytes in all must wait by now."""
        if not self._rate:
            return False
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        # What somebody has written who ended unnoticed is missing from the sum, and is not given back.
        self._left -= max(0, written - self._written)
        self._written, self._at = written, now
        return self._left < 0
