"""
A raw mail → its text, and the names of what else is in it. Pure; call it in a worker thread.

Of several versions of a text the plain one is taken. Quoted history is put aside, attachments are named and
not read, a forwarded mail is an attachment: what is in it never becomes somebody's identity.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from channels.email.html_text import html_to_text
from channels.email.mime import (
    CONTROL,
    Caps,
    Headers,
    Part,
    decoded,
    decoded_header,
    normalised,
    parse_structure,
    transferred,
)
from channels.email.quoting import new_text

__all__ = ["AttachmentNote", "ParsedMail", "parse_mail"]

_BAD_IN_NAME = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|\u202a-\u202e\u2066-\u2069]')


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

    ``text`` is the new part of it, ``full_text`` all. ``digest`` identifies the mail by what its author
    wrote, whatever servers have put on top: for mails without a usable Message-ID.
    """

    headers: Headers
    text: str
    full_text: str
    attachments: tuple[AttachmentNote, ...]
    digest: str


def parse_mail(raw: bytes, caps: Caps | None = None) -> ParsedMail:
    """
    All of a mail.

    Raises:
        Unreadable: It is beyond the caps.
    """
    caps = caps or Caps()
    data = normalised(raw)
    root = parse_structure(data, caps)
    texts: list[str] = []
    notes: list[AttachmentNote] = []
    _collect(data, root, texts, notes, _Room(caps.text_bytes))
    full = "\n\n".join(text for text in texts[: caps.texts] if text.strip()).strip()
    digest = _digest(root.headers, data[root.start :])
    return ParsedMail(root.headers, new_text(full), full, tuple(notes), digest)


@dataclass(slots=True)
class _Room:
    """How many bytes of text are still read."""

    left: int


def _collect(data: bytes, part: Part, texts: list[str], notes: list[AttachmentNote], room: _Room) -> None:
    """Put the texts of a part into ``texts`` and everything else into ``notes``. As deep as `Caps.depth`."""
    if part.media_type == "multipart/alternative" and part.children:
        _choose(data, part, texts, notes, room)
    elif part.children:
        for child in part.children:
            _collect(data, child, texts, notes, room)
    elif _is_text(part):
        texts.append(_text(data, part, room))
    elif part.media_type not in {"application/pgp-signature", "application/pkcs7-signature"}:
        notes.append(_note(part, len(notes) + 1))


def _choose(data: bytes, part: Part, texts: list[str], notes: list[AttachmentNote], room: _Room) -> None:
    """Of several versions of the same text the plain one, else the one that has any."""
    chosen: list[str] = []
    for child in sorted(part.children, key=lambda child: child.media_type != "text/plain"):
        found: list[str] = []
        _collect(data, child, found, notes, room)
        if not chosen and any(text.strip() for text in found):
            chosen = found
    texts.extend(chosen)


def _is_text(part: Part) -> bool:
    if part.media_type.startswith("multipart/"):
        return True  # its boundary never appears, so it is just text with a wrong label
    disposition = (part.headers.first("content-disposition") or "").lstrip().lower()
    return part.media_type in {"text/plain", "text/html"} and not disposition.startswith("attachment")


def _text(data: bytes, part: Part, room: _Room) -> str:
    encoded = data[part.start : min(part.end, part.start + room.left)]
    room.left -= len(encoded)
    encoding = (part.headers.first("content-transfer-encoding") or "").strip().lower()
    charset = part.headers.typed().get_param("charset")
    name = charset[2] if isinstance(charset, tuple) else charset
    text = decoded(transferred(encoded, encoding), str(name) if name else None)
    return html_to_text(text) if part.media_type == "text/html" else CONTROL.sub("", text)


def _note(part: Part, number: int) -> AttachmentNote:
    name = part.headers.typed().get_filename("") or ""
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
