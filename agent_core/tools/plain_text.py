"""The text in a file, where there is any. Pure: bytes in, text or None out."""

from __future__ import annotations

import re
from html.parser import HTMLParser

__all__ = ["looks_like_html", "text_in"]

_LOOKED_AT = 8192
_MAX_PAGE_CHARS = 500_000
"""Parsing a hostile page can take time that grows with its square."""
_ODD_SHARE = 0.02
_HIDDEN = frozenset({"script", "style", "template", "head", "noscript", "svg"})
_BREAKS = frozenset(
    {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "table", "section", "article", "pre"}
)
_MANY_BREAKS = re.compile(r"[ \t]*\n[ \t]*(?:\n[ \t]*)+")
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def text_in(content: bytes, *, html: bool = False, cut: bool = False) -> str | None:
    """
    The text of a file, None if it is not made of text.

    Args:
        content: The file.
        html: It is a web page: its visible text.
        cut: The file goes on after ``content``, so a character may be missing its end.
    """
    text = _decoded(content, cut=cut)
    if text is None:
        return None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _visible(text[:_MAX_PAGE_CHARS]) if html else text


def looks_like_html(media_type: str, name: str) -> bool:
    """Whether a file is called a web page."""
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
            text = content.decode("utf-8", "replace")
            if 2 * text.count("\ufffd") > len(text) - len(text.encode("ascii", "ignore")):
                # What old programs of the West write; every byte is some character in it.
                text = content.decode("cp1252", "replace")
    return text if _is_written(text[:_LOOKED_AT]) else None


def _is_written(text: str) -> bool:
    """Whether hardly a character is one that nobody writes."""
    odd = sum(char == "\ufffd" or (char < " " and char not in "\t\n\r\f\x1b") for char in text)
    return odd <= len(text) * _ODD_SHARE


class _Visible(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":  # whatever was left open before it
            self._hidden = 0
        elif tag in _HIDDEN:
            self._hidden += 1
        elif tag in _BREAKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in _BREAKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def _visible(page: str) -> str:
    parser = _Visible()
    parser.feed(page)
    parser.close()
    return _MANY_BREAKS.sub("\n\n", "".join(parser.parts)).strip()
