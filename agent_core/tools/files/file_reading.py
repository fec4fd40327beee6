"""
Shows a file to a model, and replaces its text: lines, types, line endings. `window` reads once through a file
of any size with little memory; the rest is pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice
from typing import BinaryIO

from agent_core.errors import ToolFailed, ToolRetry
from agent_core.text import decode_text

_HEAD_BYTES = 8192
_BLOCK = 65_536
_LINE_CHARS = 2000
_CONTEXT = 3
_HEADER = re.compile(r"@@ -(\d+)((?:,\d+)?) \+(\d+)((?:,\d+)?) @@\n")
_BOM = b"\xef\xbb\xbf"
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"RIFF", "a WebP picture or a sound"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or an office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"\x7fELF", "a program"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)


@dataclass(frozen=True, slots=True)
class LineWindow:
    """
    Some numbered lines of a file with ``total`` lines, as far as read.

    ``following`` is the first line not shown, 0 if none; ``digest`` is empty if not read to the end.
    """

    text: str
    first: int
    last: int
    total: int
    following: int
    digest: str


def kind_of(head: bytes) -> str:
    """The kind of a file that is not text, by its beginning; empty: text."""
    for begins, kind in _KINDS:
        if head.startswith(begins):
            return kind
    return "a binary file" if b"\0" in head[:_HEAD_BYTES] else ""


def window(file: BinaryIO, *, offset: int, limit: int, max_chars: int, max_bytes: int) -> LineWindow:
    """The lines from number ``offset`` on."""
    hashed = hashlib.sha256()
    lines: list[str] = []
    number, chars, read, following = 0, 0, 0, 0
    begins = True
    shown: bytes = b""
    while read < max_bytes and (piece := file.readline(_BLOCK)):
        hashed.update(piece)
        read += len(piece)
        if begins:
            number += 1
            shown = b""
        if number >= offset and not following and len(shown) < 4 * _LINE_CHARS:
            shown += piece[: 4 * _LINE_CHARS]
        begins = piece.endswith(b"\n")
        if begins and number >= offset and not following:
            chars += _add(lines, number, shown)
            if len(lines) >= limit or chars >= max_chars:
                following = number + 1
    if not begins and number >= offset and not following:
        _add(lines, number, shown)
    whole = read < max_bytes or not file.read(1)
    if following > number:
        following = 0
    if not whole and not following:
        following = number
    first = offset if lines else 0
    last = first + len(lines) - 1 if lines else 0
    return LineWindow("\n".join(lines), first, last, number, following, hashed.hexdigest() if whole else "")


def _add(lines: list[str], number: int, raw: bytes) -> int:
    if number == 1:
        raw = raw.removeprefix(_BOM)
    text = decode_text(raw).rstrip("\r\n")
    cut = text if len(text) <= _LINE_CHARS else f"{text[:_LINE_CHARS]}… [line cut]"
    lines.append(f"{number}\t{cut}")
    return len(lines[-1]) + 1


def replace_text(content: bytes, old: str, new: str, *, everywhere: bool, shown: str) -> bytes:
    """Replace ``old``, keeping byte order mark and line endings. Raises ToolError with the remedy."""
    mark = _BOM if content.startswith(_BOM) else b""
    try:
        text = content.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        raise ToolFailed(f"{shown!r} is not UTF-8 text, so it cannot be edited here.") from error
    crlf = "\r\n" in text and text.count("\n") == text.count("\r\n")
    if crlf:
        text, old, new = (part.replace("\r\n", "\n") for part in (text, old, new))
    count = text.count(old)
    if count == 0:
        raise ToolRetry(
            f"`old` is not in {shown!r}. Copy it exactly as read_file shows it, without line numbers."
        )
    is_once = text.find(old, text.find(old) + 1) < 0  # two matches may have characters in common
    if not is_once and not everywhere:
        raise ToolRetry(f"{max(count, 2)} matches in {shown!r}; give more lines around it, or set all.")
    text = text.replace(old, new)
    return mark + (text.replace("\n", "\r\n") if crlf else text).encode()


def diff_text(before: bytes | None, after: bytes | None, name: str) -> str:
    """A change as a unified diff; the sizes, if it is not text."""
    texts: list[list[str]] = []
    for content in (before, after):
        if content is not None and kind_of(content[:_HEAD_BYTES]):
            return f"{name}: {_sized(before)} becomes {_sized(after)}"
        texts.append(decode_text(content or b"").splitlines(keepends=True))
    return (
        "".join(_ended(_hunks(texts[0], texts[1], _names(before, after, name)))).rstrip("\n")
        or f"{name}: no change"
    )


def reviewed_change(before: bytes | None, after: bytes | None, name: str) -> str:
    """A change for whoever approves it: whole, with its new and old lines and no marks of programs."""
    text = diff_text(before, after, name)
    if any(content and kind_of(content[:_HEAD_BYTES]) for content in (before, after)):
        return f"{text}\n{(after or b'').decode('utf-8', 'replace')}"
    if before == after:
        return text
    ends = [content.endswith(b"\n") for content in (before, after) if content is not None]
    lines = [f"{name}, {'a new file' if before is None else 'deleted' if after is None else 'changed'}:"]
    hunks = text.removeprefix("\n".join(_names(before, after, name)) + "\n")
    for line in ["(empty)"] if hunks == text else hunks.split("\n"):
        if line.startswith("@@"):
            number = line.partition("+")[2].partition(",")[0].partition(" ")[0]
            lines += [f"line {number}:"] if number not in ("0", "1") else []
        elif not line.startswith("\\"):
            lines.append(line)
        elif len(set(ends)) > 1:
            lines.append("(without a line break at its end)")
    return "\n".join(lines)


def _names(before: bytes | None, after: bytes | None, name: str) -> tuple[str, str]:
    """The first two lines of a unified diff."""
    old, new = ("/dev/null" if content is None else name for content in (before, after))
    return f"--- {old}", f"+++ {new}"


def _hunks(old: list[str], new: list[str], names: tuple[str, str]) -> Iterator[str]:
    """Compare only the middle of two texts, as `unified_diff` does, so that none takes long."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    skip = max(0, same - _CONTEXT)
    ends = max(0, tail - _CONTEXT)
    old, new = old[skip : len(old) - ends], new[skip : len(new) - ends]
    if max(len(old), len(new)) > 2000:
        if old == new:
            return
        yield from (f"{each}\n" for each in names)
        yield f"@@ -{skip + 1},{len(old)} +{skip + 1},{len(new)} @@\n"
        yield from (f"-{line}" for line in old)
        yield from (f"+{line}" for line in new)
        return
    yield from (f"{each}\n" for each in names if old != new)
    for line in islice(unified_diff(old, new), 2, None):
        moved = _HEADER.fullmatch(line)
        yield line if moved is None or not skip else _HEADER.sub(lambda found: _later(found, skip), line)


def _later(found: re.Match[str], skip: int) -> str:
    return f"@@ -{int(found[1]) + skip}{found[2]} +{int(found[3]) + skip}{found[4]} @@\n"


def _ended(lines: Iterable[str]) -> list[str]:
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]


def _sized(content: bytes | None) -> str:
    if content is None:
        return "no file"
    return f"{kind_of(content[:_HEAD_BYTES]) or 'text'} of {len(content):,} bytes"
