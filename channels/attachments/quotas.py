"""
How much of the attachment store each person uses, so that only the owner can fill it completely. Pure.

Theory of operation. Everybody but the owner shares one half of what all files together may take, and one half
of what is free on the disk. In that, a person may fill as much as is free after them: the first one a half,
a second one a half of the rest, so there is always room for one more. The other half takes files of the owner
alone. Marks in the storage (`Storage.mark`) survive restarts and contain no names. A file that two people
have sent counts for both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


class Shares:
    """The use of the storage by each person, of ``max_total_bytes`` in all."""

    def __init__(self, max_total_bytes: int) -> None:
        self._guests_bytes = max_total_bytes // 2
        self._used: dict[str, int] = {}

    def load(self, sizes: Iterable[tuple[str, int]]) -> None:
        """Count the marked files by person and size."""
        self._used.clear()
        for whose, size in sizes:
            self._used[whose] = self._used.get(whose, 0) + size

    def room(self, whose: str, disk_free_bytes: int) -> int:
        """Return the bytes that this person may still store."""
        free = min(self._guests_bytes - sum(self._used.values()), disk_free_bytes // 2)
        return max(0, (free - self._used.get(whose, 0)) // 2)

    def claim(self, whose: str, size: int) -> None:
        """Count bytes for a person; negative ones are given back."""
        self._used[whose] = max(0, self._used.get(whose, 0) + size)


def digest_of(person: str) -> str:
    """The name of a person in a mark."""
    return hashlib.sha256(person.encode("utf-8", "replace")).hexdigest()[:32]
