"""
A raw mail → its header fields, its text, the names of what else is in it. Pure; call it in a worker thread.

Mail is hostile input, so there are caps before there is parsing (`Caps`), and nothing here recurses on what
the sender wrote or takes more than linear time. The structure is walked by a loop over boundaries; only single,
capped header fields go to the standard library, and only to its old ("compat32") classes: the new ones take
minutes for one crafted field. Header fields keep their order, because trust depends on which is on top.
"""

from __future__ import annotations

import binascii
import hashlib
import quopri
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message

from channels.email.html_text import html_to_text
from channels.email.quoting import new_text

__all__ = ["AttachmentNote", "Caps", "Headers", "ParsedMail", "Unreadable", "parse_headers", "parse_mail"]

_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_BAD_IN_NAME = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|\u202a-\u202e\u2066-\u2069]')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FIELD = re.compile(rb"([!-9;-~]{1,100})[ \t]{0,20}:", re.DOTALL)
# Codecs that are no character sets, or that take quadratic time.
_NO_CHARSETS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "unicode-escape"}


class Unreadable(Exception):
    """This mail is beyond the caps, or not a mail; ``reason`` is a short constant."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Caps:
    """Where reading ends."""

    header_block: int = 256_000
    header_value: int = 16_000
    header_fields: int = 2_000
    parts: int = 200
    depth: int = 20
    text_bytes: int = 1_000_000
    """Of one text part, before decoding; the rest of it is left out."""
    texts: int = 20


@dataclass(frozen=True, slots=True)
class Headers:
    """Header fields in their order, names in lower case, values unfolded but not decoded."""

    fields: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        """Every value of a field, topmost first."""
        return [value for key, value in self.fields if key == name]

    def first(self, name: str) -> str | None:
        """The topmost value."""
        return next((value for key, value in self.fields if key == name), None)

    def message_id(self) -> str | None:
        """The Message-ID with its angle brackets; None if there is none that can be used."""
        value = (self.first("message-id") or "").strip()
        return value if _ID.fullmatch(value) else None

    def references(self) -> tuple[str, ...]:
        """The chain of ids that this mail continues, oldest first, In-Reply-To last; without repetitions."""
        found = [match.group(0) for match in _ID.finditer(self.first("references") or "")]
        answered = _ID.search(self.first("in-reply-to") or "")
        if answered is not None and answered.group(0) not in found:
            found.append(answered.group(0))
        return tuple(dict.fromkeys(found))

    def subject(self) -> str:
        """The decoded subject on one line."""
        return " ".join(decoded_header((self.first("subject") or "")[:4_000]).split())[:500]

    def media_type(self) -> str:
        """The type of the whole mail, such as ``multipart/report``."""
        return _typed(self).get_content_type()


@dataclass(frozen=True, slots=True)
class AttachmentNote:
    """Something in the mail that is not its text."""

    name: str
    media_type: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ParsedMail:
    """
    What a mail says.

    ``text`` is the new part of it, ``full_text`` all. ``digest`` identifies the mail by what its author wrote,
    whatever servers have put on top: for mails without a usable Message-ID.
    """

    headers: Headers
    text: str
    full_text: str
    attachments: tuple[AttachmentNote, ...]
    digest: str


@dataclass(slots=True)
class _Part:
    headers: Headers
    media_type: str
    start: int
    end: int
    children: list[_Part] = field(default_factory=list)


def parse_headers(raw: bytes, caps: Caps | None = None) -> Headers:
    """
    The header fields of a mail.

    Raises:
        Unreadable: There are more of them than anybody writes.
    """
    return _headers(_normalised(raw[: (caps or Caps()).header_block + 1_000]), caps or Caps())[0]


def parse_mail(raw: bytes, caps: Caps | None = None) -> ParsedMail:
    """
    All of a mail.

    Raises:
        Unreadable: It is beyond the caps.
    """
    caps = caps or Caps()
    data = _normalised(raw)
    headers, body_at = _headers(data, caps)
    root = _structure(data, headers, body_at, caps)
    texts: list[str] = []
    notes: list[AttachmentNote] = []
    _collect(data, root, texts, notes, caps)
    full = "\n\n".join(text for text in texts[: caps.texts] if text.strip()).strip()
    digest = _digest(headers, data[body_at:])
    return ParsedMail(headers, new_text(full), full, tuple(notes), digest)


def decoded_header(value: str) -> str:
    """RFC 2047 words decoded as well as possible; total."""
    try:
        pieces = decode_header(value)
    except (HeaderParseError, binascii.Error, ValueError):
        return _CONTROL.sub("", value)
    out: list[str] = []
    last_charset: str | None = None
    pending = b""
    for content, charset in pieces:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        # A character may be split between two words of the same charset, so they are decoded together.
        if charset != last_charset and pending:
            out.append(decoded(pending, last_charset))
            pending = b""
        pending += data
        last_charset = charset
    out.append(decoded(pending, last_charset))
    return _CONTROL.sub("", "".join(out))


def decoded(data: bytes, charset: str | None) -> str:
    """The declared charset, else UTF-8, else what Windows would have meant; total."""
    name = (charset or "").strip().lower()
    if name in {"iso-8859-1", "latin-1", "latin1", "us-ascii", "ascii"}:
        # Labels that are often wrong; UTF-8 is hardly ever valid by accident.
        name = ""
    if name and name not in _NO_CHARSETS and len(name) < 40:
        try:
            return data.decode(name)
        except (LookupError, UnicodeError, ValueError):
            pass
    try:
        return data.decode("utf-8")
    except UnicodeError:
        return data.decode("cp1252", "replace")


def _normalised(raw: bytes) -> bytes:
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\0", b"")


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
    name, value = "", bytearray()
    for line in data[start:blank].split(b"\n"):
        if line[:1] in (b" ", b"\t") and name:
            value += b" " + line.strip()
            continue
        _add_field(fields, name, value, caps)
        name, value = "", bytearray()
        match = _FIELD.match(line)
        if match is not None:
            name = match.group(1).decode("ascii").lower()
            value += line[match.end() :].strip()
    _add_field(fields, name, value, caps)
    return Headers(tuple(fields)), min(blank + 2, end)


def _add_field(fields: list[tuple[str, str]], name: str, value: bytearray, caps: Caps) -> None:
    if not name:
        return
    if len(fields) >= caps.header_fields:
        raise Unreadable("too_many_header_fields")
    fields.append((name, decoded(bytes(value[: caps.header_value]), None)))


def _typed(headers: Headers) -> Message:
    message: Message = Message()
    for name in ("content-type", "content-disposition"):
        value = headers.first(name)
        if value is not None:
            message[name] = value[:8_000]
    return message


def _structure(data: bytes, headers: Headers, body_at: int, caps: Caps) -> _Part:
    root = _Part(headers, _typed(headers).get_content_type(), body_at, len(data))
    waiting = [(root, 0)]
    count = 0
    while waiting:
        part, depth = waiting.pop()
        boundary = _boundary_or_none(part)
        if boundary is None:
            continue
        if depth >= caps.depth:
            raise Unreadable("nested_too_deep")
        for start, end in _pieces(data, boundary, part.start, part.end):
            count += 1
            if count > caps.parts:
                raise Unreadable("too_many_parts")
            inner, inner_body_at = _headers(data, caps, start, end)
            child = _Part(inner, _typed(inner).get_content_type(), inner_body_at, end)
            part.children.append(child)
            waiting.append((child, depth + 1))
    return root


def _boundary_or_none(part: _Part) -> bytes | None:
    if not part.media_type.startswith("multipart/"):
        return None
    boundary = _typed(part.headers).get_boundary()
    if not boundary or len(boundary) > 200:
        return None
    return b"--" + boundary.encode("utf-8", "surrogateescape")


def _pieces(data: bytes, delimiter: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The regions between the delimiter lines of one multipart."""
    piece_at: int | None = None
    position = start
    while True:
        if position == start and data.startswith(delimiter, start, end):
            found = start
        else:
            found = data.find(b"\n" + delimiter, max(position - 1, start), end)
            found = found + 1 if found >= 0 else -1
        if found < 0:
            break
        after = found + len(delimiter)
        line_end = data.find(b"\n", after, end)
        line_end = end if line_end < 0 else line_end
        rest = data[after : min(line_end, after + 80)].strip()
        if rest in (b"", b"--"):
            if piece_at is not None:
                yield piece_at, max(found - 1, piece_at)
            if rest == b"--":
                return
            piece_at = min(line_end + 1, end)
        position = max(after, line_end)
    if piece_at is not None:
        yield piece_at, end


