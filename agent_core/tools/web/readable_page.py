"""Extracts readable text from a server's answer: bytes and their declared type in, text out. Pure, linear."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from agent_core.html_to_text import MAX_CHARS, read_web_page
from agent_core.tools.plain_text import text_in

_HTML = ("text/html", "application/xhtml+xml")
_TEXT = re.compile(
    r"(?:text/.{1,100}|application/(?:.{1,80}\+)?(?:json|xml|yaml)"
    r"|application/(?:x-)?(?:yaml|toml|javascript|ndjson|sh|httpd-php))"
)
PDF_TYPES = ("application/pdf", "application/x-pdf")
OFFICE_TYPES = ("application/vnd.openxmlformats-officedocument.", "application/vnd.oasis.opendocument.")
_UNKNOWN = ("", "application/octet-stream", "binary/octet-stream", "application/unknown", "unknown/unknown")
_CHARSET = re.compile(r"""charset\s{0,5}=\s{0,5}["']?([a-zA-Z0-9_:.-]{1,40})""", re.IGNORECASE)
# The codecs of old web pages. Python knows more, some of them neither linear nor of text.
_CODECS = re.compile(
    r"utf-(?:8|16|16-le|16-be)|ascii|iso8859-\d{1,2}|cp125\d|cp866|cp874|cp932|cp949|koi8-[ru]|mac-cyrillic"
    r"|gbk|gb2312|gb18030|big5|big5hkscs|shift_jis|euc_jp|euc_kr|iso2022_jp"
)


@dataclass(frozen=True, slots=True)
class Readable:
    """``hid_text``: text was left out that no reader sees. ``is_cut``: the content goes on."""

    title: str
    text: str
    hid_text: bool = False
    is_cut: bool = False


def is_pdf(content_type: str) -> bool:
    """Return True if the media type is that of a PDF document."""
    return _media_type(content_type) in PDF_TYPES


def may_be_document(content_type: str) -> bool:
    """Return True if a server calls it a PDF or office document, or does not name a type."""
    media_type = _media_type(content_type)
    return is_pdf(media_type) or media_type in _UNKNOWN or media_type.startswith(OFFICE_TYPES)


def check_type(content_type: str) -> None:
    """Raise ValueError, naming the type, for a content type that is not text."""
    media_type = _media_type(content_type)
    if media_type not in (*_HTML, *_UNKNOWN) and not _TEXT.fullmatch(media_type):
        raise ValueError(f"it is {_called(media_type)}, not text")


def read_content(content: bytes, content_type: str, *, address: str, is_cut: bool = False) -> Readable:
    """Return a content's readable text; ``is_cut``: it continues. Raises ValueError naming the kind."""
    check_type(content_type)
    media_type = _media_type(content_type)
    is_html = media_type in _HTML or (media_type in _UNKNOWN and _begins_like_html(content))
    text = _decoded(content, content_type, is_html=is_html, is_cut=is_cut)
    if text is None:
        what = "a PDF document" if content.startswith(b"%PDF-") else "not made of text"
        raise ValueError(f"it is {what}, whatever the server calls it" if media_type else f"it is {what}")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if is_html:
        page = read_web_page(text, address)
        return Readable(page.title, page.text, page.hid_text, is_cut or page.is_cut)
    return Readable("", text[:MAX_CHARS], is_cut=is_cut or len(text) > MAX_CHARS)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _called(media_type: str) -> str:
    if media_type == "application/pdf":
        return "a PDF document"
    kind = media_type.partition("/")[0]
    what = {"image": "a picture", "audio": "a sound", "video": "a video"}.get(kind, "a file")
    named = media_type[:80] if re.fullmatch(r"[a-z0-9.+/-]{1,80}", media_type[:80]) else "no known kind"
    return f"{what} ({named})"


def _begins_like_html(content: bytes) -> bool:
    begin = content[:512].lstrip().lower()
    return begin.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<!--"))


def _decoded(content: bytes, content_type: str, *, is_html: bool, is_cut: bool) -> str | None:
    named = _CHARSET.search(content_type)
    if named is None and is_html:
        named = _CHARSET.search(content[:2048].decode("ascii", "replace"))
    codec = codec_of(named[1]) if named else ""
    marked = content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
    # UTF-8 and what says nothing are looked at: servers that lie about that are common.
    if marked or codec in ("", "utf-8", "ascii"):
        return text_in(content, cut=is_cut)
    if b"\0" in content[:8192] and not codec.startswith("utf-16"):
        return None
    return content.decode(codec, "replace")


def codec_of(name: str) -> str:
    """Return Python's name of an encoding of pages; empty for any other."""
    try:
        found = codecs.lookup(name).name
    except LookupError:
        return ""
    if found == "iso8859-1":
        return "cp1252"  # as browsers take it
    return found if _CODECS.fullmatch(found) else ""
