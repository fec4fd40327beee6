"""
Follows which elements of an HTML text are open, and whether text in them is shown. Pure, linear. The rules
are those of the HTML standard, sections 13.1.2.4 (omitted end tags) and 13.2.6 (tree construction), as far as
they decide what is visible. ``display: none``, ``opacity: 0`` and a clipped height of nothing hide all that
is inside; ``visibility`` and a font size of nothing hide until an element inside sets them again (every mail
made with MJML does).
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

_STYLE = re.compile(
    r"""\bstyle\s{0,10}=\s{0,10}(?:"([^"]{0,4000})"|'([^']{0,4000})'|([^\s"'>]{1,4000}))""", re.IGNORECASE
)
_HIDDEN_ATTRIBUTE = re.compile(r"""(?:\A|\s)hidden(?=[\s=/]|\Z)""", re.IGNORECASE)
_SIZE = re.compile(r"\bsize\s{0,10}=", re.IGNORECASE)
_ZERO = re.compile(r"[+-]?(?:0{1,9}(?:\.0{0,9})?|\.0{1,9})(?:[a-z]{1,4}|%)?")
_RELATIVE = re.compile(r"[\d.]{1,20}(?:em|ex|ch|lh|%)|larger|smaller|inherit|unset")

VOID = frozenset(
    {
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link"),
        *("meta", "param", "source", "track", "wbr"),
    }
)
_CLOSES_P = frozenset(
    {
        *("address", "article", "aside", "blockquote", "center", "details", "dialog", "dir", "div", "dl"),
        *("fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6"),
        *("header", "hgroup", "hr", "main", "menu", "nav", "ol", "p", "pre", "search", "section", "table"),
        *("ul", "li", "dd", "dt", "summary", "listing", "plaintext"),
    }
)
_ITEMS = frozenset({"li", "dd", "dt"})
_LISTS = frozenset({"ul", "ol", "dl", "menu", "dir"})
_CELLS = frozenset({"td", "th", "caption"})
_SECTIONS = frozenset({"tbody", "thead", "tfoot"})
_MAY_STAND_IN = {
    "tr": _SECTIONS | {"table"},
    **dict.fromkeys(_CELLS, _SECTIONS | {"table", "tr"}),
    **dict.fromkeys(_SECTIONS, frozenset({"table"})),
}
"""For each part of a table: what it may stand in; whatever else is open in the table ends before it."""
_WALLS = _CELLS | {"table"}
"""Elements beyond which an end tag inside of them does not reach."""
_SPECIAL = _CLOSES_P | _WALLS | _MAY_STAND_IN.keys() | {"body", "html", "button", "object", "marquee"}
"""Elements beyond which the end tag of an inline element does not reach."""
_FORMATTING = frozenset(
    {"a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"}
)


@dataclass(slots=True)
class Element:
    """
    An open element. ``is_gone`` hides for good, ``is_invisible`` and ``is_tiny`` until set again.

    ``names`` counts the open special elements up to the next wall, or others up to the next special one.
    ``items`` are the open items of a list.
    """

    tag: str
    is_gone: bool = False
    is_invisible: bool = False
    is_tiny: bool = False
    names: dict[str, int] = field(default_factory=dict)
    items: int = 0

    @property
    def is_hidden(self) -> bool:
        """Return True if text in it is not shown."""
        return self.is_gone or self.is_invisible or self.is_tiny


