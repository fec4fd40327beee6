"""Durations in words: for a terminal, for a chat, for a trigger. Pure."""

from __future__ import annotations

from datetime import timedelta

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
    return "less than a minute"


def spoken(exact: timedelta) -> str:
    """A span without rounding, as after "every": ``hour``, ``90 minutes``."""
    seconds = exact.total_seconds()
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return _counted(int(seconds // size), unit).removeprefix("1 ")
    return f"{seconds:g} seconds"


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
