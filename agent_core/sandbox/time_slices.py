"""
Which processes of a command go on when too many of them want a processor at once. Pure.

A fork bomb is as strong as the number of its runnable processes, whatever its priority is: the kernel gives
each of them its share, and everybody else waits meanwhile. So a few go on, and the others in their place
after the next look. One processor is left to everybody else, who would wait there for each fork to end, see
docs/design.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_PER_PROCESSOR = 4
"""So many may want each processor before they go on in rotation."""


class Rotation:
    """Lets one thread go on at once for all but one of the ``processors``; 0 is no limit."""

    def __init__(self, processors: int) -> None:
        self._most = processors * _PER_PROCESSOR
        self._at_once = max(1, processors - 1)
        self._waiting: dict[int, int] = {}
        self._credit = 0

    def held_back(self, wanting: Mapping[int, int], alive: Collection[int]) -> list[int]:
        """
        The processes that are to wait until the next look.

        ``wanting`` says how many threads of each process run or want to. Of those that wait already it is
        known from the look that made them wait. A process with more threads than may go on has fewer turns.
        """
        waiting = {pid: threads for pid, threads in self._waiting.items() if pid in alive}
        wants = waiting | {pid: threads for pid, threads in wanting.items() if pid not in waiting}
        if sum(wants.values()) <= self._most or not self._most:
            self._waiting, self._credit = {}, 0
            return []
        self._credit = min(self._credit, max(wants.values())) + self._at_once
        held: dict[int, int] = {}
        for pid, threads in wants.items():  # who has waited longest comes first
            if held or threads > self._credit:
                held[pid] = threads
            else:
                self._credit -= threads
        self._waiting = held
        return list(held)
