"""
Parses a raw mail into its text and its other parts. Pure; call it in a worker thread. Of several versions of
a text the plain one is taken. What anybody may have written below the new text is put aside. Everything that
is no text, or is a text with the name of a file, is an attachment, decoded when it is asked for and never
opened. A mail inside of a mail (``message/rfc822``, or ``….eml``) is an attachment too, as are its files, and
besides somebody else's words: what is in it never becomes somebody's identity, nor what the sender says.
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from agent_core.html_to_text import html_to_text
from channels.email.parse.icalendar import in_words, note_of_reply
from channels.email.parse.mime import (
    CONTROL,
    Caps,
    Headers,
    MimePart,
    Unreadable,
    decode_text,
    decoded_header,
    normalise_lines,
    parse_structure,
)
from channels.email.parse.opaque import ENCRYPTED, content_of
from channels.email.parse.reply_stripping import split_quotes
from channels.email.parse.transfer_encoding import decode_pieces, decode_transfer, unflow

MAX_FORWARDED = 3
_MAX_NAME = 100
MAX_REST = 20_000
_BAD_IN_NAME = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|\u202a-\u202e\u2066-\u2069]')
_SIGNATURES = frozenset(
    {"application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature"}
)
_OPAQUE = frozenset({"application/pkcs7-mime", "application/x-pkcs7-mime"})
_CID = re.compile(r"\[cid:([^\]\s]{1,200})\]", re.IGNORECASE)
_REACTION = "text/vnd.google.email-reaction+json"
_DATA = "calendar", "csv", "directory", "rfc822-headers", "vcard", "x-vcard", _REACTION.partition("/")[2]
"""Subtypes of text that nobody reads as such."""
_WORD = re.compile(r"\w+")
_types = mimetypes.MimeTypes()


@dataclass(frozen=True, slots=True)
class AttachmentNote:
    """A part of the mail that is not its text; ``size_bytes`` is estimated until decoded."""

    name: str
    media_type: str
    size_bytes: int
    content_id: str = ""
    encoded: memoryview = field(default=memoryview(b""), repr=False, compare=False)
    encoding: str = field(default="", repr=False, compare=False)

    def chunks(self) -> Iterator[bytes]:
        """The content, decoded as well as possible, in pieces of about a megabyte. Total."""
        for piece in decode_pieces(self.encoded, self.encoding):
            # Mails are exchanged with the line ends of mail; outside of base64 the reader has made them one.
            is_mail = self.media_type == "message/rfc822" and self.encoding != "base64"
            yield piece.replace(b"\n", b"\r\n") if is_mail else piece


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A mail inside the mail. ``sender`` is only what it claims."""

    sender: str
    subject: str
    date: str
    text: str


@dataclass(frozen=True, slots=True)
class ParsedMail:
    """
    The content of a mail.

    ``text`` is the new part of ``whole``, ``rest`` what others may have written below; ``forwards``: the text
    is about that; ``is_mixed``: several parts were joined; ``two_versions``: plain text and HTML differ;
    ``wants_no_answer``: a ``reaction`` (its sign), or a reply to an invitation without a note; ``has_note``:
    one with a note. ``digest`` covers what the author wrote, without servers' fields, for mails without a
    usable Message-ID.
    """

    headers: Headers
    text: str
    attachments: tuple[AttachmentNote, ...]
    digest: str
    rest: str = ""
    forwards: bool = False
    forwarded: tuple[Forwarded, ...] = ()
    events: tuple[str, ...] = ()
    two_versions: bool = False
    whole: str = field(default="", repr=False)
    is_mixed: bool = False
    wants_no_answer: bool = False
    has_note: bool = False
    reaction: str = ""

    def without(self, sent: Sequence[str]) -> ParsedMail:
        """The mail without what we have sent in the one that it answers, given in each of its forms."""
        found = split_quotes(self.whole, sent)
        return replace(self, text=found.new, rest=found.rest[:MAX_REST], forwards=found.forwarded)


def parse_mail(raw: bytes, caps: Caps | None = None) -> ParsedMail:
    """Parse a whole mail. Raises `Unreadable`: it is beyond the caps, or encrypted."""
    caps = caps or Caps()
    data = normalise_lines(raw)
    root = parse_structure(data, caps)
    reading = _Reading(data, caps.text_bytes, _pictures(root))
    reading.collect(root)
    texts = [text for text in reading.texts[: caps.texts] if text.strip()]
    named = [] if texts else reading.named[:1]
    has_note = any(reading.notes_in_replies)
    mail = ParsedMail(
        root.headers,
        "",
        tuple(reading.notes),
        _digest(root.headers, data[root.start :]),
        forwarded=tuple(reading.forwarded),
        events=tuple(dict.fromkeys(reading.events)),
        two_versions=reading.two_versions,
        whole="\n\n".join([*texts, *named]).strip(),
        is_mixed=len(texts) > 1 or bool(named),
        wants_no_answer=(bool(reading.notes_in_replies) and not has_note) or bool(reading.reaction),
        has_note=has_note,
        reaction=reading.reaction,
    )
    if mail.whole.startswith("-----BEGIN PGP MESSAGE-----"):
        raise Unreadable(ENCRYPTED)
    return mail.without(())


