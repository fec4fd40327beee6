"""
Converts the HTML of a mail, a file or a page into readable text. Pure, one pass, linear in the size of the
input. Tags go and their text stays, blocks become lines, links keep their address. Invisible content
(scripts, ``hidden``, ``display:none``, zero font size) is dropped, so that nobody can hide sentences for the
model. Searches are bounded or not repeated after failing, hence linear.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urljoin

from agent_core.html_elements import OpenElements

MAX_CHARS = 2_000_000
_PIECE_CHARS = 32_768

_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9:-]{0,30}")
_HREF = re.compile(
    r"""\bhref\s{0,10}=\s{0,10}(?:"([^"]{0,2000})"|'([^']{0,2000})'|([^\s"'>]{1,2000}))""", re.IGNORECASE
)
_ALT = re.compile(
    r"""\balt\s{0,10}=\s{0,10}(?:"([^"]{0,2000})"|'([^']{0,2000})'|([^\s"'>]{1,2000}))""", re.IGNORECASE
)
_CID = re.compile(r"""\bsrc\s{0,10}=\s{0,10}["']?cid:([^"'\s>]{1,200})""", re.IGNORECASE)
_UP, _DOWN, _AS_IS = "\x01", "\x02", "\x03"
"""A quotation begins, and ends; a line keeps its indentation. What senders write of these is removed."""
_NO_MARKS = {1: None, 2: None, 3: None}
_DEEPEST_QUOTE = 5
_LONGEST_ALT = 200
_BLANKS = re.compile(r"[ \t\r\n\f\v\u00a0]+")
_INVISIBLE = re.compile(
    "(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f|(?<=[^\x00-\x7f])[\u200c\u200d])"
    "|[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u00ad\U000e0000-\U000e007f]"
)
"""With a group for what belongs to a flag, or joins letters and signs, and stays."""

