"""
Reads what a watch looks at into items that can be compared: entries of a feed, else lines of a document.

RSS, RDF and Atom are read by the expat of the standard library, which bounds the growth of entities; entity
declarations are refused, unknown entities of HTML are read as there. Pure and linear.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from xml.parsers import expat

from agent_core.html_to_text import read_web_page
from agent_core.language import _, ngettext
from agent_core.text import field_at, one_line
from agent_core.tools.web.readable_page import codec_of, read_content

MAX_ITEMS = 2_000
MAX_SHOWN, _SHOWN_CHARS = 10, 300
_DECLARED = re.compile(rb"""<\?xml\s[^>]{0,100}?encoding\s{0,5}=\s{0,5}["']([\w.:-]{1,40})""")
_ROOTS = ("rss", "RDF", "feed")
_ENTRIES = ("item", "entry")
_FIELDS = ("title", "link", "guid", "id", "description", "summary")


@dataclass(frozen=True, slots=True)
class Content:
    """
    The present items by their key, in order; of a feed, old ones may be gone already.

    ``tells_loss``: that some are gone is news as well.
    """

    items: dict[str, str]
    is_feed: bool = False
    tells_loss: bool = True


def read_items(
    body: bytes, content_type: str, *, address: str, part: str = "", grows: bool = False
) -> Content:
    """
    Return the content of a feed, a page or a JSON document.

    ``part`` is a field of JSON (names and numbers with dots between), or words: of a page the lines, of a
    feed the entries with them. ``grows``: it may begin empty, and what is new stands at its end. Raises
    ValueError, which says why nothing can be compared.
    """
    lines: list[str] = []
    entries = _feed_of(body)
    if entries is None and (data := _json_of(body, content_type)) is not None:
        entries, lines = _json_parts(data, part)
    elif entries is None:
        lines = read_content(body, content_type, address=address).text.split("\n")
        lines = [line for line in lines if part.casefold() in line.casefold()]
    if entries is not None:
        told = [(each.key, each.text) for each in entries]
        wanted = {_key(key): text for key, text in told if part.casefold() in text.casefold()}
        return Content(wanted, is_feed=True)
    said = [line for each in lines if (line := " ".join(each.split()))]
    if not said and not grows:
        raise ValueError(f"there is nothing with {part!r} in it" if part else "there is no text in it")
    kept = said[-MAX_ITEMS:] if grows else said[:MAX_ITEMS]
    return Content({_key(line): one_line(line, _SHOWN_CHARS) for line in kept})


def news_of(content: Content, seen: Collection[str]) -> str:
    """Return what is there now and was not ``seen``, as text for people; empty if there is nothing new."""
    new = [text for key, text in content.items.items() if key not in seen]
    gone = 0 if content.is_feed or not content.tells_loss else len(set(seen) - set(content.items))
    if gone and not new:
        return ngettext("A line is gone.", "{n} lines are gone.", gone)
    return list_news(new, len(new))


def list_news(new: Sequence[str], count: int) -> str:
    """Return the first of ``count`` new things as text for people; empty if there is none."""
    lines = [f"- {text}" for text in new[:MAX_SHOWN]]
    if count > len(lines):
        lines.append(_("and {n} more", n=count - len(lines)))
    return "\n".join(lines)


def keys_to_keep(content: Content, seen: Sequence[str]) -> list[str]:
    """Return the keys that count as seen from now on: of a feed also earlier ones, which may come back."""
    now = list(content.items)
    return list(dict.fromkeys([*now, *seen]))[:MAX_ITEMS] if content.is_feed else now


@dataclass(slots=True)
class _Entry:
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        found = self.fields
        return found.get("guid") or found.get("id") or found.get("link") or found.get("title", "")

    @property
    def text(self) -> str:
        said = self.fields.get("title") or self.fields.get("summary") or self.fields.get("description", "")
        title = one_line(read_web_page(html.unescape(said), "").text, _SHOWN_CHARS)
        link = one_line(self.fields.get("link", ""), _SHOWN_CHARS)
        return "\n  ".join(each for each in (title, link) if each) or _("(without a title)")


