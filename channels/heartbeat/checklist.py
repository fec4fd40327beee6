"""
Decides whether HEARTBEAT.md asks for anything. Pure. Items may carry a date, ``@2026-11-30`` or ``@2026-11-30
09:00`` (`due_items`). Blank lines, headings, rules, comments, empty items, and ticked boxes with indented
lines ask for nothing. In doubt there is work, as a forgotten reminder costs more than a needless check; an
unclosed comment hides nothing.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum, auto

_ITEM = re.compile(r"(?P<indent>[ \t]*)(?:[-*+]|\d{1,9}[.)])(?:[ \t]+(?P<rest>.*)|$)")
_BOX = re.compile(r"\[(?P<tick>[ xX]?)\](?:[ \t]+(?P<rest>.*)|$)")
_HEADING = re.compile(r"#{1,6}(?:[ \t]|$)")
_RULE = re.compile(r"(?:[-*_=`~][ \t]*){2,}")
_COMMENT_LINE = re.compile(r"\[(?://|comment)\]:[ \t]*(?:#|<>)", re.IGNORECASE)


_DATE = re.compile(r"(?<!\S)@(\d{4}-\d{2}-\d{2})(?:[ T](\d{1,2}:\d{2}))?(?!\S)", re.ASCII)


class _Line(Enum):
    NOTHING = auto()
    TEXT = auto()
    """Something to do, unless it belongs to a ticked box."""
    OPEN_BOX = auto()
    """Something to do, wherever it stands."""
    TICKED_BOX = auto()


def has_work(text: str) -> bool:
    """Return True if ``text`` contains an open item."""
    ticked_at: int | None = None
    for line in _without_comments(text).replace("\ufeff", "").splitlines():
        if not line.strip():
            continue
        kind, indent = _kind(line), _width(line)
        if ticked_at is not None and indent <= ticked_at:
            ticked_at = None
        if kind is _Line.OPEN_BOX or (kind is _Line.TEXT and ticked_at is None):
            return True
        if kind is _Line.TICKED_BOX and ticked_at is None:
            ticked_at = indent
    return False


def due_items(text: str, now: datetime) -> list[str]:
    """Return the open items whose date has passed; ``now`` is local time, its zone is ignored."""
    local = now.replace(tzinfo=None)
    found = []
    for line in _without_comments(text).splitlines():
        date = _DATE.search(line)
        if date is None or _kind(line) not in (_Line.OPEN_BOX, _Line.TEXT):
            continue
        try:
            at = datetime.fromisoformat(f"{date[1]}T{(date[2] or '00:00').zfill(5)}")
        except ValueError:
            continue  # a day that no calendar has
        if at <= local:
            found.append(line.strip())
    return found


def _kind(line: str) -> _Line:
    item = _ITEM.fullmatch(line)
    content = line.strip() if item is None else (item["rest"] or "").strip()
    box = _BOX.fullmatch(content) if item is not None else None
    if box is not None and box["tick"] in ("x", "X"):
        return _Line.TICKED_BOX
    if box is not None:
        return _Line.OPEN_BOX if (box["rest"] or "").strip() else _Line.NOTHING
    if not content or _RULE.fullmatch(line.strip()) or (item is None and _is_decoration(content)):
        return _Line.NOTHING
    return _Line.TEXT


def _is_decoration(content: str) -> bool:
    unquoted = content.lstrip("> \t")
    if not unquoted or _RULE.fullmatch(unquoted):
        return True
    return bool(_HEADING.match(unquoted) or _COMMENT_LINE.match(unquoted))


def _width(line: str) -> int:
    """Return the indentation of a line, a tab counting as four columns."""
    expanded = line.expandtabs(4)
    return len(expanded) - len(expanded.lstrip(" "))


def _without_comments(text: str) -> str:
    parts: list[str] = []
    position = 0
    while (start := text.find("<!--", position)) >= 0:
        end = text.find("-->", start + 4)
        if end < 0:
            break
        parts.append(text[position:start])
        position = end + 3
    parts.append(text[position:])
    return "".join(parts)