class OpenElements:
    """The open elements, the innermost last."""

    def __init__(self) -> None:
        root = Element("")
        self._open, self._walls, self._specials, self._lists = [root], [root], [root], [root]
        self._goes_on: Element | None = None

    @property
    def innermost(self) -> Element:
        """The innermost open element, with an empty tag if there is none."""
        return self._open[-1]

    def open(self, tag: str, attributes: str) -> None:
        """Note a start tag; ``attributes`` is the text behind its name."""
        if (parents := _MAY_STAND_IN.get(tag)) is not None:
            if len(self._walls) == 1:
                return  # outside of a table such a tag means nothing
            while self._open[-1].tag not in parents:
                self._pop()
        elif tag in _ITEMS and self._lists[-1].items:
            self._pop_to(_ITEMS)
        elif tag in _CLOSES_P and self._walls[-1].names.get("p"):
            self._pop_to({"p"})
        if tag not in VOID and len(self._open) < 10_000:
            self._push(_styled(tag, attributes, self._open[-1]))
            self._go_on()

    def close(self, tag: str) -> Element | None:
        """Note an end tag; returns the element that it ends, None if that is not open."""
        if tag in _MAY_STAND_IN or tag == "table":
            is_open = self._is_open_in_table(tag)
        else:
            is_open = self._place_of(tag).names.get(tag, 0) > 0
        if not is_open:
            return None
        ended = self._pop_to({tag})
        self._go_on()
        return ended

    def _is_open_in_table(self, tag: str) -> bool:
        for wall in reversed(self._walls[-2:]):  # a cell, and its table
            if wall.tag == tag or wall.names.get(tag):
                return True
            if wall.tag == "table":
                break
        return False

    def _place_of(self, tag: str) -> Element:
        return self._walls[-1] if tag in _SPECIAL else self._specials[-1]

    def _push(self, element: Element) -> None:
        tag = element.tag
        names = self._place_of(tag).names
        names[tag] = names.get(tag, 0) + 1
        self._lists[-1].items += tag in _ITEMS
        self._open.append(element)
        if tag in _WALLS:
            self._walls.append(element)
        if tag in _SPECIAL:
            self._specials.append(element)
        if tag in _WALLS or tag in _LISTS:
            self._lists.append(element)

    def _pop(self) -> Element:
        element = self._open.pop()
        for places in (self._walls, self._specials, self._lists):
            if places[-1] is element:
                places.pop()
        self._lists[-1].items -= element.tag in _ITEMS
        self._place_of(element.tag).names[element.tag] -= 1
        return element

    def _pop_to(self, tags: Collection[str]) -> Element:
        """End the innermost element with one of these names, and what is open in it."""
        hiding: Element | None = None
        while (element := self._pop()).tag not in tags:
            if element.tag in _FORMATTING and element.is_hidden:
                hiding = element
        if element.tag not in _WALLS and not element.is_hidden:
            self._goes_on = hiding
        return element

    def _go_on(self) -> None:
        """Continue the formatting that a paragraph began behind it; it hides there too."""
        if self._goes_on is not None:
            self._push(replace(self._goes_on, names={}, items=0))
            self._goes_on = None


def _styled(tag: str, attributes: str, around: Element) -> Element:
    """The element that a start tag opens, hidden as its own style and the element around it say."""
    element = Element(tag, around.is_gone, around.is_invisible, around.is_tiny)
    if not attributes or element.is_gone:
        return element
    found = _STYLE.search(attributes)
    style = _declarations(next(filter(None, found.groups()), "")) if found else {}
    if found is not None:
        attributes = f"{attributes[: found.start()]} {attributes[found.end() :]}"
    display, opacity = style.get("display", ""), style.get("opacity", "")
    clips = any(style.get(name) in ("hidden", "clip") for name in ("overflow", "overflow-y"))
    is_flat = any(_ZERO.fullmatch(style.get(name, "")) for name in ("height", "max-height"))
    by_attribute = not display and _HIDDEN_ATTRIBUTE.search(attributes) is not None
    element.is_gone = (
        display == "none" or by_attribute or bool(_ZERO.fullmatch(opacity)) or (clips and is_flat)
    )
    if visibility := style.get("visibility"):
        element.is_invisible = visibility in ("hidden", "collapse")
    for name, value in style.items():
        if name in ("font", "font-size"):
            element.is_tiny = _is_tiny(value, element.is_tiny)
    if tag == "font" and _SIZE.search(attributes):
        element.is_tiny = False
    return element


def _is_tiny(value: str, before: bool) -> bool:  # noqa: FBT001 - what it is without the value
    """Say if a font size, or a font, is nothing; one that depends on that around it stays ``before``."""
    words = value.replace("/", " / ").split()
    if any(map(_ZERO.fullmatch, words)):
        return True
    return before and any(map(_RELATIVE.fullmatch, words))


def _declarations(style: str) -> dict[str, str]:
    """The declarations of a style in lower case, in the order in which they count."""
    found: dict[str, str] = {}
    important: set[str] = set()
    for declaration in html.unescape(style).lower().split(";"):
        name, _, value = declaration.partition(":")
        value, mark, _ = value[:200].partition("!")
        name = name.strip()
        if mark or name not in important:
            found.pop(name, None)
            found[name] = value.strip()
        if mark:
            important.add(name)
    return found
