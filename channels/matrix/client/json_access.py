"""
Reads fields of untrusted JSON: each access returns a value of the requested type. Anybody can send something
that only just passes their homeserver and ours and cannot be read here, because it is nested deeper than this
Python can go, or holds a longer number. It must not make the whole answer unreadable, which would come again
and again: such values are cut out of it (`decode_object`). Nor must it make the whole answer too long: one
event, room or invitation that is longer than any should be is cut out of it while it comes (`Trimmer`).
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

JsonObject = Mapping[str, Any]
_DEEPEST = 150
_MAX_NUMBER = 400
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("|\\?\Z)|[\[\]{}]', re.DOTALL)
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""How much deeper each bracket leads, as signed bytes."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of an answer, without values that nothing can read; empty if it is none."""
    try:
        found = json.loads(body)
    except json.JSONDecodeError:
        return {}
    except (ValueError, RecursionError):
        try:
            found = json.loads(_shallow(body), parse_int=_number)
        except (ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def _shallow(body: bytes) -> bytes:
    """The same JSON, with ``null`` for whatever is nested too deep."""
    pieces: list[bytes] = []
    depth, kept = 0, 0
    for token in _TOKEN.finditer(body):
        if token[0] in _OPENING:
            depth += 1
            if depth == _DEEPEST + 1:
                pieces += [body[kept : token.start()], b"null"]
        elif token[0] in _CLOSING:
            depth -= 1
            if depth == _DEEPEST:
                kept = token.end()
    return b"".join(pieces) + (body[kept:] if depth <= _DEEPEST else b"")


def _number(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_NUMBER else 0


class Trimmer:
    """
    Replaces values of a JSON text by ``null`` while it comes in pieces: objects and lists at one depth (the
    outermost value has 1) that are longer than so many bytes. It holds no more of them than that.
    """

    def __init__(self, depth: int, max_bytes: int) -> None:
        self._at = depth
        self._max_bytes = max_bytes
        self._depth = 0
        self._in_string = self._escaped = False
        self._held: bytearray | None = None
        """The beginning of a value that may have to go, up to one byte more than it may have."""

    def feed(self, piece: bytes) -> bytes:
        """Return the remaining bytes of one more piece."""
        if self._held is not None and self._goes_on(piece):
            self._hold(piece)
            return b""
        kept, begin = bytearray(), 0
        for place, opens in self._brackets(piece):
            self._depth += 1 if opens else -1
            if opens and self._depth == self._at and self._held is None:
                kept += piece[begin:place]
                begin, self._held = place, bytearray()
            elif not opens and self._depth < self._at and self._held is not None:
                self._hold(piece[begin : place + 1])
                kept += self._held if len(self._held) <= self._max_bytes else b"null"
                begin, self._held = place + 1, None
        if self._held is None:
            return bytes(kept + piece[begin:])
        self._hold(piece[begin:])
        return bytes(kept)

    def _hold(self, more: bytes) -> None:
        assert self._held is not None, "nothing is being held"
        self._held += more[: self._max_bytes + 1 - len(self._held)]

    def _goes_on(self, piece: bytes) -> bool:
        """
        Return True and skip the piece if the held value does not end in it.

        Depths are summed without a step per bracket, because a piece may consist of millions.
        """
        before = self._in_string, self._escaped
        begin = self._begin(piece)
        if self._in_string:
            return True
        rest = piece[begin:].replace(b"\\\\", b"").replace(b'\\"', b"")
        outside = rest.split(b'"')
        steps = array("b", b"".join(outside[::2]).translate(_STEPS, _NO_BRACKETS))
        if min(accumulate(steps, initial=self._depth)) < self._at:
            self._in_string, self._escaped = before
            return False
        self._depth += sum(steps)
        self._in_string = len(outside) % 2 == 0
        self._escaped = self._in_string and rest.endswith(b"\\")
        return True

    def _brackets(self, piece: bytes) -> Iterator[tuple[int, bool]]:
        """Yield the position of each bracket outside of strings, and True if it opens."""
        for token in _TOKEN.finditer(piece, self._begin(piece)):
            if token[1] is None:
                yield token.start(), token[0] in _OPENING
            elif token[1] != b'"':
                self._in_string, self._escaped = True, bool(token[1])

    def _begin(self, piece: bytes) -> int:
        """The place after the rest of a string that has come with an earlier piece."""
        if not self._in_string:
            return 0
        found = _IN_STRING.match(piece, 1 if self._escaped else 0)
        end = len(piece) if found is None else found.end()
        self._in_string = end >= len(piece) or piece[end : end + 1] != b'"'
        self._escaped = self._in_string and end < len(piece)
        return min(end + 1, len(piece))


def object_of(value: Any, key: str) -> JsonObject:
    """``value[key]`` if that is a JSON object, else an empty one."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def text_of(value: Any, key: str) -> str:
    """``value[key]`` if that is a text, else an empty one."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else ""


def events_of(value: Any, key: str) -> list[JsonObject]:
    """The JSON objects in ``value[key]["events"]``."""
    return objects_of(object_of(value, key), "events")


def objects_of(value: Any, key: str) -> list[JsonObject]:
    """The JSON objects in the list ``value[key]``."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
