"""
Text for people: durations in words, and what others wrote with its control sequences made visible, because
they could recolour, retitle or type into a terminal. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from agent_core.language import _, gettext_noop, ngettext

LOCAL_PARTS = {"heartbeat": gettext_noop("check-in"), "terminal": gettext_noop("local chat")}
"""The words for what looks like a channel and is no service that people know."""
_JOINERS = "\u200c\u200d"
"""Unprintable, but several scripts and many emoji are made with them."""


def plain_line(text: str) -> str:
    """``text`` on one line, with everything unprintable as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _JOINERS else ascii(char)[1:-1] for char in text)


def plain_text(text: str) -> str:
    """``text`` with its line breaks and tabs, and everything else unprintable as an escape."""
    return "\n".join(plain_line(line.replace("\t", "    ")) for line in text.splitlines())


def place_of(row: Mapping[str, Any]) -> str:
    """The name of the place of a row of an answer, that of a room in quotation marks; else its session."""
    return plain_line(f"“{row['room']}”" if row.get("room") else str(row.get("called") or row["session"]))


def local_time(text: str | None) -> str:
    """An instant to the second, in the time zone of this machine; ``-`` for None, other texts as they are."""
    try:
        return datetime.fromisoformat(text or "").astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return text or "-"


def quote(text: str) -> str:
    """``text`` as `plain_text` with a mark before each line, so that none looks like one of ours."""
    return "\n".join(f"> {line}".rstrip() for line in plain_text(text).splitlines())


_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def duration(seconds: float | None) -> str:
    """A span in its two largest units, short: ``3 h 20 min``; ``-`` for None."""
    if seconds is None:
        return "-"
    left = int(seconds)
    for size, unit, small, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            return f"{left // size} {unit} {left % size // small} {name}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{left} s"


def span(seconds: float) -> str:
    """A span in its largest fitting unit, rounded down: ``3 hours``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return _counted(int(seconds // size), unit)
    return _("less than a minute")


def spoken(exact: timedelta) -> str:
    """A span without rounding, as after "every": ``hour``, ``90 minutes``."""
    seconds = exact.total_seconds()
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return _counted(int(seconds // size), unit).removeprefix("1 ")
    return _("{n} seconds", n=f"{seconds:g}")


def _counted(count: int, unit: str) -> str:
    match unit:
        case "day":
            return ngettext("{n} day", "{n} days", count)
        case "hour":
            return ngettext("{n} hour", "{n} hours", count)
    return ngettext("{n} minute", "{n} minutes", count)
