"""
Splits a long Markdown text into parts of at most so many bytes, each of which reads well alone. Pure. Blocks
(fenced code, tables, runs of lines) are packed greedily and cut only if too long: code between lines with the
fence reopened, tables between rows with the head repeated, text between lines, sentences, words or
characters. Every part is within ``max_bytes`` of UTF-8, not blank, with closed fences, and only blanks at
cuts are lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent_core.language import _
from agent_core.messages import Attachment
from channels.base import Capabilities

_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})([^\n]*)$")
_TABLE_RULE = re.compile(r"^\s*+\|?(?:\s*+:?-++:?\s*+\|)+\s*+(?::?-++:?)?\s*+$")
_SMALLEST = 64
"""Below this there is no room for a fence and its text."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines that belong together. ``head`` and ``foot`` are repeated when it must be cut."""

    lines: tuple[str, ...]
    head: tuple[str, ...] = ()
    foot: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join((*self.head, *self.lines, *self.foot))


def split_markdown(text: str, max_bytes: int) -> list[str]:
    """Cut a text into parts of at most ``max_bytes`` (≥ 64), none for a blank one, itself if it fits."""
    if max_bytes < _SMALLEST:
        raise ValueError(f"parts need at least {_SMALLEST} bytes")
    if not text.strip():
        return []
    if _size(text) <= max_bytes:
        return [text]
    parts: list[str] = []
    current = ""
    for block in _blocks(text.splitlines()):
        for piece in _pieces(block, max_bytes):
            joined = f"{current}\n\n{piece}" if current else piece
            if _size(joined) <= max_bytes:
                current = joined
                continue
            if current:
                parts.append(current)
            current = piece
    if current:
        parts.append(current)
    return parts


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Cut into blocks. A fence that is never closed reaches to the end, as in CommonMark."""
    position = 0
    plain: list[str] = []
    while position < len(lines):
        fence = _FENCE.match(lines[position])
        opens = fence and not (fence[2].startswith("`") and "`" in fence[3])
        if fence and opens:
            if plain:
                yield _plain_block(plain)
                plain = []
            end = _fence_end(lines, position, fence[2])
            yield _Block(tuple(lines[position + 1 : end]), (lines[position],), (fence[1] + fence[2],))
            position = end + 1
            continue
        if lines[position].strip():
            plain.append(lines[position])
        elif plain:
            yield _plain_block(plain)
            plain = []
        position += 1
    if plain:
        yield _plain_block(plain)


def _fence_end(lines: Sequence[str], start: int, marker: str) -> int:
    closing = re.compile(rf"^ {{0,3}}{re.escape(marker[0])}{{{len(marker)},}}\s*$")
    for position in range(start + 1, len(lines)):
        if closing.match(lines[position]):
            return position
    return len(lines)


def _plain_block(lines: Sequence[str]) -> _Block:
    if len(lines) > 2 and "|" in lines[0] and _TABLE_RULE.match(lines[1]):
        return _Block(tuple(lines[2:]), head=tuple(lines[:2]))
    return _Block(tuple(lines))


def _pieces(block: _Block, max_bytes: int) -> Iterator[str]:
    if _size(block.text) <= max_bytes:
        yield block.text
        return
    frame = _size("\n".join((*block.head, *block.foot))) + 2
    if frame > max_bytes // 2:
        # A head that leaves no room: what it marks is given up, the words are not.
        block, frame = _Block((*block.head, *block.lines)), 0
    room = max_bytes - frame
    held: list[str] = []
    held_size = 0
    for line in block.lines:
        for piece in _cut_line(line, room):
            size = _size(piece) + 1
            if held and held_size + size > room:
                yield from _framed(block, held)
                held, held_size = [], 0
            held.append(piece)
            held_size += size
    yield from _framed(block, held)


def _framed(block: _Block, lines: Sequence[str]) -> Iterator[str]:
    text = "\n".join((*block.head, *lines, *block.foot))
    if text.strip():
        yield text


def _cut_line(line: str, max_bytes: int) -> Iterator[str]:
    """Cut one line, as late as possible at the best kind of place in its second half."""
    position = 0
    while True:
        # More characters than bytes never fit, so nobody looks at the rest of the line.
        window = line[position : position + max_bytes + 1]
        if _size(window) <= max_bytes:
            yield window
            return
        fits = window.encode("utf-8", "surrogatepass")[:max_bytes].decode("utf-8", "ignore")
        at = _cut_at(fits)
        yield window[:at].rstrip(" ")
        position += at
        while line.startswith(" ", position):
            position += 1


def _cut_at(window: str) -> int:
    half = len(window) // 2
    for mark in (". ", "! ", "? ", "; ", ", ", " "):
        found = window.rfind(mark, half)
        if found >= 0:
            return found + len(mark)
    return max(len(window), 1)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def message_parts(
    text: str, attachments: Sequence[Attachment], capabilities: Capabilities
) -> list[tuple[str, tuple[Attachment, ...]]]:
    """
    Text and files of each message that an answer becomes, in order.

    Where a channel cannot carry files the text says what should have come with it.
    """
    if attachments and not capabilities.attachments:
        names = ", ".join(file.name for file in attachments)
        text += _("\n\n(I cannot send files here, so this one is missing: {names})", names=names)
        attachments = ()
    parts = split_markdown(text, capabilities.max_text_bytes)
    return [
        (part, tuple(attachments) if number == len(parts) - 1 else ()) for number, part in enumerate(parts)
    ]
