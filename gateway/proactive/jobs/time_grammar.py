"""
The grammar of times as people and models write them, in English and German: ``in 2 h 30 min``, ``friday
6pm``, ``jeden Montag um 8``. Pure syntax: what is read becomes an instant in `trigger_parsing`.

A text is read whole or not at all. Libraries that read dates (dateparser, parsedatetime, dateutil) skip or
complete what they do not know, and none of them knows repetitions; a reminder at half of what was said is
worse than a question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

EXAMPLES = (
    "'18:30', 'tonight', 'tomorrow at 8', 'friday 6pm', '2026-12-24 18:00', 'in 2 h 30 min', "
    "'every day 09:00 and 21:00' or 'every 2 weeks on monday 09:00'"
)
WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


_TAGE = ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag")
_MONATE = {"januar": 1, "februar": 2, "märz": 3, "maerz": 3, "mai": 5, "juni": 6, "juli": 7, "oktober": 10}


def _numbers_of(names: tuple[str, ...]) -> dict[str, int]:
    """The number of each name and of its first three letters, from 0 on."""
    return {short: number for number, name in enumerate(names) for short in (name.lower(), name[:3].lower())}


def _any(words: Iterable[str]) -> str:
    """A pattern of any of the words, the longest first."""
    return "|".join(sorted(words, key=len, reverse=True))


_DAY_NAMES = _numbers_of(WEEK) | {"tues": 1, "thur": 3, "thurs": 3, "sonnabend": 5}
_DAY_NAMES |= {name.lower(): number for number, name in enumerate(_TAGE)}
_MONTH_NAMES = {name: number + 1 for name, number in _numbers_of(_MONTHS).items()} | {"sept": 9}
_MONTH_NAMES |= _MONATE | {"okt": 10, "dezember": 12, "dez": 12}
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_UNIT_NAMES = {
    name: unit
    for unit, names in {
        "s": "s sec secs second seconds sek sekunde sekunden",
        "m": "m min mins minute minutes minuten",
        "h": "h hr hrs hour hours std stunde stunden",
        "d": "d day days tag tage tagen",
        "w": "w week weeks woche wochen",
    }.items()
    for name in names.split()
}
_COUNTS = {
    word: float(number)
    for number, words in enumerate(
        (
            "a an one ein eine einer einem einen", "two zwei", "three drei", "four vier", "five fünf fuenf",
            "six sechs", "seven sieben", "eight acht", "nine neun", "ten zehn",
        ),
        start=1,
    )
    for word in words.split()
}  # fmt: skip
_ADVERBS = {"hourly": "h", "stündlich": "h", "daily": "d", "täglich": "d", "taeglich": "d", "weekly": "w"}
_ADVERBS |= {"wöchentlich": "w"}
_MORNING, _AFTERNOON, _EVENING = (9, 0), (15, 0), (20, 0)
_PARTS = {"morning": _MORNING, "afternoon": _AFTERNOON, "evening": _EVENING, "night": _EVENING}
_PARTS |= {"morgen": _MORNING, "früh": _MORNING, "frueh": _MORNING, "vormittag": _MORNING}
_PARTS |= {"nachmittag": _AFTERNOON, "abend": _EVENING}
_EARLIEST = {_MORNING: 0, _AFTERNOON: 12, _EVENING: 17}
"""The first hour that a part of the day can mean; before it an hour without am and pm means none."""
_PARTS_BEHIND = {"in the morning": 0, "in the afternoon": 12, "in the evening": 17, "at night": 17}
_PARTS_BEHIND |= {"morgens": 0, "früh": 0, "vormittags": 0, "nachmittags": 12, "abends": 17}

_UNIT = rf"(?P<unit>{_any(_UNIT_NAMES)})(?![^\W\d])"
_NAME_OF_DAY = rf"(?P<day>{_any(_DAY_NAMES)})"
_DAY = rf"{_NAME_OF_DAY}(?:\b|(?=(?:{_any(_PARTS)}|mittag)\b))"
_MONTH = rf"(?P<month>{_any(_MONTH_NAMES)})\b\.?"
_NEXT = r"next|n(?:ä|ae)chste[nrs]?"


_FLAGS = re.IGNORECASE | re.ASCII
_GAP = re.compile(r"[\s,]*", _FLAGS)
_AND = re.compile(r"\s{0,9}(?:,\s{0,9}and\b|,|and\b|und\b|&)", _FLAGS)
_IN, _EVERY, _AT, _ON = (
    re.compile(r"in\b", _FLAGS),
    re.compile(r"(?:every|each|jede[nrs]?|alle)\b", _FLAGS),
    re.compile(r"(?:at|um)\b", _FLAGS),
    re.compile(r"on\b|am\b(?!\s{1,9}morgen\b)", _FLAGS),
)
_OTHER, _HALF_HOUR, _AND_HALF, _ADVERB = (
    re.compile(r"(?:other|second|zweite[nrs]?)\b", _FLAGS),
    re.compile(r"half an hour\b|(?:einer\s{1,9})?halben stunde\b", _FLAGS),
    re.compile(r"and a half\b|und eine halbe\b", _FLAGS),
    re.compile(rf"(?:{_any(_ADVERBS)})\b", _FLAGS),
)
_NUMBER = re.compile(r"\d{1,6}(?:\.\d{1,3}|,\d(?=\s?[^\W\d]))?(?![.:\d])", _FLAGS)
_COUNT = re.compile(rf"(?:{_any(_COUNTS)})\b(?=\s)", _FLAGS)
_UNIT_WORD = re.compile(_UNIT, _FLAGS)
_CLOCK = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?![:\d])(?:\s?(?P<half>[ap])\.?m\b\.?)?(?!\w)", _FLAGS
)
_HOUR_HALF = re.compile(r"(?P<hour>\d{1,2})\s?(?P<half>[ap])\.?m\b\.?", _FLAGS)
_HOUR_WORD = re.compile(r"(?P<hour>\d{1,2})(?:[:.](?P<minute>\d\d))?\s?(?:uhr|o['’]clock)\b(?!\s?\d)", _FLAGS)
_HOUR = re.compile(r"(?P<hour>\d{1,2})(?![\w.]|:\d|\s?[ap]\.?m\b)", _FLAGS)
_NOON = re.compile(r"(?:noon|midday|mittags?)\b", _FLAGS)
_MIDNIGHT = re.compile(r"(?:midnight|mitternacht)\b", _FLAGS)
_DAYS_FROM_TODAY = (
    (re.compile(r"(?:today|heute)\b", _FLAGS), 0),
    (re.compile(r"(?:tomorrow|morgen)\b", _FLAGS), 1),
    (re.compile(r"(?:(?:the\s{1,9})?day after tomorrow|(?:ü|ue)bermorgen)\b", _FLAGS), 2),
)
_TONIGHT = re.compile(r"(?:tonight|this evening|heute abend)\b", _FLAGS)
_PART = re.compile(rf"(?P<part>{_any(_PARTS)})\b", _FLAGS)
_PART_BEHIND = re.compile(rf"(?P<behind>{_any(_PARTS_BEHIND)})\b", _FLAGS)
_THIS = re.compile(r"this(?=\s{1,9}(?:morning|afternoon|evening)\b)", _FLAGS)
_WEEK = re.compile(rf"(?:{_NEXT})\s{{1,9}}(?:week|woche)\b", _FLAGS)
_WEEKDAY = re.compile(
    rf"(?:(?:(?P<next>{_NEXT})|this|coming|diese[nrs]?|kommende[nrs]?)\s{{1,9}})?{_DAY}", _FLAGS
)
_EACH_WEEKDAY = re.compile(rf"{_NAME_OF_DAY}s?\b", _FLAGS)
_PLURAL = re.compile(
    rf"(?=(?:{_any(name.lower() for name in (*WEEK, *_TAGE))}|sonnabend|weekday|weekend|work(?:ing)?\s?day"
    r"|werktag)s\b)",
    _FLAGS,
)
_WEEKDAYS = re.compile(r"weekdays?\b|(?:working|work)\s?days?\b|werktags?\b", _FLAGS)
_WEEKENDS = re.compile(r"weekends?\b", _FLAGS)
_ISO_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?(?![\w:]|\s?[ap]\.?m\b)",
    _FLAGS,
)
_ISO_DATE = re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<dom>\d\d)(?:T(?=\d)|(?![\w-]))", _FLAGS)
_DOTTED = re.compile(r"(?P<dom>\d{1,2})\.\s?(?P<month>\d{1,2})\.(?:\s?(?P<year>\d{4}))?(?!\w)", _FLAGS)
_SLASHED = re.compile(r"(?P<one>\d{1,2})/(?P<two>\d{1,2})/(?P<year>\d{4})(?!\w)", _FLAGS)
_OF_MONTH = re.compile(
    rf"(?P<dom>\d{{1,2}})(?:st|nd|rd|th|\.)?\s{{1,9}}(?:of\s{{1,9}})?{_MONTH}(?:,?\s{{1,9}}(?P<year>\d{{4}})(?![\w:]))?",
    _FLAGS,
)
_MONTH_DAY = re.compile(
    rf"{_MONTH}\s{{1,9}}(?P<dom>\d{{1,2}})(?:st|nd|rd|th)?(?![\w:.])(?:,?\s{{1,9}}(?P<year>\d{{4}})(?![\w:]))?",
    _FLAGS,
)
_EACH_MONTH = re.compile(
    r"(?:month\s{1,9}on\s{1,9}(?:the|day)|monat\s{1,9}am)\s{1,9}(?P<dom>\d{1,2})"
    r"(?:st|nd|rd|th|\.)?(?!\w)",
    _FLAGS,
)
_GOES_ON = re.compile(
    r"[\s,]{0,9}(?:(?:and|or|&|[-–+/]|until|till|through|from|for|starting|except|on|at|in|to"
    r"|und|oder|bis|von|ab|für|außer|am|um)\s{0,9}(?:the\s{1,9}|an?\s{1,9})?)?"
    rf"(?:\d{{1,6}}(?:\.\d+)?\s?{_UNIT}|\d{{1,2}}(?::\d\d)?\s?[ap]\.?m\b|\d{{1,2}}(?:st|nd|rd|th)\b"
    rf"|(?:next\s{{1,9}}|this\s{{1,9}})?{_NAME_OF_DAY.replace('?P<day>', '?:')}s?\b"
    rf"|(?:every|each|jede[nrs]?|tonight|tomorrow|today|heute|noon|midnight|so|{_any(_ADVERBS)})\b"
    rf"|(?:{_any(_PARTS)}|mittag|nacht)s?\b|of\s{{1,9}}(?:the|each|every)\s{{1,9}}month\b"
    r"|(?:UTC|GMT|Z|CES?T|BST|[ECMP][SD]T|IST|o'clock|uhr)\b|[+-]\d)",
    _FLAGS,
)
_JOINED_NUMBER = re.compile(
    r"[\s,]{0,9}(?:(?:and|or|&|[-–+/]|until|till|to|at|from|for|und|oder|bis|um|ab)\s{0,9})\d", _FLAGS
)
_BARE_NUMBER, _BARE_CLOCK = re.compile(r"\s{0,9}\d", _FLAGS), re.compile(r"\s{0,9}\d{1,2}[:.]\d", _FLAGS)
_ENDS = re.compile(r"\s{0,9}:|\s{0,9}$|\s{1,9}(?:that|about)\b|\s{1,9}to\s{1,9}(?!\d)", _FLAGS)
_SMALL_UMLAUTS = str.maketrans("ÄÖÜ", "äöü")
_T = TypeVar("_T")

Clock = tuple[int, int]
"""Hour and minute; (24, 0) is the midnight at the end of the day."""


@dataclass(frozen=True, slots=True)
class Day:
    """
    A day; exactly one of the first three is set.

    ``date`` is (year or None for the next, month, day); ``weekday`` 0 is Monday; ``offset`` counts from
    today; ``which``: ``next``, or ``week`` for next week's.
    """

    date: tuple[int | None, int, int] | None = None
    weekday: int | None = None
    offset: int | None = None
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
    """Repeated by the calendar: each ``count`` days (or weeks) on ``weekdays``, or on a day of the month."""

    clocks: tuple[Clock, ...]
    count: int = 1
    in_weeks: bool = False
    weekdays: tuple[int, ...] = ()
    day_of_month: int = 0


@dataclass(frozen=True, slots=True)
class Moments:
    """Single times: a day (None: the next such time) with times, or instants; ``tonight``: no time."""

    day: Day | None = None
    clocks: tuple[Clock, ...] = ()
    instants: tuple[datetime, ...] = ()
    tonight: bool = False


When = Span | Every | Calendar | Moments


class NotATime(ValueError):
    """The text cannot be read whole; what it says is for the person."""


class Ambiguous(NotATime):
    """The text can mean two days; both are named."""


def read_when(text: str) -> When:
    """Read a text that is a time and nothing else. Raises `NotATime`."""
    reader = _Reader(text.strip())
    when = reader.when()
    if reader.at != len(reader.text):
        rest = reader.text[reader.at :].strip()[:40]
        raise NotATime(f"I do not understand {rest!r} in {text.strip()[:80]!r}; write {EXAMPLES}")
    return when


def split_when(text: str) -> tuple[str, str] | None:
    """Split the time from the text after it; None without a clear one. Raises Ambiguous."""
    reader = _Reader(text)
    try:
        when = reader.when()
    except Ambiguous:
        raise
    except NotATime:
        return None
    rest = text[reader.at :]
    separated = _ENDS.match(rest)
    if not separated and (rest[:1].isalnum() or _GOES_ON.match(rest) or _JOINED_NUMBER.match(rest)):
        return None
    if not separated and (_BARE_NUMBER if reader.may_go_on(when) else _BARE_CLOCK).match(rest):
        return None
    return text[: reader.at].strip(" ,"), rest.lstrip(" \t\r\n:,.")


class _Reader:
    """Reads one text from left to right; a rule that does not fit leaves the position as it was."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text.translate(_SMALL_UMLAUTS), 0
        self._clock_was_said = self._ends_in_hours = False

    def may_go_on(self, when: When) -> bool:
        """A bare number behind it may belong to it: ``in 2 h 30``, ``every monday 9``."""
        return self._ends_in_hours if isinstance(when, Span | Every) else not self._clock_was_said

    def when(self) -> When:
        """The longest time that begins here. Raises `NotATime`."""
        found = self._first(self._after_in, self._repeated, self._moments)
        if found is None:
            raise NotATime(f"{self.text[:80]!r} is not a time; write {EXAMPLES}")
        return found

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        gap = _GAP.match(self.text, self.at) if self.at else None
        found = pattern.match(self.text, gap.end() if gap else self.at)
        if found is not None:
            self.at = found.end()
        return found

    def _and(self) -> bool:
        found = _AND.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found is not None

    def _attempt(self, rule: Callable[[], _T | None]) -> _T | None:
        start = self.at
        found = rule()
        if found is None:
            self.at = start
        return found

    def _first(self, *rules: Callable[[], When | None]) -> When | None:
        start = self.at
        for rule in rules:
            if (found := rule()) is not None:
                return found
            self.at = start
        return None

    # ── in … ──

    def _after_in(self) -> When | None:
        if not self._take(_IN):
            return None
        seconds, in_days = self._span()
        if not seconds:
            return None
        clocks = self._clocks() if in_days else ()
        if clocks:
            return Moments(Day(offset=round(seconds / _UNITS["d"])), clocks)
        return Span(seconds)

    def _span(self, implied: float | None = None) -> tuple[float, bool]:
        """Seconds (0: there is no span), and if it counts whole days; ``implied`` is the number left out."""
        if self._take(_HALF_HOUR):
            return 1800.0, False
        total, unit, whole_days = 0.0, "", True
        while (part := self._attempt(partial(self._span_part, unit, implied))) is not None:
            count, unit = part
            if self._take(_AND_HALF):
                count += 0.5
            total += count * _UNITS[unit]
            whole_days = whole_days and unit in "dw" and count == int(count)
        self._ends_in_hours = unit == "h"
        return total, whole_days and bool(unit)

    def _span_part(self, above: str, implied: float | None) -> tuple[float, str] | None:
        """A number with a unit, which is smaller than the one before it."""
        if above:
            self._and()
        number = self._take(_NUMBER) or self._take(_COUNT)
        if number is None and (above or implied is None):
            return None
        half = 0.5 if number and self._take(_AND_HALF) else 0.0
        if (said := self._take(_UNIT_WORD)) is not None:
            unit = _UNIT_NAMES[said["unit"].lower()]
        elif number is not None and not above and not self.text[self.at :].strip():
            unit = "m"  # a number alone, ``--in 90``
        else:
            return None
        if above and _UNITS[unit] >= _UNITS[above]:
            return None
        if number is None:
            return implied or 1.0, unit
        count = _COUNTS.get(number[0].lower()) or float(number[0].replace(",", "."))
        return count + half, unit

    # ── every … ──

    def _repeated(self) -> When | None:
        if (adverb := self._take(_ADVERB)) is not None:
            unit = _ADVERBS[adverb[0].lower()]
            found = self._calendar(_UNITS[unit], in_days=unit != "h")
            return Calendar((_MORNING,)) if unit == "d" and isinstance(found, Every) else found
        if not self._take(_EVERY):
            self._take(_ON)
            return self._each_weekdays() if self._take(_PLURAL) else None
        return self._first(self._each_month, self._each_weekdays, self._each_part, self._each_count)

    def _each_part(self) -> When | None:
        part = self._part()
        return Calendar(part) if part else None

    def _each_month(self) -> When | None:
        month = self._take(_EACH_MONTH)
        if month is None or not 1 <= int(month["dom"]) <= 31:
            return None
        return Calendar(self._clocks() or (_MORNING,), day_of_month=int(month["dom"]))

    def _each_weekdays(self) -> When | None:
        days = self._weekdays()
        return Calendar(self._clocks() or self._part() or (_MORNING,), weekdays=days) if days else None

    def _weekdays(self) -> tuple[int, ...]:
        if self._take(_WEEKDAYS):
            return tuple(range(5))
        if self._take(_WEEKENDS):
            return (5, 6)
        found: list[int] = []
        while (day := self._attempt(lambda: self._one_weekday(more=bool(found)))) is not None:
            found.append(day)
        return tuple(sorted(set(found)))

    def _one_weekday(self, *, more: bool) -> int | None:
        if more and not self._and():
            return None
        day = self._take(_EACH_WEEKDAY)
        return None if day is None else _DAY_NAMES[day["day"].lower()]

    def _each_count(self) -> When | None:
        other = self._take(_OTHER) is not None
        if other and (weekdays := self._weekdays()):
            clocks = self._clocks() or self._part() or (_MORNING,)
            return Calendar(clocks, 2, in_weeks=True, weekdays=weekdays)
        seconds, in_days = self._span(implied=2.0 if other else 1.0)
        return self._calendar(seconds, in_days=in_days) if seconds else None

    def _calendar(self, seconds: float, *, in_days: bool) -> When | None:
        days = round(seconds / _UNITS["d"])
        in_weeks = in_days and days % 7 == 0
        weekdays = self._attempt(lambda: (self._take(_ON) and self._weekdays()) or None) if in_weeks else None
        clocks = (self._clocks() or self._part()) if in_days else ()
        if weekdays:
            return Calendar(clocks or (_MORNING,), days // 7, in_weeks=True, weekdays=weekdays)
        return Calendar(clocks, days) if clocks else Every(seconds)

    # ── once ──

    def _moments(self) -> When | None:
        instants: list[datetime] = []
        while (instant := self._attempt(lambda: self._instant(more=bool(instants)))) is not None:
            instants.append(instant)
        if instants:
            self._clock_was_said = True
            return Moments(instants=tuple(instants))
        self._take(_ON)
        return self._first(self._day_first, self._clock_first)

    def _instant(self, *, more: bool) -> datetime | None:
        if more and not self._and():
            return None
        found = self._take(_ISO_INSTANT)
        try:
            return datetime.fromisoformat(found[0]) if found else None
        except ValueError as error:
            raise NotATime(f"{self.text[:40]!r} is not in the calendar") from error

    def _day_first(self) -> When | None:
        if self._take(_TONIGHT):
            clocks = self._clocks(earliest=_EARLIEST[_EVENING])
            return Moments(Day(offset=0), clocks or (_EVENING,), tonight=not clocks)
        day = Day(offset=0) if self._take(_THIS) else self._day()
        if day is None:
            return None
        clocks = self._part() or self._clocks()
        if not clocks and not self.text[self.at :].strip():
            said = self.text.strip()
            raise NotATime(f"{said!r} has no time of day; write for example '{said} 09:00'")
        return Moments(day, clocks) if clocks else None

    def _clock_first(self) -> When | None:
        clocks = self._clocks()
        if not clocks:
            return None
        return Moments(self._attempt(self._day_behind), clocks)

    def _day_behind(self) -> Day | None:
        on = self._take(_ON)
        day = self._day()
        # "18:30 sunday roast" is no Sunday for certain.
        unsure = day is not None and day.weekday is not None and not on
        return None if unsure and self.text[self.at :].strip() else day

    def _day(self) -> Day | None:
        for pattern, offset in _DAYS_FROM_TODAY:
            if self._take(pattern):
                return Day(offset=offset)
        if self._take(_WEEK):
            found = self._attempt(lambda: (self._take(_ON), self._take(_WEEKDAY))[1])
            return Day(weekday=_DAY_NAMES[found["day"].lower()], which="week") if found else Day(offset=7)
        if (weekday := self._take(_WEEKDAY)) is not None:
            which = "week" if self._take(_WEEK) else "next" if weekday["next"] else ""
            return Day(weekday=_DAY_NAMES[weekday["day"].lower()], which=which)
        if (slashed := self._take(_SLASHED)) is not None:
            return Day(date=(int(slashed["year"]), *_month_and_day(slashed)))
        for pattern in (_ISO_DATE, _DOTTED, _OF_MONTH, _MONTH_DAY):
            if (found := self._take(pattern)) is not None:
                month = _MONTH_NAMES.get(found["month"].lower()) or int(found["month"])
                return Day(date=(int(found["year"]) if found["year"] else None, month, int(found["dom"])))
        return None

    # ── times of day ──

    def _part(self) -> tuple[Clock, ...]:
        """``morning``, ``evening at 8``."""
        part = self._take(_PART)
        if part is None:
            return ()
        default = _PARTS[part["part"].lower()]
        return self._clocks(earliest=_EARLIEST[default]) or (default,)

    def _clocks(self, *, earliest: int = 0) -> tuple[Clock, ...]:
        """Times of day; ``earliest``: the first hour that they can mean, from 12 on those after noon."""
        found: list[Clock] = []
        start, at = self.at, self._take(_AT) is not None
        while (
            clock := self._attempt(lambda: self._clock(more=bool(found), at=at, earliest=earliest))
        ) is not None:
            found.append(clock)
        if not found:
            self.at = start
        self._clock_was_said = self._clock_was_said or bool(found)
        return tuple(dict.fromkeys(found))

    def _clock(self, *, more: bool, at: bool, earliest: int) -> Clock | None:
        if more:
            if not self._and():
                return None
            self._take(_AT)
        if self._take(_NOON):
            return 12, 0
        if self._take(_MIDNIGHT):
            return 24, 0
        patterns = (_HOUR_WORD, _CLOCK, _HOUR_HALF, *((_HOUR,) if at and not more else ()))
        found = next((said for each in patterns if (said := self._take(each))), None)
        if found is None:
            return None
        parts = found.groupdict()
        if not parts.get("half") and (behind := self._take(_PART_BEHIND)) is not None:
            earliest = _PARTS_BEHIND[behind["behind"].lower()]
        return _hour_and_minute(
            int(parts["hour"]), int(parts.get("minute") or 0), parts.get("half"), earliest=earliest
        )


def _hour_and_minute(hour: int, minute: int, half: str | None, *, earliest: int) -> Clock | None:
    if half is None and earliest and hour <= 12:
        half = "p" if earliest <= hour + 12 < 24 else "?"
    if half is not None:
        if not 1 <= hour <= 12 or half == "?":
            return None
        hour = hour % 12 + (12 if half.lower() == "p" else 0)
    return (hour, minute) if (hour < 24 and minute < 60) or (hour, minute) == (24, 0) else None


def _month_and_day(slashed: re.Match[str]) -> tuple[int, int]:
    """Month and day of ``04/12/2026``. Raises `Ambiguous`: it can be two days."""
    one, two = int(slashed["one"]), int(slashed["two"])
    if one != two and max(one, two) <= 12:
        first, second = (f"{slashed['year']}-{month:02}-{day:02}" for month, day in ((one, two), (two, one)))
        raise Ambiguous(f"{slashed[0]!r} can be {first} or {second}; write the one that you mean like this")
    return (one, two) if two > 12 else (two, one)