class _Reading:
    """Walks through the parts of one mail; ``left`` is how many bytes of text are still read."""

    def __init__(self, data: bytes, left: int, pictures: dict[str, str], depth: int = 0) -> None:
        self._data = data
        self._left = left
        self._pictures = pictures
        self._depth = depth
        self.texts: list[str] = []
        self.named: list[str] = []
        """The first text that is a file with a name."""
        self.notes: list[AttachmentNote] = []
        self.forwarded: list[Forwarded] = []
        self.events: list[str] = []
        self.two_versions = False
        self.calendars: dict[str, int] = {}
        """The number of the note of each calendar, by its text; Google and others send it twice."""
        self.notes_in_replies: list[str] = []
        self.reaction = ""

    def collect(self, part: MimePart) -> None:
        """Sort a part into texts and everything else. As deep as `Caps.depth`."""
        if part.media_type == "multipart/alternative" and part.children:
            self._choose(part)
        elif part.media_type == "multipart/encrypted":
            raise Unreadable(ENCRYPTED)
        elif part.children:
            for child in part.children:
                self.collect(child)
        elif part.media_type in _OPAQUE and self._depth < 2:
            self._unpack(part)
        elif _is_text(part) and not _name(part):
            self.texts.append(self._text(part))
        elif part.media_type == _REACTION and (sign := _sign(self._text(part))):
            self.reaction = sign
        elif part.media_type not in _SIGNATURES:
            self._attach(part)

    def _unpack(self, part: MimePart) -> None:
        """Read what is signed inside of an opaque S/MIME part; one of certificates alone is a file."""
        content = content_of(decode_transfer(self._data[part.start : part.end], _encoding(part)))
        if content is None:
            self._attach(part)
            return
        outer = self._data, self._pictures
        self._data = normalise_lines(content)
        root = parse_structure(self._data, Caps())
        self._pictures, self._depth = _pictures(root), self._depth + 1
        self.collect(root)
        (self._data, self._pictures), self._depth = outer, self._depth - 1

    def _choose(self, part: MimePart) -> None:
        """Take the plain one of several versions of a text, else the first that has words."""
        chosen: list[str] = []
        kept, others = self.texts, list[str]()
        for child in sorted(part.children, key=_preference):
            if chosen and _preference(child) == 2:  # such as AMP's, whose markup says nothing more
                continue
            self.texts = []
            self.collect(child)
            if any(map(_WORD.search, self.texts)):
                if not chosen:
                    chosen = self.texts
                else:
                    others += self.texts
        self.texts = [*kept, *chosen]
        if _differ("\n".join(chosen), "\n".join(others)):
            self.two_versions = True
            self.texts += others

    def _text(self, part: MimePart) -> str:
        typed = part.headers.content_fields()
        encoded = self._data[part.start : min(part.end, part.start + self._left)]
        self._left -= len(encoded)
        charset = typed.get_param("charset")
        name = charset[2] if isinstance(charset, tuple) else charset
        text = decode_text(decode_transfer(encoded, _encoding(part)), str(name) if name else None)
        if part.media_type == "text/html":
            return html_to_text(CONTROL.sub("", text), self._pictures)
        text = CONTROL.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        if str(typed.get_param("format") or "").lower() == "flowed":
            text = unflow(text, delsp=str(typed.get_param("delsp") or "").lower() == "yes")
        return _CID.sub(lambda found: f"[picture: {self._pictures.get(found[1].lower(), found[1])}]", text)

    def _attach(self, part: MimePart) -> None:
        if _is_text(part) and not self.named:
            self.named.append(self._text(part))
        if part.media_type in ("text/calendar", "application/ics") and self._is_known(part):
            return
        self.notes.append(_note(self._data, part, len(self.notes) + 1))
        if part.media_type == "message/rfc822" or self.notes[-1].name.lower().endswith(".eml"):
            self._read_inner(part)

    def _is_known(self, part: MimePart) -> bool:
        """Read a calendar; True if the same one has been attached before, which takes its name."""
        event = self._text(part)
        before = self.calendars.setdefault(" ".join(event.split()), len(self.notes))
        if before < len(self.notes):
            self.notes[before] = replace(self.notes[before], name=_name(part) or self.notes[before].name)
            return True
        if (note := note_of_reply(event)) is not None:
            self.notes_in_replies.append(note)
        told = in_words(event)
        self.events += [told] if told else []
        return False

    def _read_inner(self, part: MimePart) -> None:
        """Read a forwarded mail, at most two levels deep; its files are files of this mail, too."""
        if self._depth >= 2 or len(self.forwarded) >= MAX_FORWARDED:
            return
        data = decode_transfer(self._data[part.start : part.end], _encoding(part))
        try:
            root = parse_structure(normalise_lines(data), Caps())
        except Unreadable:
            return
        inner = _Reading(normalise_lines(data), self._left, _pictures(root), self._depth + 1)
        inner.collect(root)
        self._left = inner._left
        self.notes += inner.notes
        text = "\n\n".join(text for text in (*inner.texts, *inner.events) if text.strip()).strip()
        sender = decoded_header((root.headers.first("from") or "")[:1_000])
        date = decoded_header((root.headers.first("date") or "")[:100])
        told = Forwarded(" ".join(sender.split())[:300], root.headers.subject(), date, text[:MAX_REST])
        self.forwarded += [told, *inner.forwarded][: MAX_FORWARDED - len(self.forwarded)]