class _FeedReader:
    """Collects the entries of a feed while expat reads it."""

    def __init__(self) -> None:
        self.root = ""
        self.entries: list[_Entry] = []
        self._path: list[str] = []
        self._words: list[str] = []

    def read(self, body: bytes, encoding: str | None) -> None:
        """Read a document. Raises `expat.ExpatError`, or ValueError for one that is refused."""
        parser = expat.ParserCreate(encoding, " ")
        parser.UseForeignDTD(True)  # entities that are declared nowhere are no errors
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.StartElementHandler, parser.EndElementHandler = self._open, self._close
        parser.CharacterDataHandler = self._words.append
        parser.SkippedEntityHandler = lambda name, _: self._words.append(html.unescape(f"&{name};"))
        parser.EntityDeclHandler = _refuse
        parser.buffer_text = True
        parser.Parse(body, True)

    @property
    def _in_field(self) -> bool:
        return len(self._path) > 1 and self._path[-2] in _ENTRIES and self._path[-1] in _FIELDS

    def _open(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(" ")[2]
        self.root = self.root or name
        if self.root not in _ROOTS:
            raise _NoFeed
        if name in _ENTRIES:
            if len(self.entries) == MAX_ITEMS:
                raise _Enough
            self.entries.append(_Entry())
        self._path.append(name)
        if self._in_field:
            self._words.clear()
            if name == "link" and attributes.get("rel", "alternate") == "alternate" and "href" in attributes:
                self.entries[-1].fields.setdefault(name, attributes["href"])

    def _close(self, _name: str) -> None:
        if self._in_field and (said := "".join(self._words).strip()):
            self.entries[-1].fields.setdefault(self._path[-1], said)
        self._path.pop()


class _NoFeed(Exception):
    """The document is none of the kinds of feeds."""


class _Enough(Exception):
    """The entries that are compared have been read."""


def _refuse(*_: Any) -> None:
    raise ValueError("the feed declares entities of its own")


def _feed_of(body: bytes) -> list[_Entry] | None:
    """Return the entries of a feed in XML; None: it is no feed. Raises ValueError: it is damaged."""
    body, reader = body.lstrip(), _FeedReader()
    # expat itself knows no encoding of several bytes but those of Unicode, and takes codecs that are no text.
    declared = _DECLARED.match(body)
    if declared is not None and (codec := codec_of(declared[1].decode())):
        body = body.decode(codec, "replace").encode("utf-8", "replace")
    try:
        reader.read(body, None if declared is None else "utf-8")
    except _NoFeed:
        return None
    except _Enough:
        pass
    except expat.ExpatError as error:
        if reader.root in _ROOTS:
            raise ValueError(f"the feed is not valid XML in line {error.lineno}") from None
        return None
    return reader.entries


def _json_of(body: bytes, content_type: str) -> Any:
    """Return what a JSON document says; None: it is none. Raises ValueError if it is called one."""
    is_called = content_type.partition(";")[0].strip().lower().endswith("json")
    if not is_called and not body.lstrip().startswith((b"{", b"[")):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        if is_called:
            raise ValueError("it is not valid JSON") from None
        return None


def _json_parts(data: Any, part: str) -> tuple[list[_Entry] | None, list[str]]:
    """Return the entries of a JSON feed, else the lines of the document or its part. Raises ValueError."""
    if isinstance(data, dict) and str(data.get("version", "")).startswith("https://jsonfeed.org/"):
        items = [each for each in _list(data.get("items"))[:MAX_ITEMS] if isinstance(each, dict)]
        return [_Entry(_json_fields(each)) for each in items], []
    found = field_at(data, part) if part else data
    if found is None:
        raise ValueError(f"there is no {part!r} in it")
    if isinstance(found, str):
        return None, [found]
    return None, json.dumps(found, ensure_ascii=False, indent=1).split("\n")


def _json_fields(item: dict[str, Any]) -> dict[str, str]:
    names = {"id": "id", "title": "title", "link": "url", "summary": "summary", "description": "content_text"}
    return {ours: str(item[theirs]) for ours, theirs in names.items() if item.get(theirs)}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _key(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
