"""
The structure of a mail: header fields in their order, and the tree of its parts. Pure. Mail is hostile input,
so there are caps before there is parsing (`Caps`), and nothing here recurses on what the sender wrote or
takes more than linear time. The structure is walked by a loop over boundaries; only single, capped header
fields go to the standard library, and only to its old ("compat32") classes: the new ones take minutes for one
crafted field.
"""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message

_ID = re.compile(r"<[!-;=?-~]{1,250}>")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
FIELD = re.compile(rb"([!-9;-~]{1,100})[ \t]*:", re.DOTALL)
_PIECE = 1 << 20
_BARE_CR = re.compile(rb"\r(?!\n)")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_NUL = re.compile(rb"\0")
_WHO = ("from", "authentication-results")
FOR_WHOM = ("to", "cc", "bcc", "apparently-to", "resent-to", "resent-cc", "resent-bcc")
"""Fields that say who else has got the mail."""
_ENCODED_WORD = re.compile(r"=\?[^?\s]{1,60}\?[bBqQ]\?[^?\s]{0,500}\?=")
_MAX_PARAMETERS = 100
"""Of one field; the library looks at each again for every other. The longest file names take thirty."""
_WIDE = ("utf-16", "utf_16", "utf-32", "utf_32")
_UNKNOWN_LABELS = {
    "iso-8859-8-i": "iso-8859-8",
    "iso-8859-8-e": "iso-8859-8",
    "windows-874": "cp874",
    "dos-874": "cp874",
    "x-mac-cyrillic": "mac-cyrillic",
    "x-mac-ukrainian": "mac-cyrillic",
    "x-sjis": "cp932",
    "x-gbk": "gb18030",
    "x-x-big5": "big5",
    "koi8-ru": "koi8-u",
    "koi8": "koi8-r",
    "unicode-1-1-utf-8": "utf-8",
}
_AS_ON_THE_WEB = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    "tis-620": "cp874",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
}
"""The supersets that programs mean (WHATWG Encoding Standard, 4.2), by the names of Python."""
_JAPANESE_MODE = re.compile(rb"\x1b(\([BJI]|\$[@B])")
_NO_CHARSETS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"}
"""Codecs that are no character sets, or that take quadratic time, by their own names."""


class Unreadable(Exception):
    """This mail is beyond the caps, or not a mail; ``reason`` is a short constant."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits of parsing."""

    header_block: int = 256_000
    header_value: int = 16_000
    header_fields: int = 2_000
    parts: int = 200
    depth: int = 20
    near_delimiters: int = 10_000
    """Lines that begin like the delimiter of a multipart that is open there, and are none."""
    text_bytes: int = 1_000_000
    """Of all text parts together, before decoding; the rest is left out. More than anybody is shown."""
    texts: int = 20