def _collect(data: bytes, part: _Part, texts: list[str], notes: list[AttachmentNote], caps: Caps) -> None:
    """Put the texts of a part into ``texts`` and everything else into ``notes``. As deep as `Caps.depth`."""
    if part.media_type == "multipart/alternative" and part.children:
        _choose(data, part, texts, notes, caps)
    elif part.children:
        for child in part.children:
            _collect(data, child, texts, notes, caps)
    elif _is_text(part):
        texts.append(_text(data, part, caps))
    elif part.media_type not in {"application/pgp-signature", "application/pkcs7-signature"}:
        notes.append(_note(data, part, len(notes) + 1))


def _choose(data: bytes, part: _Part, texts: list[str], notes: list[AttachmentNote], caps: Caps) -> None:
    """Of several versions of the same text the plain one, else the one that has any."""
    versions: list[tuple[bool, list[str]]] = []
    for child in part.children:
        found: list[str] = []
        _collect(data, child, found, notes, caps)
        if any(text.strip() for text in found):
            versions.append((child.media_type == "text/plain", found))
    versions.sort(key=lambda version: not version[0])
    if versions:
        texts.extend(versions[0][1])


def _is_text(part: _Part) -> bool:
    if part.media_type.startswith("multipart/"):
        return True  # its boundary never appears, so it is just text with a wrong label
    disposition = (part.headers.first("content-disposition") or "").lstrip().lower()
    return part.media_type in {"text/plain", "text/html"} and not disposition.startswith("attachment")


