"""
Prepares Markdown for people: safe HTML, readable plain text, parts of a bounded size, and sentences that can
be spoken. Pure and total. An answer may quote strangers, so HTML stays text, the result passes Matrix's
allow-list (`nh3`), and pictures become links, since viewing them would reveal the reader. Text that is too
long or too deep to convert is shown as written.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from channels.markup_rules import add_rules

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_BYTES = 256_000
"""Longer Markdown is not interpreted."""

_MAX_NESTING = 40

_TAGS = {
    *("a", "b", "blockquote", "br", "caption", "code", "del", "div", "em", "hr", "i", "li", "ol", "p", "pre"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "s", "span", "strong", "sub", "sup", "u", "ul"),
    *("table", "tbody", "td", "th", "thead", "tr", "details", "summary"),
}
_ATTRIBUTES = {
    "a": {"href"},
    "code": {"class"},
    "ol": {"start"},
    "div": {"data-mx-maths"},
    "span": {"data-mx-maths", "data-mx-spoiler"},
}
_SCHEMES = {"https", "http", "mailto", "matrix", "ftp", "magnet"}
_LANGUAGE = re.compile(r"language-[\w+#.\-]{1,40}")
_MANY_BREAKS = re.compile(r"\n{3,}")
_STEERING = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def to_html(markdown: str, *, max_bytes: int = MAX_BYTES) -> str:
    """
    Render Markdown (CommonMark with tables and strike-through; a line break stays one) as safe HTML.

    Text beyond ``max_bytes`` is escaped and shown unformatted.
    """
    source = remove_control_characters(markdown)
    tokens = tokens_of(source, max_bytes)
    if tokens is None:
        return f"<pre>{html.escape(source, quote=False)}</pre>"
    parser = _parser()
    return clean_html(str(parser.renderer.render(tokens, parser.options, {}))).strip()


def remove_control_characters(text: str) -> str:
    """Mark surrogates and NUL, which encoders reject; remove control characters except newlines and tabs."""
    return _STEERING.sub("", text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd"))


def clean_html(source: str) -> str:
    """Keep the harmless parts of some HTML."""
    import nh3  # noqa: PLC0415 - like the parser

    return nh3.clean(
        source,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        link_rel=None,
        attribute_filter=_attribute,
    )


def to_text(markdown: str, *, max_bytes: int = MAX_BYTES) -> str:
    """
    Render Markdown as plain text that reads well without a renderer.

    Code and tables stay as they were written, emphasis loses its marks, a link keeps its address.
    """
    source = remove_control_characters(markdown)
    tokens = tokens_of(source, max_bytes)
    if tokens is None:
        return source
    text = _TextWriter(source.splitlines()).write(tokens)
    trimmed = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    return _MANY_BREAKS.sub("\n\n", trimmed).strip("\n")


def tokens_of(source: str, max_bytes: int) -> list[Token] | None:
    """Parse a source without control characters; None where that costs too much or loses something."""
    brackets = source.count("[")
    if len(source.encode()) > max_bytes or brackets * len(source) > 200_000_000:
        return None
    try:
        tokens = _parser().parse(source)
    except RecursionError:
        return None
    if any(token.level >= _MAX_NESTING - 1 for token in tokens):
        return None
    return tokens


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    # 2.5 MB and 20 ms with nh3: for the first answer, not for the start.
    from markdown_it import MarkdownIt  # noqa: PLC0415

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": _MAX_NESTING})
    parser.enable(["table", "strikethrough"])
    add_rules(parser)
    parser.add_render_rule("image", _picture_as_link)
    return parser


def _picture_as_link(_self: Any, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    token = tokens[index]
    address = str(token.attrGet("src") or "")
    title = token.content or address
    return f'<a href="{html.escape(address)}">{html.escape(title, quote=False)}</a>'


def _attribute(tag: str, attribute: str, value: str) -> str | None:
    if tag == "code" and attribute == "class":
        return value if _LANGUAGE.fullmatch(value) else None
    return value


class _TextWriter:
    """Walks over block tokens; what is inside lists and quotes is indented by its prefix."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._out: list[str] = []
        self._prefixes: list[str] = []
        self._numbers: list[int | None] = []
        self._bullet = ""

    def write(self, tokens: Sequence[Token]) -> str:
        skip_until = -1
        for token in tokens:
            if skip_until >= 0:
                if token.type == "table_close" and token.level == skip_until:
                    skip_until = -1
                continue
            if token.type == "table_open":
                skip_until = token.level
            self._block(token)
        return "\n".join(self._out)

    def _block(self, token: Token) -> None:  # noqa: C901, PLR0912 - one case per kind of token
        match token.type:
            case "inline":
                self._lines_out(_inline_text(token.children or ()).split("\n"))
            case "fence" | "code_block":
                self._lines_out([f"    {line}" for line in token.content.rstrip("\n").split("\n")])
                self._blank()
            case "formula_block" | "details":
                self._lines_out(token.content.split("\n") if token.content else [])
                self._blank()
            case "table_open":
                start, end = token.map or (0, 0)
                self._lines_out([line.strip() for line in self._lines[start:end]])
                self._blank()
            case "hr":
                self._lines_out(["-" * 20])
                self._blank()
            case "bullet_list_open" | "ordered_list_open":
                start_at = token.attrGet("start")
                first = int(start_at) if start_at is not None else 1
                self._numbers.append(first if token.type.startswith("ordered") else None)
            case "list_item_open":
                self._open_item()
            case "blockquote_open":
                self._prefixes.append("> ")
            case "list_item_close":
                self._flush_bullet()
                self._prefixes.pop()
            case "blockquote_close":
                while self._out and self._out[-1] == "".join(self._prefixes).rstrip():
                    self._out.pop()
                self._prefixes.pop()
                self._blank()
            case "bullet_list_close" | "ordered_list_close":
                self._numbers.pop()
                if not self._numbers:
                    self._blank()
            case "paragraph_close" if not token.hidden:
                self._blank()
            case "heading_close":
                self._blank()
            case _:
                pass

    def _open_item(self) -> None:
        number = self._numbers[-1]
        if number is not None:
            self._numbers[-1] = number + 1
        bullet = "- " if number is None else f"{number}. "
        self._bullet = "".join(self._prefixes) + bullet
        self._prefixes.append(" " * len(bullet))

    def _flush_bullet(self) -> None:
        if self._bullet:
            self._out.append(self._bullet)
            self._bullet = ""

    def _lines_out(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._out.append((self._bullet or "".join(self._prefixes)) + line)
            self._bullet = ""

    def _blank(self) -> None:
        self._out.append("".join(prefix for prefix in self._prefixes if prefix.strip()).rstrip())


def _inline_text(tokens: Sequence[Token]) -> str:
    out: list[str] = []
    links: list[tuple[str, int]] = []
    for token in tokens:
        match token.type:
            case "text" | "code_inline" | "text_special" | "formula" | "spoiler" | "footnote":
                out.append(token.content)
            case "softbreak" | "hardbreak":
                out.append("\n")
            case "image":
                out.append(_linked(token.content, str(token.attrGet("src") or "")))
            case "link_open":
                links.append((str(token.attrGet("href") or ""), len(out)))
            case "link_close" if links:
                address, start = links.pop()
                title = "".join(out[start:])
                out[start:] = [_linked(title, address)]
            case _:
                pass
    return "".join(out)


def _linked(title: str, address: str) -> str:
    if not address or title in (address, address.removeprefix("mailto:")):
        return title or address
    return f"{title} ({address})" if title else address


REST = "The rest is in the text."
_LEAST_LOOKED_AT = 12_000
"""The most characters of an answer, or four times those read out: the event loop waits meanwhile."""
_ADDRESS = re.compile(
    r"\bhttps?://(?:[^\s/@]{0,200}@)?(?:www\.)?([^\s/:?#<>()]{1,253})[^\s<>]{0,2000}", re.IGNORECASE
)
_BLANKS = re.compile(r"\s+")
_PICTOGRAPHS = re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\ufe0f\u200d]+")
_SAYS_SOMETHING = re.compile(r"\w")
_ENDS = (".", "!", "?", ":", ";", "…", "。")


