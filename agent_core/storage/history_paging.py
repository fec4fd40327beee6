"""
Selects the messages of a page of history, and reads a file's lines from the last to the first in blocks of 64
KiB, so that only the needed part is read. A line longer than the limit is skipped without being held in
memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from agent_core.models import HistoryTail, Message


@dataclass(frozen=True, slots=True)
class PageMark:
    """The offset at which a position begins; ``message_id`` is that of the line there, if it has one."""

    position: int = 0
    offset: int = 0
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: its message, None if unreadable; ``number`` is its stored position."""

    position: int
    offset: int
    message: Message | None
    chars: int = 0
    broken: bool = False
    number: int | None = None


class Numbering:
    """
    Numbers lines that are read in sequence, forwards (``step`` 1) or backwards (-1).

    A line's stored position counts if it is beyond the last. ``unread`` lines shift only lines without one:
    damage must not move sound lines.
    """

    def __init__(self, last: int, *, step: int = 1) -> None:
        self._last = last
        self._step = step
        self._unread = 0

    def next(self, number: int | None, *, readable: bool) -> int:
        """The position of the next line, whose own number is ``number``."""
        counted = max(0, self._last + self._step * (self._unread + 1))
        if not readable:
            self._unread += 1
            return counted
        beyond = number is not None and (number - self._last) * self._step > 0
        self._last = number if number is not None and beyond else counted
        self._unread = 0
        return self._last


def place_of(entry: Entry) -> PageMark:
    """Return the mark of an entry with the number its line carries, by which it is recognised later."""
    position = entry.position if entry.number is None else entry.number
    return PageMark(position, entry.offset, entry.message.id if entry.message else None)


def entries_from(place: PageMark, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Those of the entries, given newest first, that begin at the place or after it."""
    for entry in takewhile(lambda each: each.offset >= place.offset, entries):
        yield entry if entry.position >= place.position else replace(entry, position=place.position)


def newest(
    entries: Iterable[Entry], *, cursor: int, total: int, max_messages: int | None, max_chars: int | None
) -> HistoryTail:
    """Choose from ``entries``, given newest first, what `MemoryPort.load_history` promises."""
    chosen: dict[int, Entry] = {}  # by order of arrival, newest first
    by_id: dict[str, int] = {}
    chars = skipped = 0
    complete = True
    for number, entry in enumerate(entries):
        if entry.position < cursor:
            break
        if entry.message is None:
            skipped += entry.broken
            continue
        if chosen and (
            (max_messages is not None and len(chosen) >= max_messages)
            or (max_chars is not None and chars + entry.chars > max_chars)
        ):
            complete = False
            break
        if entry.message.id is not None:
            if (again := by_id.get(entry.message.id)) is not None:
                chars -= chosen.pop(again).chars
            by_id[entry.message.id] = number
        chosen[number] = entry
        chars += entry.chars
    ordered = list(reversed(chosen.values()))
    return HistoryTail(
        messages=tuple(entry.message for entry in ordered if entry.message is not None),
        total=total,
        unconsolidated=total - cursor,
        skipped_lines=skipped,
        complete=complete,
        cursor=cursor,
        positions=tuple(entry.position for entry in ordered),
    )


def oldest(
    entries: Iterable[Entry], *, cursor: int, total: int, max_messages: int, max_chars: int | None
) -> HistoryTail:
    """Choose from ``entries``, given oldest first, what `MemoryPort.load_segment` promises."""
    chosen: list[Entry] = []
    seen: set[str] = set()
    chars = skipped = 0
    complete = True
    for entry in entries:
        if entry.message is None:
            skipped += entry.broken
            continue
        if len(chosen) >= max_messages or (
            chosen and max_chars is not None and chars + entry.chars > max_chars
        ):
            complete = False
            break
        if entry.message.id is None or entry.message.id not in seen:
            chosen.append(entry)
            chars += entry.chars
        if entry.message.id is not None:
            seen.add(entry.message.id)
    return HistoryTail(
        messages=tuple(entry.message for entry in chosen if entry.message is not None),
        total=total,
        unconsolidated=total - cursor,
        skipped_lines=skipped,
        complete=complete,
        cursor=cursor,
        positions=tuple(entry.position for entry in chosen),
    )


BLOCK_BYTES = 64 * 1024

ReadAt = Callable[[int, int, int], bytes]
"""Like ``os.pread``: handle, number of bytes, offset."""


def lines_backwards(
    handle: int, end: int, *, max_line_bytes: int, read_at: ReadAt = os.pread
) -> Iterator[tuple[int, bytes | None]]:
    """
    Offset and content of each line before ``end``, the last one first, without newlines.

    Bytes after the last newline are a line too. Content is None for a line over ``max_line_bytes``.
    """
    pieces: list[bytes] = []  # of the line in hand, in reverse
    held = 0
    start = end  # where the line in hand begins, as far as known
    first = True
    while start > 0:
        size = min(BLOCK_BYTES, start)
        block = read_at(handle, size, start - size)
        if len(block) != size:
            return  # the file became shorter meanwhile: nothing sound lies before
        base = start - size
        right = size
        if first and block.endswith(b"\n"):
            right -= 1
        first = False
        while (cut := block.rfind(b"\n", 0, right)) >= 0:
            held += right - cut - 1
            pieces.append(block[cut + 1 : right])
            yield base + cut + 1, _joined(pieces, held, max_line_bytes)
            pieces, held, right = [], 0, cut
        held += right
        if held <= max_line_bytes:
            pieces.append(block[:right])
        else:
            pieces.clear()
        start = base
    if end > 0:
        yield 0, _joined(pieces, held, max_line_bytes)


def _joined(pieces: list[bytes], held: int, limit: int) -> bytes | None:
    if held > limit:
        return None
    return pieces[0] if len(pieces) == 1 else b"".join(reversed(pieces))


def count_lines(handle: int, start: int, end: int, *, read_at: ReadAt = os.pread) -> int:
    """Count the lines from ``start``, which begins a line, to ``end``; only newlines separate."""
    count = 0
    last = b"\n"
    while start < end:
        block = read_at(handle, min(1024 * 1024, end - start), start)
        if not block:
            break
        count += block.count(b"\n")
        last = block[-1:]
        start += len(block)
    return count + (last != b"\n")


def lines_forwards(
    handle: int, start: int, *, max_line_bytes: int, read_at: ReadAt = os.pread
) -> Iterator[tuple[int, bytes | None]]:
    """Offset and content of each line from ``start`` (the beginning of a line) on; see `lines_backwards`."""
    pieces: list[bytes] = []
    held = 0
    line_at = position = start
    while block := read_at(handle, BLOCK_BYTES, position):
        left = 0
        while (cut := block.find(b"\n", left)) >= 0:
            held += cut - left
            pieces.append(block[left:cut])
            yield line_at, None if held > max_line_bytes else b"".join(pieces)
            pieces, held, left = [], 0, cut + 1
            line_at = position + left
        held += len(block) - left
        if held <= max_line_bytes:
            pieces.append(block[left:])
        else:
            pieces.clear()
        position += len(block)
    if held:
        yield line_at, None if held > max_line_bytes else b"".join(pieces)