def _text(data: bytes, part: _Part, caps: Caps) -> str:
    encoded = data[part.start : min(part.end, part.start + caps.text_bytes)]
    encoding = (part.headers.first("content-transfer-encoding") or "").strip().lower()
    charset = _typed(part.headers).get_param("charset")
    name = charset[2] if isinstance(charset, tuple) else charset
    text = decoded(_transferred(encoded, encoding), str(name) if name else None)
    return html_to_text(text) if part.media_type == "text/html" else _CONTROL.sub("", text)


def _transferred(encoded: bytes, encoding: str) -> bytes:
    if encoding == "quoted-printable":
        return quopri.decodestring(encoded)
    if encoding == "base64":
        clean = re.sub(rb"[^A-Za-z0-9+/]", b"", encoded)
        return binascii.a2b_base64(clean[: len(clean) - len(clean) % 4] + _last_quantum(clean))
    return encoded


def _last_quantum(clean: bytes) -> bytes:
    rest = clean[len(clean) - len(clean) % 4 :]
    return rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""


def _note(data: bytes, part: _Part, number: int) -> AttachmentNote:
    name = _typed(part.headers).get_filename("") or ""
    name = _BAD_IN_NAME.sub("_", decoded_header(str(name)[:1_000])).strip(" .")[:100]
    if not name:
        name = "forwarded mail" if part.media_type == "message/rfc822" else f"part {number}"
    size = part.end - part.start
    if (part.headers.first("content-transfer-encoding") or "").strip().lower() == "base64":
        size = size * 73 // 100
    return AttachmentNote(name, part.media_type[:100], size)


def _digest(headers: Headers, body: bytes) -> str:
    digest = hashlib.sha256()
    for name in ("date", "from", "to", "subject"):
        digest.update(repr(headers.all(name)).encode("utf-8", "surrogatepass"))
    digest.update(body.rstrip())
    return digest.hexdigest()
