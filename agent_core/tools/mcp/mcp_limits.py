"""
The limits of a server's messages. Pure: the time is an argument.

A message is refused before it is parsed. Its size alone does not bound what it becomes: four megabytes of
``[[],[],…`` are a hundred as objects, and take half a second in which nothing else happens. So its parts are
counted, too.
"""

from __future__ import annotations

import re

MOST_BYTES = 4_000_000
MOST_PARTS = 20_000
MOST_BABBLE = 200
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_FLOOD_MESSAGES, _MESSAGES_PER_S = 500, 50.0
_FLOOD_BYTES, _BYTES_PER_S = 24_000_000, 1_000_000.0


class Misbehaviour(Exception):
    """The server misbehaves; the text says how, for the owner."""


def check_message(message: bytes) -> None:
    """Check that a message is of bounded size and number of parts. Raises Misbehaviour."""
    if len(message) > MOST_BYTES:
        raise Misbehaviour(f"it sent a message of more than {MOST_BYTES // 1_000_000} MB")
    if _parts(message) > MOST_PARTS and _parts(_STRING.sub(b"", message)) > MOST_PARTS:
        raise Misbehaviour(f"it sent a message of more than {MOST_PARTS:,} parts")


def check_babble(lines: int) -> None:
    """Tolerate a few lines that are no messages, such as greetings. Raises Misbehaviour past that."""
    if lines > MOST_BABBLE:
        raise Misbehaviour("it writes text where only messages belong")


def _parts(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


class LineReader:
    """Splits a program's output into lines, in linear time and bounded memory."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes, *, blank: bool = False) -> list[bytes]:
        """Return the complete lines, blank ones only on request. Raises Misbehaviour."""
        *ended, rest = piece.split(b"\n")
        lines = []
        if ended:
            lines = [b"".join([*self._pieces, ended[0]]), *ended[1:]]
            self._pieces, self._size = [], 0
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
        if self._size > MOST_BYTES:
            raise Misbehaviour(f"it sent a message of more than {MOST_BYTES // 1_000_000} MB")
        return [line for line in lines if blank or line.strip()]


class EventGuard:
    """Counts the parts of each event of a stream as it passes; JSON text contains no line break."""

    def __init__(self) -> None:
        self._lines = LineReader()
        self._parts = self._bytes = 0

    def feed(self, piece: bytes) -> list[int]:
        """Return the sizes of the events that ended with this piece. Raises Misbehaviour."""
        ended = []
        for line in self._lines.feed(piece, blank=True):
            if line.strip():
                check_message(line)
                self._bytes += len(line)
                self._parts += _parts(_STRING.sub(b"", line))
                if self._parts > MOST_PARTS or self._bytes > MOST_BYTES:
                    raise Misbehaviour(f"it sent a message of more than {MOST_PARTS:,} parts or 4 MB")
            elif self._bytes:
                ended.append(self._bytes)
                self._parts = self._bytes = 0
        return ended


class Allowance:
    """Rate limit for the messages and bytes of a server: a burst, and a rate."""

    def __init__(self) -> None:
        self._messages, self._bytes = float(_FLOOD_MESSAGES), float(_FLOOD_BYTES)
        self._at: float | None = None

    def spend(self, size: int, *, now: float) -> None:
        """Count a message. Raises `Misbehaviour`: there were too many."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._messages = min(_FLOOD_MESSAGES, self._messages + passed * _MESSAGES_PER_S) - 1
        self._bytes = min(_FLOOD_BYTES, self._bytes + passed * _BYTES_PER_S) - size
        if self._messages < 0 or self._bytes < 0:
            raise Misbehaviour("it sent a flood of messages")