@dataclass(frozen=True, slots=True)
class Headers:
    """
    Header fields in their order, names in lower case, values unfolded but not decoded. Of those in
    ``doubtful`` a part is missing, or other programs read them differently.
    """

    fields: tuple[tuple[str, str], ...]
    doubtful: frozenset[str] = frozenset()

    def all(self, name: str) -> list[str]:
        """Every value of a field, topmost first."""
        return [value for key, value in self.fields if key == name]

    def first(self, name: str) -> str | None:
        """The topmost value."""
        return next((value for key, value in self.fields if key == name), None)

    def consecutive_values(self, name: str, number: int) -> list[str]:
        """The values of the field's instances from this one on, as long as nothing stands in between."""
        places = [place for place, (key, _) in enumerate(self.fields) if key == name][number:]
        together = [place for place, first in enumerate(places) if first == places[0] + place]
        return [self.fields[places[place]][1] for place in together]

    def message_id(self) -> str | None:
        """The Message-ID with its angle brackets; None if there is no valid one."""
        value = (self.first("message-id") or "").strip()
        return value if _ID.fullmatch(value) else None

    def references(self) -> tuple[str, ...]:
        """The chain of ids that this mail continues, oldest first, In-Reply-To last; without repetitions."""
        found = [match.group(0) for match in _ID.finditer(self.first("references") or "")]
        answered = _ID.search(self.first("in-reply-to") or "")
        if answered is not None and answered.group(0) not in found:
            found.append(answered.group(0))
        return tuple(dict.fromkeys(found))

    def in_reply_to(self) -> str | None:
        """The id of the mail that this one answers."""
        found = _ID.search(self.first("in-reply-to") or "") or None
        return found.group(0) if found else next(iter(self.references()[-1:]), None)

    def subject(self) -> str:
        """The decoded subject on one line."""
        return " ".join(decoded_header((self.first("subject") or "")[:4_000]).split())[:500]

    def content_fields(self) -> Message:
        """The fields that say what the content is, in the standard library's old class."""
        message: Message = Message()
        for name in ("content-type", "content-disposition"):
            value = self.first(name)
            if value is not None and value.count(";") > _MAX_PARAMETERS:
                message[name] = value[:8_000].partition(";")[0]
            elif value is not None:
                message[name] = value[:8_000]
                try:
                    message.get_params(header=name)
                except (TypeError, ValueError, LookupError):
                    # Parameters that the library trips over (RFC 2231 numbers next to none); the type stays.
                    message.replace_header(name, value[:8_000].partition(";")[0])
        return message

    def media_type(self) -> str:
        """The type of the whole mail, such as ``multipart/report``."""
        return self.content_fields().get_content_type()


@dataclass(slots=True)
class MimePart:
    """One part; ``start`` and ``end`` are the place of its body."""

    headers: Headers
    media_type: str
    start: int
    end: int
    children: list[MimePart] = field(default_factory=list)


def ambiguous_header(raw: bytes) -> bool:
    """
    Return True if other programs can read a different sender in this header.

    A bare carriage return, a line feed among CRLFs, and a NUL end a line for some programs only. An attacker
    could show one From field to the server that vouches for it and another to us. So the header is read in
    these ways too: all readings that have a From field must agree with ours.
    """
    try:
        ours, others = _readings(raw)
    except Unreadable:
        return True
    return any(other.all(name) != ours.all(name) for other in others for name in _WHO)


def ambiguous_recipients(raw: bytes) -> frozenset[str]:
    """The fields of `FOR_WHOM` of which the same is true: another program may show its reader more people."""
    try:
        ours, others = _readings(raw)
    except Unreadable:
        return frozenset(FOR_WHOM)
    return frozenset(
        name for other in others for name in FOR_WHOM if _unfolded(other, name) != _unfolded(ours, name)
    )


def _unfolded(headers: Headers, name: str) -> list[str]:
    return [" ".join(value.replace("\x7f", " ").split()) for value in headers.all(name)]


def _readings(raw: bytes) -> tuple[Headers, list[Headers]]:
    """Read the header in our way and the others that have a sender. Raises Unreadable past the caps."""
    head = raw[: Caps().header_block + 1_000]
    odd = [each for each in (_BARE_CR, _BARE_LF, _NUL) if each.search(head)]
    if not odd or (odd == [_BARE_LF] and b"\r\n" not in head):
        return Headers(()), []
    ways = {(one,) for one in odd} | {tuple(odd)}
    others = [parse_headers(_without(head, *each)) for each in ways]
    return parse_headers(head), [other for other in others if other.first("from") is not None]


def _without(head: bytes, *odd: re.Pattern[bytes]) -> bytes:
    """The beginning of a mail as a program reads it to which these mean nothing."""
    for each in odd:
        head = each.sub(b"\x7f", head)
    return head


def parse_headers(raw: bytes) -> Headers:
    """The header fields of a mail. Raises `Unreadable`: there are more of them than anybody writes."""
    caps = Caps()
    data = normalise_lines(raw[: caps.header_block + 1_000])
    if len(raw) > caps.header_block + 1_000 and b"\n\n" not in data and not data.startswith(b"\n"):
        raise Unreadable("header_too_large")  # even if it is shorter without its carriage returns
    return _headers(data, caps)[0]


