"""
Takes the signed content out of an opaque S/MIME part (CMS, RFC 5652, in BER). Pure, linear in its size. The
signature is not looked at: who sent a mail is decided by what servers and DKIM say.
"""

from __future__ import annotations

from channels.email.parse.mime import Unreadable

ENCRYPTED = "encrypted"
_SIGNED = bytes.fromhex("2a864886f70d010702")
_ENCRYPTED = (
    bytes.fromhex("2a864886f70d010703"),  # enveloped
    bytes.fromhex("2a864886f70d0109100117"),  # enveloped and authenticated
)
_CONSTRUCTED = 0x20
_DEEPEST = 8


def content_of(data: bytes) -> bytes | None:
    """Return a signed part's content; None if absent or damaged. Raises Unreadable if encrypted."""
    try:
        reader = _Reader(data)
        reader.enter(0x30)
        kind = reader.value(0x06)
        if kind in _ENCRYPTED:
            raise Unreadable(ENCRYPTED)
        if kind != _SIGNED:
            return None
        for tag in (0xA0, 0x30):
            reader.enter(tag)
        reader.value(0x02)  # the version
        reader.skip()  # the digest algorithms
        reader.enter(0x30)
        reader.value(0x06)
        reader.enter(0xA0)
        return reader.octets()
    except (IndexError, ValueError):
        return None


class _Reader:
    """Reads one element after another; damage is an `IndexError` or a `ValueError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._pieces = 0

    def enter(self, tag: int) -> int | None:
        """Go into an element of this tag; returns its length, None for one that has an end mark."""
        found, length = self._head()
        if found != tag:
            raise ValueError("another element")
        return length

    def value(self, tag: int) -> bytes:
        """The bytes of a primitive element."""
        length = self.enter(tag)
        if length is None:
            raise ValueError("a primitive element has a length")
        return self._bytes(length)

    def skip(self, depth: int = 0) -> None:
        """Pass over the next element."""
        _, length = self._head()
        if length is not None:
            self._bytes(length)
            return
        if depth > _DEEPEST:
            raise ValueError("too deep")
        while not self._has_ended():
            self.skip(depth + 1)

    def octets(self, depth: int = 0) -> bytes:
        """The bytes of an octet string, which may come in pieces."""
        tag, length = self._head()
        if tag == 0x04 and length is not None:
            return self._bytes(length)
        if tag != 0x04 | _CONSTRUCTED or depth > _DEEPEST:
            raise ValueError("not an octet string")
        end = None if length is None else self._at + length
        pieces: list[bytes] = []
        while (self._at < end) if end is not None else not self._has_ended():
            pieces.append(self.octets(depth + 1))
        return b"".join(pieces)

    def _head(self) -> tuple[int, int | None]:
        self._pieces += 1
        if self._pieces > 100_000:
            raise ValueError("too many elements")
        tag, length = self._data[self._at], self._data[self._at + 1]
        self._at += 2
        if length == 0x80:
            return tag, None
        if length > 0x80:
            length = int.from_bytes(self._bytes(min(length - 0x80, 8)), "big")
        return tag, length

    def _bytes(self, length: int) -> bytes:
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise IndexError
        return self._data[start : self._at]

    def _has_ended(self) -> bool:
        ended = self._data[self._at : self._at + 2] == b"\0\0"
        self._at += 2 * ended
        if self._at >= len(self._data) and not ended:
            raise IndexError
        return ended
