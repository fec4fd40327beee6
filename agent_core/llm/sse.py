"""Parses the two forms in which models stream: server-sent events (WHATWG HTML, 9.2.6), and lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator

_MAX_EVENT_BYTES = 4 * 1024 * 1024


class EventTooLarge(ValueError):
    """An event is too large."""


class SseDecoder:
    """Splits bytes into the data of complete events. Comments are dropped."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """The line in hand, in pieces: joined once, however small the bites in which it comes."""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """Take bytes and yield the data of complete events. Raises TooLarge over 4 MiB, or ValueError."""
        first, *others = data.split(b"\n")
        self._begun.append(first)
        self._size += len(first)
        if others:
            lines = [b"".join(self._begun), *others]
            self._begun = [lines.pop()]
            for raw in lines:
                line = raw.removesuffix(b"\r")
                if line.startswith(b"data:"):
                    self._data.append(line[5:].removeprefix(b" "))
                elif not line and self._data:
                    event, self._data = b"\n".join(self._data), []
                    yield event.decode()
            self._size = len(self._begun[0]) + sum(map(len, self._data))
        if self._size > _MAX_EVENT_BYTES:
            raise EventTooLarge("an event that does not end")

    @property
    def in_part(self) -> bool:
        """Return True if a part of an event has been read; comments do not count."""
        begun = next((piece[:1] for piece in self._begun if piece), b"")
        return bool(self._data) or begun not in (b"", b":", b"\r")

    def rest(self) -> Iterator[str]:
        """The event that was not closed by an empty line before the stream ended, if any."""
        yield from self.feed(b"\n\n")


class LineDecoder:
    """Splits bytes into lines, each of which is one JSON value (NDJSON)."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """Take bytes and return each line that they complete. Raises as `SseDecoder.feed` does."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = (bytes(self._begun) + line).strip()
            self._begun.clear()
            if whole:
                yield whole.decode()
        self._begun += rest
        if len(self._begun) > _MAX_EVENT_BYTES:
            raise EventTooLarge("a line that does not end")

    @property
    def in_part(self) -> bool:
        """Return True if a part of a line has been read."""
        return bool(self._begun.strip())

    def rest(self) -> Iterator[str]:
        """The last line, if nothing ends it."""
        yield from self.feed(b"\n")