def decoded_header(value: str) -> str:
    """RFC 2047 words decoded as well as possible; total."""
    try:
        pieces = decode_header(value) if value.isascii() else None
    except (HeaderParseError, binascii.Error, ValueError):
        pieces = None
    if pieces is None:
        # One word is broken, or the library would garble what stands beside the words; each by itself then.
        return CONTROL.sub("", _ENCODED_WORD.sub(_decoded_word, value))
    out: list[str] = []
    last_charset: str | None = None
    pending = b""
    for content, charset in pieces:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        # A character may be split between two words of the same charset, so they are decoded together.
        if charset != last_charset and pending:
            out.append(decode_text(pending, last_charset))
            pending = b""
        pending += data
        last_charset = charset
    out.append(decode_text(pending, last_charset))
    return CONTROL.sub("", "".join(out))


def _decoded_word(found: re.Match[str]) -> str:
    try:
        [(content, charset)] = decode_header(found[0])
    except (HeaderParseError, binascii.Error, ValueError):
        return found[0]
    return content if isinstance(content, str) else decode_text(content, charset)


def decode_text(data: bytes, charset: str | None) -> str:
    """Decode by the charset, else UTF-8, else the likely Windows charset, byte errors tolerated. Total."""
    name = _codec((charset or "").strip())
    if name in {"iso8859-1", "ascii"}:
        # Labels that are often wrong; UTF-8 is hardly ever valid by accident.
        name = ""
    if name and name not in _NO_CHARSETS:
        try:
            text = _decode_japanese(data) if name.startswith("iso2022_jp") else _mostly(data, name)
        except (LookupError, UnicodeError, ValueError):
            text = None
        if text is not None:
            return text
    text = _mostly(data, "utf-8")
    return data.decode("cp1252", "replace") if text is None else text


def _decode_japanese(data: bytes) -> str | None:
    """Decode ISO-2022-JP with the characters of Windows (①, ㈱, 髙), as the web does and Python does not."""
    pieces = [b"(B", *_JAPANESE_MODE.split(data)]
    text = bytearray()
    for mode, piece in zip(pieces[::2], pieces[1::2], strict=True):
        if mode.startswith(b"$"):  # the same table, otherwise arranged
            for row, cell in zip(piece[::2], piece[1::2], strict=False):
                lead = (row + 1) // 2 + (0x70 if row < 0x5F else 0xB0)
                trail = cell + ((0x20 if cell >= 0x60 else 0x1F) if row % 2 else 0x7E)
                text += bytes((lead, trail & 0xFF))
        else:
            text += bytes(each | 0x80 if each > 0x20 else each for each in piece) if mode == b"(I" else piece
    return _mostly(bytes(text), "cp932")


def _codec(label: str) -> str:
    """Return Python's name of a charset label by the rules of the web, or ""."""
    try:
        label = _UNKNOWN_LABELS.get(label.lower(), label)
        name = codecs.lookup(label).name if len(label) < 40 else ""
        return _AS_ON_THE_WEB.get(name, name)
    except (LookupError, ValueError):
        return ""


def _mostly(data: bytes, encoding: str) -> str | None:
    """
    Decode with replacement characters; None if most non-ASCII bytes do not fit.

    ASCII is alike in nearly every encoding and proves nothing. Raises LookupError for an unknown encoding.
    """
    try:
        return data.decode(encoding)
    except UnicodeError:
        text = data.decode(encoding, "replace")
    told = len(text) if encoding.startswith(_WIDE) else len(text) - len(text.encode("ascii", "ignore"))
    return text if 2 * text.count("\ufffd") <= told else None


