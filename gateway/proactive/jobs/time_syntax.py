"""
The forms of times that `time_grammar` reads, and what it says of a text that is none. Pure data: when that
is, `trigger_parsing` finds out.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from agent_core.language import _


class TimeOfDay(NamedTuple):
    """
    A time of the day; (24, 0) is the midnight at its end.

    ``is_spoken``: an hour from 1 to 11 that does not say which half of the day is meant, as in "at 6".
    """

    hour: int
    minute: int
    is_spoken: bool = False


@dataclass(frozen=True, slots=True)
class Day:
    """
    A day; one of the first three is set, or a date with its weekday.

    ``date`` is (year, month, day), with None for the next; ``weekday`` 0 is Monday; ``offset`` counts from
    today, and so do ``months``; ``which``: ``next``, or ``week`` for next week's.
    """

    date: tuple[int | None, int | None, int] | None = None
    weekday: int | None = None
    offset: int | None = None
    months: int = 0
    which: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """``in 2 h 30 min``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Every:
    """``every 2 h 30 min``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Calendar:
    """
    Repeated by the calendar: each ``count`` of a ``unit`` ("days", "weeks", "months").

    ``weekdays``: on these, in months only the ``nth`` (-1: the last). ``days_of_month`` and ``month``: the
    days; 31 is the last one of each month. A month without any of these is counted from today. ``zone``: an
    IANA name, if one was said.
    """

    clocks: tuple[TimeOfDay, ...]
    count: int = 1
    unit: str = "days"
    weekdays: tuple[int, ...] = ()
    nth: int = 0
    days_of_month: tuple[int, ...] = ()
    month: int = 0
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Moments:
    """
    Single times: a day (None: the next such time) with times, or instants; ``is_vague``: at some time;
    ``zone``: an IANA name, if one was said.
    """

    day: Day | None = None
    clocks: tuple[TimeOfDay, ...] = ()
    instants: tuple[datetime, ...] = ()
    is_vague: bool = False
    zone: str = ""


When = Span | Every | Calendar | Moments


class NotATime(ValueError):
    """The text cannot be read whole: what it says is for the person, and ``example`` can be read."""

    def __init__(self, said: str, example: str = "") -> None:
        super().__init__(said)
        self.example = example or _("tomorrow at 8")


class Ambiguous(ValueError):
    """The text can mean two times; both are named, for the person."""


def clock_of(
    hour: int, minute: int, half: str, *, earliest: int | None, is_spoken: bool = False
) -> TimeOfDay | None:
    """The time of a clock, None if no clock shows it; a negative ``minute`` is before the hour."""
    is_spoken = is_spoken and not half and earliest is None and 1 <= hour <= 12
    if minute < 0:
        hour, minute = {0: 23, 1: 12}.get(hour, hour - 1), minute + 60
    if not half and earliest and hour <= 12 and (hour, earliest) != (12, 12):
        if not earliest <= hour + 12 < 24:
            return None
        hour += 12
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "p" else 0)
    is_on_clock = (hour < 24 and minute < 60) or (hour, minute) == (24, 0)
    return TimeOfDay(hour, minute, is_spoken and hour < 12) if is_on_clock else None


def month_and_day(said: str, one: int, two: int, year: int) -> tuple[int, int]:
    """Month and day of ``04/12/2026``. Raises `Ambiguous`: it can be two days."""
    if one != two and max(one, two) <= 12:
        first, second = (f"{year}-{month:02}-{day:02}" for month, day in ((one, two), (two, one)))
        raise Ambiguous(
            _(
                "{said} can be {first} or {second}; write the one that you mean like this",
                said=f"{said!r}",
                first=first,
                second=second,
            )
        )
    return (one, two) if two > 12 else (two, one)


def is_minutes(text: str) -> bool:
    """Return True for the minutes of a clock, in two figures."""
    return re.fullmatch(r"[0-5]\d", text, re.ASCII) is not None


def check_day(month: int, dom: int) -> None:
    """Raise `NotATime` if no year has this day."""
    if not (1 <= month <= 12 and 1 <= dom <= monthrange(2000, month)[1]):
        raise NotATime(
            _("No year has a day {dom} in month {month}", dom=dom, month=month),
            _("every year on 28 February call Tom"),
        )
