"""Extracts the text of a file, if it has any. Pure and linear: bytes in, text or None out."""

from __future__ import annotations

from agent_core.html_to_text import html_to_text
from agent_core.text import decode_text

_LOOKED_AT = 8192
_ODD_SHARE = 0.02
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def text_in(content: bytes, *, html: bool = False, cut: bool = False) -> str | None:
    """Return a file's text (visible text of ``html``), None if binary; ``cut``: it continues."""
    text = _decoded(content, cut=cut)
    if text is None:
        return None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return html_to_text(text) if html else text


def looks_like_html(media_type: str, name: str) -> bool:
    """Return True if a file's type or name says that it is a web page."""
    return media_type in ("text/html", "application/xhtml+xml") or name.lower().endswith((".html", ".htm"))


def _decoded(content: bytes, *, cut: bool) -> str | None:
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    if b"\0" in content[:_LOOKED_AT]:
        return None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if cut and error.start >= len(content) - 3:
            text = content[: error.start].decode("utf-8")
        else:
            text = decode_text(content)
    return text if _is_written(text[:_LOOKED_AT]) else None


def _is_written(text: str) -> bool:
    """Return True if a text has hardly any undecodable or control characters."""
    odd = sum(char == "\ufffd" or (char < " " and char not in "\t\n\r\f\x1b") for char in text)
    return odd <= len(text) * _ODD_SHARE