def normalise_lines(raw: bytes) -> bytes:
    """One kind of line ending, and no NUL. Works in pieces, between which other tasks can run."""
    pieces: list[bytes] = []
    start = 0
    while start < len(raw):
        end = start + _PIECE
        if raw[end - 1 : end] == b"\r":
            end += 1  # a line end stays whole
        piece = raw[start:end]
        pieces.append(piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\0", b""))
        start = end
    return b"".join(pieces)


def _headers(data: bytes, caps: Caps, start: int = 0, end: int | None = None) -> tuple[Headers, int]:
    """Read header fields from ``start``; also where the body begins."""
    end = len(data) if end is None else end
    if data.startswith(b"\n", start, end):
        return Headers(()), start + 1
    blank = data.find(b"\n\n", start, min(end, start + caps.header_block))
    if blank < 0:
        if end - start > caps.header_block:
            raise Unreadable("header_too_large")
        blank = end
    fields: list[tuple[str, str]] = []
    doubtful: set[str] = set()
    name, value = "", bytearray()
    for line in data[start:blank].split(b"\n"):
        if line[:1] in (b" ", b"\t") and name:
            value += b" " + line.strip()
            continue
        _add_field(fields, name, value, caps, doubtful)
        name, value = "", bytearray()
        match = FIELD.match(line)
        if match is not None:
            name = match.group(1).decode("ascii").lower()
            value += line[match.end() :].strip()
    _add_field(fields, name, value, caps, doubtful)
    return Headers(tuple(fields), frozenset(doubtful)), min(blank + 2, end)


def _add_field(
    fields: list[tuple[str, str]], name: str, value: bytearray, caps: Caps, doubtful: set[str]
) -> None:
    if not name:
        return
    if len(value) > caps.header_value:
        doubtful.add(name)
    if len(fields) >= caps.header_fields:
        raise Unreadable("too_many_header_fields")
    fields.append((name, decode_text(bytes(value[: caps.header_value]), None)))


def parse_structure(data: bytes, caps: Caps) -> MimePart:
    """Parse a mail of normalised lines; regions are offsets in ``data``. Raises Unreadable past the caps."""
    headers, body_at = _headers(data, caps)
    root = MimePart(headers, headers.media_type(), body_at, len(data))
    waiting = [(root, 0)]
    count = near = 0
    while waiting:
        part, depth = waiting.pop()
        boundary = _boundary_or_none(part)
        if boundary is None:
            continue
        if depth >= caps.depth:
            raise Unreadable("nested_too_deep")
        for piece in _pieces(data, boundary, part.start, part.end):
            if piece is None:
                near += 1
                if near > caps.near_delimiters:
                    raise Unreadable("too_many_parts")
                continue
            start, end = piece
            count += 1
            if count > caps.parts:
                raise Unreadable("too_many_parts")
            inner, inner_body_at = _headers(data, caps, start, end)
            child = MimePart(inner, inner.media_type(), inner_body_at, end)
            part.children.append(child)
            waiting.append((child, depth + 1))
    return root


def _boundary_or_none(part: MimePart) -> bytes | None:
    if not part.media_type.startswith("multipart/"):
        return None
    boundary = part.headers.content_fields().get_boundary()
    if not boundary or len(boundary) > 200:
        return None
    return b"--" + boundary.encode("utf-8", "surrogateescape")


def _pieces(data: bytes, delimiter: bytes, start: int, end: int) -> Iterator[tuple[int, int] | None]:
    """The regions between the delimiter lines of one multipart; None for a line that only begins like one."""
    line = b"\n" + delimiter
    rest = re.compile(rb"(--)?[ \t]{0,80}(?=\n|\Z)")
    piece_at: int | None = None
    # The blank line above a body ends just in front of it. (A search for plain bytes lets 25 MB pass in a
    # few milliseconds; a regular expression would hold everybody else up.)
    at = max(start - 1, 0)
    while (at := data.find(line, at, end)) >= 0:
        match = rest.match(data, at + len(line), end)
        if match is None:
            at += 1
            yield None
            continue
        if piece_at is not None:
            yield piece_at, max(at, piece_at)
        if match.group(1):
            return
        piece_at = min(match.end() + 1, end)
        at = match.end()
    if piece_at is not None:
        yield piece_at, end
