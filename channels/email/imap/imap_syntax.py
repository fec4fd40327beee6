"""
Reads and writes IMAP's syntax (RFC 3501, section 9). Pure: no sockets, no clock. `ResponseReader` is a loop
that looks at each byte a bounded number of times and cuts a stream into tuples text, literal, text, …
Literals are recognised only where responses may have them, since texts may end in ``{5}``. `parse_fetch`
takes flat items in any order; structures controlled by senders (ENVELOPE, BODYSTRUCTURE) are never requested.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TypeAlias

ImapResponse: TypeAlias = tuple[bytes, ...]

MAX_LINE_BYTES = 4_000_000
"""A line: the answer to a SEARCH over half a million mails fits."""
MAX_LITERAL_BYTES = 64_000_000

_LITERAL_AT_END = re.compile(rb"\{(\d{1,12})\}\Z")
_MAY_HAVE_LITERALS = re.compile(rb"\* (?:\d{1,12} FETCH|LIST|LSUB|STATUS)\b", re.IGNORECASE)
_FETCH = re.compile(rb"\* (\d{1,12}) FETCH \(", re.IGNORECASE)
_LIST = re.compile(rb"\* (?:LIST|LSUB) \(([^)]*)\) (NIL|\"(?:\\.|[^\"\\])\") ", re.IGNORECASE)
_INTERNALDATE = re.compile(rb" ?(\d{1,2})-([A-Za-z]{3})-(\d{4}) (\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)")
_MONTHS = (b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


_PLAIN = re.compile(r"[ -~]+|[^ -~]+")
_ENCODED = re.compile(r"&([A-Za-z0-9+,]*)-")


def folder_wire(name: str) -> str:
    """``Entwürfe`` as ``Entw&APw-rfe``: the form for a server."""
    return "".join(
        piece.replace("&", "&-") if piece[0].isascii() and piece.isprintable() else _encoded(piece)
        for piece in _PLAIN.findall(name)
    )


def _encoded(text: str) -> str:
    raw = text.encode("utf-16-be", "surrogatepass")
    return f"&{base64.b64encode(raw).rstrip(b'=').replace(b'/', b',').decode()}-"


def folder_name(wire: str) -> str:
    """``Entw&APw-rfe`` as ``Entwürfe``: the form for people; other texts stay as they are."""
    return _ENCODED.sub(_decoded, wire)


def _decoded(match: re.Match[str]) -> str:
    if not match.group(1):
        return "&"
    text = match.group(1).replace(",", "/")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        return raw.decode("utf-16-be")
    except (binascii.Error, ValueError):
        return match.group(0)


class WireError(Exception):
    """The server sent something that is not IMAP, or too much of it."""


class ResponseReader:
    """Splits the stream into responses; keeps an incomplete one."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._parts: list[bytes] = []
        self._literal_left = 0
        self._literal: bytearray | None = None

    @property
    def is_empty(self) -> bool:
        """Return True if nothing is buffered."""
        return not self._buffer and not self._parts and self._literal is None

    def feed(self, data: bytes) -> Iterator[ImapResponse]:
        """Take a piece of the stream; yield complete responses. Raises WireError past the size limits."""
        view = memoryview(data)
        position = 0
        while position < len(data):
            if self._literal is not None:
                taken = min(self._literal_left, len(data) - position)
                self._literal += view[position : position + taken]
                self._literal_left -= taken
                position += taken
                self._end_literal_if_full()
                continue
            end = data.find(b"\n", position)
            if end < 0:
                self._buffer += view[position:]
                self._check_line()
                return
            self._buffer += view[position:end]
            position = end + 1
            self._check_line()
            line = bytes(self._buffer).removesuffix(b"\r")
            self._buffer.clear()
            if self._begin_literal(line):
                continue
            self._parts.append(line)
            response, self._parts = tuple(self._parts), []
            if response != (b"",):
                yield response

    def _check_line(self) -> None:
        if len(self._buffer) > MAX_LINE_BYTES:
            raise WireError("the server sent a line of more than 4 MB")

    def _begin_literal(self, line: bytes) -> bool:
        match = _LITERAL_AT_END.search(line[-16:])
        head = self._parts[0] if self._parts else line
        if match is None or not _MAY_HAVE_LITERALS.match(head):
            return False
        self._literal_left = int(match.group(1))
        if self._literal_left > MAX_LITERAL_BYTES:
            raise WireError("the server announced more than 64 MB in one piece")
        self._parts.append(line[: len(line) - len(match.group(0))])
        self._literal = bytearray()
        self._end_literal_if_full()
        return True

    def _end_literal_if_full(self) -> None:
        if self._literal is not None and self._literal_left == 0:
            self._parts.append(bytes(self._literal))
            self._literal = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """One FETCH response. ``body`` is the content of its BODY[…] item; None: it had none, or NIL."""

    sequence: int
    uid: int | None = None
    size: int | None = None
    received_at: datetime | None = None
    flags: frozenset[str] | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder of LIST: ``name`` for people, ``wire`` in modified UTF-7, ``delimiter`` or ""."""

    name: str
    attributes: frozenset[str]
    wire: str = ""
    delimiter: str = ""


def parse_fetch(response: ImapResponse) -> Fetched | None:
    """Read a FETCH response; None for any other, or for one that makes no sense."""
    match = _FETCH.match(response[0])
    if match is None:
        return None
    tokens = list(_tokens((response[0][match.end() :], *response[1:])))
    items: dict[bytes, bytes | list[bytes] | None] = {}
    position = 0
    while position + 1 < len(tokens):
        name = tokens[position]
        if not isinstance(name, bytes) or name == b")":
            break
        value = tokens[position + 1]
        position += 2
        if value == b"(":
            inside: list[bytes] = []
            while position < len(tokens) and tokens[position] != b")":
                token = tokens[position]
                inside.append(token.value if isinstance(token, _String) else token)
                position += 1
            position += 1
            items[name.upper()] = inside
        else:
            items[name.upper()] = _plain(value)
    return _fetched(int(match.group(1)), items)


def _fetched(sequence: int, items: dict[bytes, bytes | list[bytes] | None]) -> Fetched:
    flags = items.get(b"FLAGS")
    body = next((value for name, value in items.items() if name.startswith(b"BODY[")), None)
    return Fetched(
        sequence,
        uid=_number(items.get(b"UID")),
        size=_number(items.get(b"RFC822.SIZE")),
        received_at=_instant(items.get(b"INTERNALDATE")),
        flags=frozenset(flag.decode("ascii", "replace") for flag in flags)
        if isinstance(flags, list)
        else None,
        body=body if isinstance(body, bytes) else None,
    )


@dataclass(frozen=True, slots=True)
class _String:
    """A quoted string or a literal: data, never syntax."""

    value: bytes


def _plain(token: bytes | _String) -> bytes | None:
    if isinstance(token, _String):
        return token.value
    return None if token.upper() == b"NIL" else token


def _tokens(parts: Sequence[bytes]) -> Iterator[bytes | _String]:
    """Atoms, parentheses, strings. Even parts are text, odd ones literals."""
    for index, part in enumerate(parts):
        if index % 2:
            yield _String(part)
            continue
        position = 0
        while position < len(part):
            char = part[position : position + 1]
            if char == b" ":
                position += 1
            elif char in (b"(", b")"):
                yield char
                position += 1
            elif char == b'"':
                value, position = _quoted(part, position + 1)
                yield _String(value)
            else:
                end = _atom_end(part, position)
                yield part[position:end]
                position = end


def _quoted(text: bytes, position: int) -> tuple[bytes, int]:
    value = bytearray()
    while position < len(text) and text[position] != 0x22:
        if text[position] == 0x5C and position + 1 < len(text):
            position += 1
        value.append(text[position])
        position += 1
    return bytes(value), position + 1


def _atom_end(text: bytes, position: int) -> int:
    """Return the end of an atom; parentheses and spaces inside ``BODY[…]`` belong to it."""
    depth = 0
    while position < len(text):
        char = text[position]
        if char == 0x5B:
            depth += 1
        elif char == 0x5D:
            depth -= 1
        elif depth <= 0 and char in b' ()"':
            break
        position += 1
    return position


def _number(value: bytes | list[bytes] | None) -> int | None:
    return int(value) if isinstance(value, bytes) and value.isdigit() and len(value) <= 12 else None


def _instant(value: bytes | list[bytes] | None) -> datetime | None:
    match = _INTERNALDATE.fullmatch(value) if isinstance(value, bytes) else None
    if match is None:
        return None
    day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = match.groups()
    try:
        offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes)) * (-1 if sign == b"-" else 1)
        local = datetime(
            int(year),
            _MONTHS.index(month.lower()) + 1,
            int(day),
            int(hour),
            int(minute),
            min(int(second), 59),
            tzinfo=timezone(offset),
        )
        return local.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def parse_list(response: ImapResponse) -> Folder | None:
    """Read a LIST response; None for any other."""
    match = _LIST.match(response[0])
    if match is None:
        return None
    rest = response[0][match.end() :]
    if len(response) > 1:
        name = response[1]
    elif rest.startswith(b'"'):
        name = _quoted(rest, 1)[0]
    else:
        name = rest.strip()
    attributes = frozenset(item.decode("ascii", "replace").lower() for item in match.group(1).split())
    if not name:
        return None
    wire = name.decode("ascii", "replace")
    delimiter = b"" if match.group(2).upper() == b"NIL" else _quoted(match.group(2), 1)[0]
    return Folder(folder_name(wire), attributes, wire, delimiter.decode("ascii", "replace"))


def response_code(text: bytes, name: str) -> str | None:
    """The argument of a response code: ``response_code(b"* OK [UIDNEXT 7] …", "UIDNEXT")`` is ``"7"``."""
    match = re.search(rb"\[" + name.encode("ascii") + rb"(?: ([^\]]*))?\]", text, re.IGNORECASE)
    return (match.group(1) or b"").decode("ascii", "replace") if match else None


def quote(text: str) -> str:
    """Return a quoted string. Raises ValueError for control characters, which IMAP cannot quote."""
    if _CONTROL.search(text):
        raise ValueError("control characters cannot be sent to a mail server")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def uid_set(uids: Sequence[int]) -> str:
    """A sequence set with ranges: ``1:3,7``."""
    ordered = sorted(set(uids))
    ranges: list[list[int]] = []
    for uid in ordered:
        if ranges and uid == ranges[-1][1] + 1:
            ranges[-1][1] = uid
        else:
            ranges.append([uid, uid])
    return ",".join(f"{low}:{high}" if low != high else f"{low}" for low, high in ranges)
