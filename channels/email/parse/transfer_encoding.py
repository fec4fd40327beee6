"""
Decodes Content-Transfer-Encodings and ``format=flowed`` (RFC 3676). Pure, linear and total: only the broken
part of a body is lost. Large bodies are decoded in pieces of about a megabyte, because one call into the
standard library keeps the interpreter to itself, even in a worker thread.
"""

from __future__ import annotations

import binascii
import quopri
import re
from collections.abc import Iterator

_PIECE = 1 << 20
_NOT_BASE64 = bytes(
    set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
)
_UUENCODED = frozenset({"x-uuencode", "uuencode", "x-uue", "uue"})
_SHORT_LINE = 20
"""The most lines of a uuencoded file that may be unreadable or shorter than any program writes them."""
_LINE = re.compile(rb"[^\n]+")


def decode_transfer(encoded: bytes, encoding: str) -> bytes:
    """Decode a Content-Transfer-Encoding as well as possible; total."""
    return b"".join(decode_pieces(memoryview(encoded), encoding))


def decode_pieces(encoded: memoryview, encoding: str) -> Iterator[bytes]:
    """The same in pieces of about a megabyte, so that a large file delays nobody else; total."""
    if encoding in _UUENCODED:
        yield from _uudecoded(bytes(encoded))
    elif encoding == "quoted-printable":
        yield quopri.decodestring(bytes(encoded))
    elif encoding == "base64":
        left = b""
        for start in range(0, len(encoded), _PIECE):
            clean = left + bytes(encoded[start : start + _PIECE]).translate(None, _NOT_BASE64)
            whole = len(clean) - len(clean) % 4
            yield binascii.a2b_base64(clean[:whole])
            left = clean[whole:]
        if len(left) > 1:
            yield binascii.a2b_base64(left + b"=" * (4 - len(left)))
    else:
        for start in range(0, len(encoded), _PIECE):
            yield bytes(encoded[start : start + _PIECE])


def _uudecoded(encoded: bytes) -> Iterator[bytes]:
    """
    Yield the decoded text between ``begin`` and ``end``, at most as long as the encoded one.

    Unreadable lines are left out. Zeros at the end of a line may be missing, so that one character can stand
    for 63 bytes; hence the bound.
    """
    begin = re.search(rb"^begin [0-7]{3,4} [^\n]*\n", encoded, re.MULTILINE)
    out = bytearray()
    room, odd = len(encoded), 0
    for found in _LINE.finditer(encoded, begin.end() if begin else 0):
        line = found[0]
        if line.strip() == b"end" or odd > 1_000:
            break
        content = _uudecoded_line(line)
        odd += len(content) < _SHORT_LINE
        room -= len(content)
        if room < 0:
            break
        out += content
        if len(out) >= _PIECE:
            yield bytes(out)
            out.clear()
    yield bytes(out)


def _uudecoded_line(line: bytes) -> bytes:
    length = (((line[0] - 32) & 63) * 4 + 5) // 3
    for attempt in (line, line[:length]):  # some encoders pad too much
        try:
            return binascii.a2b_uu(attempt)
        except binascii.Error:
            continue
    return b""


WIDTH = 76
"""Lines are broken there, as far as there is a blank to break at; 78 is what everybody shows."""
_SIGNATURE = "-- "
_QUOTES = re.compile(r">{1,50}")


def unflow(text: str, *, delsp: bool = False) -> str:
    """The text as its author wrote it; quoted lines begin with ``> `` for each level."""
    out: list[str] = []
    pieces: list[str] = []
    depth_before = 0

    def end() -> None:
        if pieces:
            out.append("> " * depth_before + "".join(pieces))
            pieces.clear()

    for line in text.split("\n"):
        quotes = _QUOTES.match(line)
        depth = quotes.end() if quotes else 0
        content = line[depth:].removeprefix(" ")
        if depth != depth_before:
            end()  # a paragraph never goes on in another depth (4.5)
        depth_before = depth
        flows = content.endswith(" ") and content != _SIGNATURE
        if content == _SIGNATURE:
            end()
        pieces.append(content[:-1] if flows and delsp else content)
        if not flows:
            end()
    end()
    return "\n".join(out)


def flow(text: str) -> str:
    """The text with its long lines broken so that they can be joined again."""
    return "\n".join(part for line in text.split("\n") for part in _broken(line))


def _broken(line: str) -> list[str]:
    if line == _SIGNATURE:
        return [line]
    line = line.rstrip(" ")
    parts: list[str] = []
    start = 0
    while len(line) - start > WIDTH:
        cut = line.rfind(" ", start + 1, start + WIDTH)
        if cut < 0:
            cut = line.find(" ", start + WIDTH)
        if cut < 0 or not line[start:cut].strip(" "):
            break
        parts.append(_stuffed(line[start : cut + 1]))
        start = cut + 1
    parts.append(_stuffed(line[start:]))
    return parts


def _stuffed(line: str) -> str:
    # Lines that are quotations in the text are meant as such, and flow as such.
    return f" {line}" if line.startswith((" ", "From ")) else line
