"""
How long to wait before the next try. Pure: the random number and the elapsed time are arguments. Theory of
operation. The ceiling grows exponentially with each failure up to a cap, and the delay is drawn from below it
("full jitter"), so that many clients of one server do not come back in step. A floor keeps a small draw from
becoming a hot loop. The count of failures starts anew only after the link has been *stable* for a while, not
on a mere connect: a server that accepts and drops at once would otherwise be called every second for ever.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """
    The shape of a series of delays: ``factor`` per failure, ``jitter`` as a share (1.0 is full).

    ``early_cap_s`` caps delays until they add up to a minute: most outages are restarts.
    """

    first_s: float = 1.0
    cap_s: float = 300.0
    factor: float = 2.0
    jitter: float = 1.0
    floor_s: float = 0.25
    early_cap_s: float | None = None

    def __post_init__(self) -> None:
        if not (
            0 <= self.floor_s <= self.first_s <= self.cap_s and self.factor >= 1 and 0 <= self.jitter <= 1
        ):
            raise ValueError(f"a back-off that cannot work: {self}")

    def ceiling(self, failures: int) -> float:
        """The longest delay after ``failures`` failures in a row (at least one)."""
        ceiling = self.first_s
        for _ in range(failures - 1):
            ceiling *= self.factor
            if ceiling >= self.cap_s or self.factor == 1:
                break
        return min(ceiling, self.cap_s)

    def delay(self, failures: int, *, random: float) -> float:
        """Return the delay in seconds after ``failures`` (≥ 1) in a row; ``random`` is in [0, 1)."""
        ceiling = self.ceiling(failures)
        return max(self.floor_s, ceiling * (1 - self.jitter * (1 - random)))


LINK_RETRY = BackoffPolicy(first_s=2.0, cap_s=60.0, early_cap_s=4.5)
"""For a link that was lost or cannot be made."""

AUTH_RETRY = BackoffPolicy(first_s=300.0, cap_s=7200.0, jitter=0.2, floor_s=60.0)
"""For credentials that were refused: servers lock accounts that try too often."""


@dataclass(slots=True)
class Backoff:
    """
    Counts a link's failures, from one again after ``stable_after_s`` of uptime.

    ``waited_s`` is the sum of the delays in a row.
    """

    policy: BackoffPolicy
    stable_after_s: float = 60.0
    failures: int = 0
    waited_s: float = 0.0
    _grown: int = 0

    def note_failure(self, *, random: float, up_s: float = 0.0, at_least_s: float | None = None) -> float:
        """
        Note a failure and return the seconds to wait.

        ``up_s`` is the uptime of the link before, ``random`` is in [0, 1); the server's ``at_least_s`` may
        exceed the cap.
        """
        if up_s >= self.stable_after_s:
            self.reset()
        self.failures += 1
        early_cap_s = self.policy.early_cap_s if self.waited_s < 60.0 else None
        if self._grown == 0 or early_cap_s is None or self.policy.ceiling(self._grown + 1) <= early_cap_s:
            self._grown += 1
        delay_s = max(at_least_s or 0.0, self.policy.delay(self._grown, random=random))
        self.waited_s += delay_s
        return delay_s

    def reset(self) -> None:
        """Note a success: the next failure is the first again."""
        self.failures = self._grown = 0
        self.waited_s = 0.0