_RAW = {"script", "style", "title", "textarea", "noscript", "template", "xmp"}
_END_OF_RAW = {name: re.compile(rf"</{name}\b", re.IGNORECASE) for name in _RAW}
_BLOCKS = {
    *("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div"),
    *("dl", "dt", "fieldset", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header"),
    *("hr", "html", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot"),
    *("thead", "tr", "ul"),
}
_PARAGRAPHS = {"p", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "pre"}
_HEADINGS = {f"h{depth}": "#" * depth for depth in range(1, 7)}
_ONLY_IN_PAGES = {"base", *_HEADINGS}
_STRUCK_OUT = {"s", "strike", "del"}
_START = re.compile(r"""\bstart\s{0,10}=\s{0,10}["']?(\d{1,6})""", re.IGNORECASE)
_MAX_TITLE = 300


@dataclass(frozen=True, slots=True)
class WebPage:
    """
    The visible text of a page, as Markdown. ``hid_text``: invisible text was left out; ``is_cut``: the page
    is longer than the part that was read.
    """

    title: str
    text: str
    hid_text: bool
    is_cut: bool


def read_web_page(source: str, address: str) -> WebPage:
    """Convert a page, resolving links against its ``address``. Total: any text is a page."""
    stripper = _Stripper(source[:MAX_CHARS], {}, address)
    text = stripper.text()
    return WebPage(stripper.title, text, stripper.hid_text, len(source) > MAX_CHARS)


def html_to_text(source: str, pictures: Mapping[str, str] = MappingProxyType({})) -> str:
    """
    Convert HTML. Total: any text gives some text. Quoted lines begin with ``> ``.

    ``pictures`` are the names of those that came with the mail, by Content-ID in lower case.
    """
    return _Stripper(source[:MAX_CHARS], pictures).text()


class _Stripper:
    def __init__(self, source: str, pictures: Mapping[str, str], address: str = "") -> None:
        self._source = source
        self._pictures = pictures
        self._is_page = bool(address)
        self._base = address
        self._has_base = False
        self._address_chars = 0
        self._preformatted = 0
        self.title = ""
        self.hid_text = False
        self._out: list[str] = []
        self._elements = OpenElements()
        self._shown = 0
        """The number of pieces of text and pictures so far that are visible."""
        self._links: list[tuple[str, int]] = []
        """For each open link where it leads to, and what was shown before it."""
        self._lists: list[int | None] = []
        """The number of the next item of each open list, None for those without numbers."""
        self._raised = False
        self._none_before = 0
        """Up to here it is known that no ``>`` comes, so nobody looks for it again."""

    def text(self) -> str:
        source, position = self._source, 0
        while position < len(source):
            start = source.find("<", position)
            if start < 0:
                self._put_text(source[position:])
                break
            self._put_text(source[position:start])
            position = self._markup(start)
        lines: list[str] = []
        for line in _quoted("".join(self._out)):
            if line or not lines or lines[-1]:  # of empty lines in a row one stays
                lines.append(line)
        return "\n".join(lines).strip()

    def _markup(self, start: int) -> int:
        """Handle what begins with ``<`` at ``start``; where to read on."""
        source = self._source
        if source.startswith("<!--", start):
            end = source.find("-->", start + 4)
            return len(source) if end < 0 else end + 3
        if source.startswith(("<!", "<?"), start):
            end = self._end_of_tag(start)
            return start + 2 if end < 0 else end + 1
        name = _NAME.match(source, start + 1)
        end = self._end_of_tag(start + 1) if name else -1
        if name is None or end < 0:
            if not self._elements.innermost.is_hidden:
                self._out.append("<")
            return start + 1
        tag = name.group(0).lower()
        attributes = source[name.end() : end]
        if tag in _RAW:
            closing = _END_OF_RAW[tag].search(source, end + 1)
            if tag == "title" and not self.title and closing is not None:
                title = html.unescape(source[end + 1 : min(closing.start(), end + 1 + 4 * _MAX_TITLE)])
                self.title = " ".join(_INVISIBLE.sub(r"\1", title).split())[:_MAX_TITLE]
            return len(source) if closing is None else closing.start()
        self._tag(tag, attributes)
        return end + 1

    def _end_of_tag(self, position: int) -> int:
        """The ``>`` that ends a tag; one inside quotes does not."""
        source = self._source
        limit = min(len(source), position + 8_192)
        end = source.find(">", max(position, self._none_before), limit)
        if end < 0:
            self._none_before = max(self._none_before, limit)
            return -1
        inner = source[position:end]
        if inner.count('"') % 2 == 0 and inner.count("'") % 2 == 0:
            return end
        # Most likely this one stood inside a quoted value: look behind its end, once.
        quote = '"' if inner.count('"') % 2 else "'"
        closing = source.find(quote, end, limit)
        behind = source.find(">", closing, limit) if closing >= 0 else -1
        return behind if behind >= 0 else end

    def _tag(self, tag: str, attributes: str) -> None:
        closing, tag = tag.startswith("/"), tag.removeprefix("/")
        ended = None
        if closing:
            ended = self._elements.close(tag)
        else:
            self._elements.open(tag, attributes)
        element = ended or self._elements.innermost
        if element.is_gone:
            return
        if tag == "br":
            self._out.append("\n")
        elif tag == "li":
            self._out.append("" if closing else f"\n{self._bullet()}")
        elif tag in {"td", "th"}:
            self._out.append("" if closing else " | " if self._is_page else " ")
        elif tag == "a":
            self._link(attributes, closing=closing)
        elif tag == "img":
            self._picture(attributes)
        elif self._is_page and tag in _ONLY_IN_PAGES:
            self._page_tag(tag, attributes, closing=closing)
        else:
            self._block(tag, attributes, closing=closing)

    def _bullet(self) -> str:
        """The mark of the next item of the innermost list."""
        number = self._lists[-1] if self._lists else None
        if number is None:
            return "- "
        self._lists[-1] = number + 1
        return f"{number}. "

    def _list(self, tag: str, attributes: str, *, closing: bool) -> None:
        if closing:
            del self._lists[-1:]
        elif len(self._lists) < 100:
            start = _START.search(attributes)
            self._lists.append((int(start[1]) if start else 1) if tag == "ol" else None)

    def _block(self, tag: str, attributes: str, *, closing: bool) -> None:
        if tag in {"ol", "ul"}:
            self._list(tag, attributes, closing=closing)
        elif tag in _STRUCK_OUT:
            self._out.append("" if self._elements.innermost.is_hidden else "~~")
        elif tag == "sup":
            self._raised = not closing
        elif tag == "pre":
            self._preformat(closing=closing)
            return
        if tag == "blockquote":
            self._out.append(f"\n{_DOWN if closing else _UP}\n")
        elif tag in _BLOCKS:
            self._out.append("\n\n" if tag in _PARAGRAPHS else "\n")

    def _page_tag(self, tag: str, attributes: str, *, closing: bool) -> None:
        if tag == "base":
            if not self._has_base:
                self._has_base, self._base = True, self._joined(_attribute(_HREF, attributes))
        else:
            self._out.append("\n\n" if closing else f"\n\n{_HEADINGS[tag]} ")

    def _preformat(self, *, closing: bool) -> None:
        begins = not closing and not self._preformatted
        ends = closing and self._preformatted == 1
        self._preformatted = max(0, self._preformatted + (-1 if closing else 1))
        fence = "```" if self._is_page else ""
        self._out.append(f"\n\n{fence}\n{_AS_IS}" if begins else f"\n{fence}\n\n" if ends else "")

    def _picture(self, attributes: str) -> None:
        """One that came with the mail is named; of one that would be fetched its text is read, in a mail."""
        found = _CID.search(attributes)
        self._shown += 1
        if found is not None:
            self._out.append(f" [picture: {self._pictures.get(found[1].lower(), found[1])}] ")
        elif not self._is_page and (text := " ".join(_attribute(_ALT, attributes).split())):
            self._put_text(f" [picture: {html.escape(text[:_LONGEST_ALT])}] ")

    def _link(self, attributes: str, *, closing: bool) -> None:
        if closing:
            target, shown = self._links.pop() if self._links else ("", 0)
            # Only as much of the text as may be the address itself: a link costs the same behind any text.
            before = "".join(piece[-2000:] for piece in self._out[-3:])
            if target and self._shown > shown and target.removeprefix("mailto:") not in before:
                self._out.append(f" ({target})")
            return
        target = _attribute(_HREF, attributes)
        if self._is_page and target:
            target = self._resolved(target)
        usable = target.strip().lower().startswith(("http://", "https://", "mailto:"))
        if len(self._links) < 100:
            hidden = self._elements.innermost.is_hidden
            self._links.append((_BLANKS.sub("", target) if usable else "", self._shown if hidden else -1))

    def _resolved(self, target: str) -> str:
        """Return the absolute address of a link, or "" if it leads to another part of the same page."""
        target = self._joined(target.strip()).partition("#")[0]
        self._address_chars += len(target)
        # A page of short links below one long address would become a hundred times as long.
        if target == self._base or self._address_chars > 1_000_000:
            return ""
        return target.replace("<", "%3C").replace(">", "%3E")

    def _joined(self, target: str) -> str:
        try:
            return urljoin(self._base, target)
        except ValueError:
            return ""

    def _put_text(self, text: str) -> None:
        if not text or self._elements.innermost.is_hidden:
            self.hid_text = self.hid_text or (bool(text) and not text.isspace())
            return
        self._shown += not text.isspace()
        # Piece by piece: other threads wait while a pattern is at work on one.
        start = 0
        while len(text) - start > _PIECE_CHARS:
            end = start + _PIECE_CHARS
            named = text.rfind("&", end - 40, end)  # what an entity begins with is not cut off from it
            end = end if named < 0 else named
            self._put_piece(text[start:end])
            start = end
        self._put_piece(text[start:])

    def _put_piece(self, text: str) -> None:
        if "&" in text:
            text = html.unescape(text)
        if not text.isascii():
            text = _INVISIBLE.sub(r"\1", text)
        if _UP in text or _DOWN in text or _AS_IS in text:
            text = text.translate(_NO_MARKS)
        if self._raised and text[:1] in "-+−0123456789":
            self._out.append("^")
        self._raised = False
        if self._preformatted:
            self._out.append(text.replace("\r", "").replace("\n", f"\n{_AS_IS}"))
            return
        self._out.append(_BLANKS.sub(" ", text) if len(text) > 1 else text.replace("\n", " "))


def _lines(text: str) -> Iterator[str]:
    """Yield the lines one by one."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _quoted(text: str) -> Iterator[str]:
    """The lines, those of quotations with their marks."""
    depth = 0
    for line in _lines(text):
        stripped = line.strip()
        if stripped in (_UP, _DOWN):
            depth = max(0, depth + (1 if stripped == _UP else -1))
            yield ""
        elif line.startswith(_AS_IS):
            yield "> " * min(depth, _DEEPEST_QUOTE) + line[1:].rstrip()
        else:
            yield "> " * min(depth, _DEEPEST_QUOTE) + stripped if stripped else ""


def _attribute(pattern: re.Pattern[str], attributes: str) -> str:
    found = pattern.search(attributes)
    return html.unescape(next((group for group in found.groups() if group), "")) if found else ""