def spoken_text(markdown: str, *, max_chars: int) -> str:
    """Return the sentences to read out, within ``max_chars``; uninterpretable text is left out."""
    looked_at = max(_LEAST_LOOKED_AT, 4 * max_chars)
    tokens = tokens_of(remove_control_characters(markdown[:looked_at]), MAX_BYTES)
    said = _BLANKS.sub(" ", " ".join(_sentences(tokens or ()))).strip()
    if not _SAYS_SOMETHING.search(said):
        return ""
    whole = len(markdown) <= looked_at and len(said) <= max_chars
    return said if whole else _cut(said, max_chars)


def _sentences(tokens: Sequence[Token]) -> list[str]:
    """One text for each block that is read out."""
    found: list[str] = []
    table = -1
    for token in tokens:
        if token.type == "table_open" and table < 0:
            table = token.level
        elif token.type == "table_close" and token.level == table:
            table = -1
        elif token.type == "inline" and table < 0:
            text = _inline(token.children or ()).strip()
            if text and _SAYS_SOMETHING.search(text):
                found.append(text if text.endswith(_ENDS) else f"{text}.")
    return found


def _inline(tokens: Sequence[Token]) -> str:
    out: list[str] = []
    for token in tokens:
        match token.type:
            case "text" | "text_special" | "code_inline":
                out.append(token.content)
            case "softbreak" | "hardbreak":
                out.append(" ")
            case "image":
                out.append("")
            case _:
                pass
    # The text of an automatic link is its address.
    return _PICTOGRAPHS.sub(" ", _ADDRESS.sub(lambda found: found[1], "".join(out)))


def _cut(said: str, max_chars: int) -> str:
    """The beginning of it, up to the end of a sentence where there is one, and where the rest is."""
    room = max_chars - len(REST) - 3
    if room < 1:
        return said[:max_chars]
    if len(said) <= room:  # what was not looked at may have more
        return f"{said}{'' if said.endswith(_ENDS) else ' …'} {REST}"
    window = said[:room]
    at = max(window.rfind(f"{mark} ") for mark in _ENDS)
    if at < room // 2:
        at = max(window.rfind(" ") - 1, 0)
    begins = window[: at + 1].rstrip()
    return f"{begins}{'' if begins.endswith(_ENDS) else ' …'} {REST}"
