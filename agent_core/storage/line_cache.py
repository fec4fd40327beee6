"""
What is cached of a history file: the newest lines, decoded, and the ids of recent lines. Pure.

Both caches save reading, both can be dropped at any moment, and both have a bound. A decoded line takes four
times its text here (1.8 kB for 250 characters), so of a conversation only what the next prompt can need is
kept: nothing before the cursor, because that is in the summary. Ids are kept as hashes, eight bytes each;
a match is confirmed in the file.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile

from agent_core.storage.history_paging import Entry

_ENTRIES = 1000
_BYTES = 2 * 1024 * 1024
_BYTES_OF_AN_ENTRY = 1600  # measured with tracemalloc, without the text


class DecodedTail:
    """The newest lines of a file, from byte ``start``; ``size`` is their estimated memory."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.size = 0
        self._entries: deque[Entry] = deque()
        self._floor = 0

    def __len__(self) -> int:
        return len(self._entries)

    def newest_first(self) -> Iterator[Entry]:
        """The cached lines."""
        return reversed(self._entries)

    def before(self, end: int) -> tuple[int, int]:
        """
        Return the position from which the line before the tail is counted, and the unreadable lines before
        it.

        The position is that of the first readable line of the tail, or ``end`` if there is none.
        """
        unread = len(list(takewhile(lambda entry: entry.message is None, self._entries)))
        return (self._entries[unread].position if unread < len(self._entries) else end), unread

    def prepend(self, entry: Entry) -> bool:
        """Cache the line before the first one, if there is room for it and it can be needed."""
        room = len(self._entries) < _ENTRIES and self.size + _bytes_of(entry) <= _BYTES
        if not room or entry.position < self._floor:
            return False
        self._entries.appendleft(entry)
        self.size += _bytes_of(entry)
        self.start = entry.offset
        return True

    def append(self, entries: Iterable[Entry], *, end: int) -> None:
        """Cache lines that were written after the last one; the file is ``end`` bytes long now."""
        for entry in entries:
            if not self._entries:
                self.start = entry.offset
            self._entries.append(entry)
            self.size += _bytes_of(entry)
        self._trim(end)

    def need(self, cursor: int, *, end: int) -> None:
        """Drop the lines before the cursor, which nobody asks for any more."""
        self._floor = cursor
        self._trim(end)

    def clear(self, end: int) -> None:
        """Drop all lines."""
        self._entries.clear()
        self.size = 0
        self.start = end

    def _trim(self, end: int) -> None:
        while self._entries and (
            len(self._entries) > _ENTRIES or self.size > _BYTES or self._entries[0].position < self._floor
        ):
            self.size -= _bytes_of(self._entries.popleft())
        self.start = self._entries[0].offset if self._entries else end


def _bytes_of(entry: Entry) -> int:
    if entry.message is None:
        return _BYTES_OF_AN_ENTRY
    return _BYTES_OF_AN_ENTRY + max(sys.getsizeof(entry.message.content), entry.chars)


class RecentIds:
    """A set of recently written ids that keeps the last ``keep``; ``ids`` are on disk, oldest first."""

    def __init__(self, ids: Iterable[str], *, keep: int) -> None:
        self._keep = keep
        self._hashes = array("q", map(hash, ids))

    def __len__(self) -> int:
        return len(self._hashes)

    def may_hold(self, one: str) -> bool:
        """False if the id was not written; True if it was, or one with the same hash."""
        return hash(one) in self._hashes

    def add(self, one: str) -> None:
        """An id has been written."""
        self._hashes.append(hash(one))
        if len(self._hashes) > 2 * self._keep:
            del self._hashes[: -self._keep]