def _is_text(part: MimePart) -> bool:
    if part.media_type.startswith("multipart/"):
        return True  # its boundary never appears, so it is just text with a wrong label
    disposition = (part.headers.first("content-disposition") or "").lstrip().lower()
    # RFC 2046, 4.1.4: what is not known of text is read as plain text.
    kind, _, subtype = part.media_type.partition("/")
    return kind == "text" and subtype not in _DATA and not disposition.startswith("attachment")


def _preference(part: MimePart) -> int:
    """The place of a version of a text: plain text, the others, and last those of a subtype nobody knows."""
    if part.media_type.startswith("multipart/") or part.media_type == "text/html" or not _is_text(part):
        return 1
    return 0 if part.media_type == "text/plain" else 2


def _sign(text: str) -> str:
    """Return the sign of a reaction; empty if the part is none, and the mail one like any other."""
    try:
        found = json.loads(text[:1_000])
    except (ValueError, RecursionError):
        return ""
    sign = found.get("emoji") if isinstance(found, dict) and found.get("version") == 1 else None
    return sign.strip()[:100] if isinstance(sign, str) else ""


def _encoding(part: MimePart) -> str:
    return (part.headers.first("content-transfer-encoding") or "").strip().lower()


def _differ(plain: str, other: str) -> bool:
    """Return True if two versions of a text share few words: one of them is not what people see."""
    one, two = (set(_WORD.findall(text[:100_000].lower())[:5_000]) for text in (plain, other))
    if not one or not two or max(len(one), len(two)) < 5:
        return False
    # The HTML has more around it (menus, footers), so only what the smaller one says counts.
    return len(one & two) / min(len(one), len(two)) < 0.4


def _pictures(root: MimePart) -> dict[str, str]:
    """The names of parts by the Content-ID under which the HTML shows them."""
    found: dict[str, str] = {}
    waiting = [root]
    while waiting:
        part = waiting.pop()
        waiting += part.children
        content_id = _content_id(part)
        if content_id:
            found[content_id] = _name(part) or "without a name"
    return found


def _content_id(part: MimePart) -> str:
    return (part.headers.first("content-id") or "").strip().strip("<>").lower()[:200]


def _name(part: MimePart) -> str:
    try:
        name = part.headers.content_fields().get_filename("") or ""
    except (ValueError, LookupError):  # a name in a charset that nobody knows
        name = ""
    name = _BAD_IN_NAME.sub("_", decoded_header(str(name)[:1_000])).strip(" .")
    ending = PurePath(name).suffix[-_MAX_NAME:]
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - len(ending)] + ending


def _note(data: bytes, part: MimePart, number: int) -> AttachmentNote:
    name = _name(part)
    if not name and part.media_type == "message/rfc822":
        name = "forwarded mail.eml"
    elif not name:
        ending = (
            ".ics" if part.media_type == "text/calendar" else _types.guess_extension(part.media_type) or ""
        )
        name = f"part {number}{ending}"
    size, encoding = part.end - part.start, _encoding(part)
    if encoding == "base64":
        size = size * 73 // 100
    return AttachmentNote(
        name,
        CONTROL.sub("", part.media_type)[:100],
        size,
        _content_id(part),
        memoryview(data)[part.start : part.end],
        encoding,
    )


def _digest(headers: Headers, body: bytes) -> str:
    digest = hashlib.sha256()
    for name in ("date", "from", "to", "subject"):
        digest.update(repr(headers.all(name)).encode("utf-8", "surrogatepass"))
    digest.update(body.rstrip())
    return digest.hexdigest()
