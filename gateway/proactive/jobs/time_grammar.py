"""
The grammar of times as people and models write them, in English and German: ``in 2 h 30 min``, ``friday
6pm``, ``halb sieben``, ``jeden Montag um 8``. Pure syntax: what is read becomes an instant in
`trigger_parsing`.

One tokenizer, the tables of `time_words`, and rules that take tokens from left to right. A text is read whole
or not at all, which no library does: dateparser takes "at 9 and 21" for the 21st of September, parsedatetime
and recurrent take "half an hour" for an hour and leave out what they do not know; none reads "halb sieben".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from agent_core.language import _
from gateway.proactive.jobs import time_words as words
from gateway.proactive.jobs.time_syntax import (
    Ambiguous,
    Calendar,
    Day,
    Every,
    Moments,
    NotATime,
    Span,
    TimeOfDay,
    When,
    check_day,
    clock_of,
    is_minutes,
    month_and_day,
)

_T = TypeVar("_T")
_BETWEEN = " \t\r\n:,."
_DEFAULT = (TimeOfDay(*words.MORNING),)


def read_when(text: str) -> When:
    """Read a text that is a time and nothing else. Raises `NotATime` or `Ambiguous`."""
    reader = _Reader(text)
    when = reader.when()
    if rest := reader.rest.strip(" ,\t\r\n"):
        raise NotATime(
            _("I do not understand {rest} in {text}", rest=f"{rest[:40]!r}", text=f"{reader.text[:80]!r}")
        )
    return when


def split_when(text: str) -> tuple[str, str]:
    """Split the time from the text after it. Raises `Ambiguous`, or `NotATime` with an example of both."""
    reader = _Reader(text)
    try:
        when = reader.when()
    except NotATime as error:
        raise NotATime(str(error), _example(*_time_behind(text))) from None
    time, said = reader.text[: reader.end].strip(" ,"), reader.rest.lstrip(_BETWEEN)
    with_colon = f"{time}: {said}"
    if not said.strip(_BETWEEN):
        raise NotATime(
            _("I do not know what to say {time}", time=f"{time!r}"), _("{time} call Tom", time=time)
        )
    if reader.rest.startswith(":"):
        return time, said
    if reader.can_continue(when):
        with_at = f"{time} at {said.partition(' ')[0]}"
        example = f"{time} at {said}" if _is_time(with_at) else with_colon
        raise NotATime(
            _(
                "I am not sure whether {said} belongs to the time {time}",
                said=f"{said[:40]!r}",
                time=f"{time!r}",
            ),
            example,
        )
    if (found := reader.clock_in_text(when)) is not None:
        clock, others = found
        example = f"{time} {clock} {others}" if _is_time(f"{time} {clock}") else with_colon
        raise NotATime(
            _(
                "I am not sure whether {clock} belongs to the time {time}",
                clock=f"{clock!r}",
                time=f"{time!r}",
            ),
            example,
        )
    return time, said


def split_time_behind(text: str) -> tuple[str, str]:
    """Split the time from the text before it, which has none itself. Raises as `split_when`."""
    time, said = _time_behind(text)
    if not time or not is_free_of_times(said):
        raise NotATime(_("I do not understand {text} as a time", text=f"{text[:40]!r}"), _example(time, said))
    if time[0].isdigit() and isinstance(read_when(time), Span):
        raise NotATime(
            _("I am not sure whether {time} belongs to the text", time=f"{time!r}"),
            _("in {time} {said}", time=time, said=said),
        )
    return time, said


def is_free_of_times(text: str) -> bool:
    """Return True if nothing in a text may belong to a time behind it."""
    reader = _Reader(text)
    if not reader.tokens or reader.tokens[-1].text in words.BEFORE_A_TIME:
        return False
    return not any(
        words.is_of_a_time(token.text) or reader.finds_time(at) for at, token in enumerate(reader.tokens)
    )


def _time_behind(text: str) -> tuple[str, str]:
    """The longest time at the end of a text, and what is before it; two empty texts if there is none."""
    reader = _Reader(text)
    for token in reader.tokens[1:] if len(reader.tokens) < words.MOST_TOKENS else ():
        if _is_time(reader.text[token.start :]):
            return reader.text[token.start :], reader.text[: token.start].strip(_BETWEEN)
    return "", ""


def _example(time: str, said: str) -> str:
    """A reminder with this time and text as it is written, if they are both clear."""
    if is_free_of_times(said):
        return f"{time} {said}"
    return _("{time} call Tom", time=NotATime("").example)


def _is_time(text: str) -> bool:
    try:
        read_when(text)
    except (NotATime, Ambiguous):
        return False
    return True


class _Reader:
    """Reads one text from left to right; a rule that does not fit leaves the position as it was."""

    def __init__(self, text: str) -> None:
        text = text.strip()
        self.text = unicodedata.normalize("NFC", text[:1000]) + text[1000:]
        self.tokens, self.at = words.tokens_of(self.text), 0
        self._clock_was_said = self._ends_in_hours = self._is_bare = False

    @property
    def end(self) -> int:
        """The place behind the last token that was taken."""
        return self.tokens[self.at - 1].end if self.at else 0

    @property
    def rest(self) -> str:
        """The text that is not read yet."""
        return self.text[self.end :]

    def when(self) -> When:
        """The longest time that begins here. Raises `NotATime`."""
        found = self._first(self._months_from_now, self._span_from_now, self._repeated, self._moments)
        if found is None:
            raise NotATime(_("I do not understand {text} as a time", text=f"{self.text[:40]!r}"))
        return found

    def can_continue(self, when: When) -> bool:
        """Return True if the next words may belong to it: ``every monday 9``, ``18:00 CET``."""
        first, second, *_ = *self.tokens[self.at :], words.NOTHING, words.NOTHING
        is_text = second.kind == "word" and second.text not in words.TIME_WORDS
        if first.text in words.INTRODUCES or (first.text == "to" and is_text):
            return False
        if first.is_glued and first.kind != "mark":
            return True
        start, is_joined = self.at, first.text in words.JOINS or self.tokens[self.at - 1].text == "uhr"
        self._skip(words.LEADS)
        self._skip(words.ARTICLES)
        follows = self._next
        self.at += 1
        counts = self._ends_in_hours if isinstance(when, Span | Every) else not self._clock_was_said
        is_unit = self._next.text in (*words.UNITS, *words.HALVES, *words.ORDINALS)
        is_date = follows.text in words.MONTHS and self._next.kind == "number"
        self.at = start
        if follows.text[:1].isdigit():
            return is_joined or counts or is_unit or follows.kind != "number"
        is_hour = (is_joined or counts) and follows.text in words.HOURS
        return is_date or is_hour or follows.text in words.TIME_WORDS

    def clock_in_text(self, when: When) -> tuple[str, str] | None:
        """A time of day in the text, which may be that of a day without one, and the other words."""
        is_short = isinstance(when, Span | Every) and when.seconds < words.SECONDS["d"]
        if self._clock_was_said or (is_short and not self._is_bare):
            return None
        begin = self.end
        for self.at in range(self.at, len(self.tokens)):  # noqa: B020
            start = self._next.start
            if self._clocks():
                others = f"{self.text[begin:start].strip(_BETWEEN)} {self.rest.strip()}"
                return self.text[start : self.end], others.strip()
        return None

    def finds_time(self, at: int) -> bool:
        """Return True if a time begins at a token; it is the next one afterwards."""
        self.at = at
        try:
            self.when()
        except NotATime:
            return False
        except Ambiguous:
            pass
        return True

    # ── tokens ──

    @property
    def _next(self) -> words.Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else words.NOTHING

    def _take(self, table: Mapping[str, _T]) -> _T | None:
        """The value of the longest phrase of the table that comes next."""
        for count in range(5, 0, -1):
            phrase = self.tokens[self.at : self.at + count]
            key = " ".join(each.text for each in phrase)
            if len(phrase) == count and key in table and not any(each.has_comma for each in phrase[1:]):
                self.at += count
                return table[key]
        return None

    def _skip(self, known: Container[str]) -> str:
        """The next word, if it is a known one, or nothing."""
        found = self._next.text
        if not found or found not in known:
            return ""
        self.at += 1
        return found

    def _kind(self, kind: str) -> str:
        return self._skip((self._next.text,)) if self._next.kind == kind else ""

    def _dot(self) -> None:
        if self._next.is_glued:
            self._skip(".")

    def _and(self) -> bool:
        comma = self._next.has_comma
        return bool(self._skip(words.AND)) or comma

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

    def _months_from_now(self) -> When | None:
        is_bare = not self._skip(words.IN)
        months: float | None = self._take(words.HALF_A_YEAR)
        if months is None:
            count, unit = self._count(), self._take(words.MONTHS_AHEAD)
            months = (count or 0) * (unit or 0)
        if (not self._take(words.FROM_NOW) and is_bare) or not months or months % 1:
            return None
        return Moments(Day(months=int(months)), self._clocks() or _DEFAULT)

    def _span_from_now(self) -> When | None:
        is_bare = not self._skip(words.IN)
        if is_bare and self._attempt(self._minutes_around) is not None:
            return None  # "5 minutes to 8"
        start = self.at
        seconds, in_days = self._span()
        if not seconds:
            return None
        said = [each.text for each in self.tokens[start : self.at]]
        if not self._take(words.FROM_NOW) and is_bare:
            if self.tokens[start].kind != "number" or len(said) < 2 or self._next.text in words.NO_SPAN:
                return None
            if said[1] == "h" and len(said) < 4 and said[0].isdecimal() and 6 <= int(said[0]) <= 24:
                span, clock = self.text[: self.end], ":".join([said[0], *(said[2:] or ["00"])])
                either = f"{clock} or 'in {span}'"
                raise Ambiguous(
                    _(
                        "{span} can be {either}; write the one that you mean like this",
                        span=f"{span!r}",
                        either=either,
                    )
                )
        self._is_bare = is_bare
        clocks = self._clocks() if in_days else ()
        return Moments(Day(offset=round(seconds / words.SECONDS["d"])), clocks) if clocks else Span(seconds)

    def _span(self, implied: float | None = None) -> tuple[float, bool]:
        """Seconds (0: there is no span), and if it counts whole days; ``implied`` is the number left out."""
        if (named := self._take(words.SPANS)) is not None:
            return named, False
        total, unit, whole_days = 0.0, "", True
        while (part := self._attempt(partial(self._span_part, unit, implied))) is not None:
            count, unit = part
            count += self._take(words.AND_HALF) or 0
            total += count * words.SECONDS[unit]
            whole_days = whole_days and unit in "dw" and count == int(count)
        self._ends_in_hours = unit == "h"
        return total, whole_days and bool(unit)

    def _span_part(self, above: str, implied: float | None) -> tuple[float, str] | None:
        """A number with a unit, which is smaller than the one before it."""
        before = self.tokens[self.at - 1].text if above else ""
        if above:
            self._and()
        number = self._next
        count = self._count()
        if count is None and (above or implied is None):
            return None
        half = (self._take(words.AND_HALF) or 0.0) if count is not None else 0.0
        if (unit := self._take(words.UNITS)) is not None:
            self._dot()
        elif count is not None and not above and not self._next.text:
            unit = "m"  # a number alone, ``--in 90``
        elif before in ("h", "std") and is_minutes(number.text) and not number.has_comma:
            unit = "m"  # ``1h30``
        else:
            return None
        if above and words.SECONDS[unit] >= words.SECONDS[above]:
            return None
        return (implied or 1.0 if count is None else count) + half, unit

    def _count(self) -> float | None:
        if self._next.kind == "number" or (self._next.kind == "clock" and "." in self._next.text):
            return float(self._kind(self._next.kind).replace(",", "."))
        return self._take(words.COUNTS)

    # ── every … ──

    def _repeated(self) -> When | None:
        if (unit := self._take(words.ADVERBS)) is not None:
            found = self._calendar(words.SECONDS[unit], in_days=unit != "h")
            return Calendar(_DEFAULT) if unit == "d" and isinstance(found, Every) else found
        if self._take(words.MONTHLY):
            return self._monthly(self._ordinal())
        if self._skip(words.EVERY):
            return self._first(
                self._each_month, self._each_year, self._each_weekdays, self._each_part, self._each_count
            )
        self._skip(words.ON)
        if (dated := self._first(self._of_each_month, self._each_year)) is not None:
            return dated
        start, is_plural = self.at, self._take(words.PLURALS) is not None
        self.at = start
        return self._each_weekdays() if is_plural else None

    def _each_part(self) -> When | None:
        part = self._part()
        return Calendar(part) if part else None

    def _each_month(self) -> When | None:
        return self._monthly(self._ordinal() if self._take(words.ON_THE_DAY) else self._marked_ordinal())

    def _of_each_month(self) -> When | None:
        self._skip(words.ARTICLES)
        dom = self._ordinal()
        return self._monthly(dom) if dom and self._take(words.OF_EACH_MONTH) else None

    def _monthly(self, dom: int) -> When | None:
        return Calendar(self._clocks() or _DEFAULT, day_of_month=dom) if 1 <= dom <= 31 else None

    def _each_year(self) -> When | None:
        if not self._take(words.EACH_YEAR):
            return None
        self._skip(words.ON)
        day = self._calendar_day()
        year, month, dom = (day and day.date) or (None, None, 0)
        if year is not None or month is None:
            return None
        check_day(month, dom)
        return Calendar(self._clocks(after_day=True) or _DEFAULT, day_of_month=dom, month=month)

    def _each_weekdays(self) -> When | None:
        days = self._weekdays()
        return Calendar(self._times_of_day() or _DEFAULT, weekdays=days) if days else None

    def _times_of_day(self) -> tuple[TimeOfDay, ...]:
        return self._clocks(after_day=True) or self._part()

    def _weekdays(self) -> tuple[int, ...]:
        found: tuple[int, ...] = ()
        while days := self._attempt(partial(self._more_weekdays, more=bool(found))):
            found += days
        return tuple(sorted(set(found)))

    def _more_weekdays(self, *, more: bool) -> tuple[int, ...] | None:
        return None if more and not self._and() else self._take(words.EACH_DAYS)

    def _each_count(self) -> When | None:
        other = bool(self._skip(words.OTHER)) or self._attempt(self._second) is not None
        if other and (weekdays := self._weekdays()):
            return Calendar(self._times_of_day() or _DEFAULT, 2, in_weeks=True, weekdays=weekdays)
        seconds, in_days = self._span(implied=2.0 if other else 1.0)
        return self._calendar(seconds, in_days=in_days) if seconds else None

    def _second(self) -> bool | None:
        """``2nd`` or ``2.`` for "other"."""
        start, number = self.at, self._ordinal()
        return True if number == 2 and self.at - start > 1 else None

    def _calendar(self, seconds: float, *, in_days: bool) -> When | None:
        days = round(seconds / words.SECONDS["d"])
        in_weeks = in_days and days % 7 == 0
        is_on = bool(self._skip(words.ON)) or self._next.text in words.PLURALS
        on_days = self._attempt(lambda: (is_on and self._weekdays()) or None)
        if on_days:
            clocks = self._times_of_day() or _DEFAULT
            return Calendar(clocks, days // 7, in_weeks=True, weekdays=on_days) if in_weeks else None
        clocks = self._times_of_day() if in_days else ()
        return Calendar(clocks, days) if clocks else Every(seconds)

    # ── once ──

    def _moments(self) -> When | None:
        instants: list[datetime] = []
        while (instant := self._attempt(partial(self._instant, more=bool(instants)))) is not None:
            instants.append(instant)
        if instants:
            self._clock_was_said = True
            return Moments(instants=tuple(instants))
        if (part := self._take(words.PARTS_ALONE)) is not None:
            return Moments(None, self._within(part))
        if (part := self._take(words.PARTS_OF_TODAY)) is not None:
            clocks = self._within(part)
            is_vague = part == words.EVENING and not self._clock_was_said
            return Moments(Day(offset=0), clocks, is_vague=is_vague)
        self._skip(words.ON)
        return self._first(self._day_first, self._clock_first)

    def _instant(self, *, more: bool) -> datetime | None:
        if more and not self._and():
            return None
        found = self._kind("instant").upper()
        try:
            return datetime.fromisoformat(found) if found else None
        except ValueError as error:
            raise NotATime(_("{found} is not in the calendar", found=f"{found!r}")) from error

    def _day_first(self) -> When | None:
        start, day = self.at, self._day()
        if day is None:
            return None
        # "sun cream", "sat nav": a short name alone is no day for certain.
        is_unsure = not start and self.tokens[0].text in words.SHORT_DAYS
        clocks = self._part() or self._clocks(after_day=True)
        if is_unsure and not clocks:
            return None
        return Moments(day, clocks or _DEFAULT, is_vague=not clocks and day.offset == 0)

    def _clock_first(self) -> When | None:
        clocks = self._clocks()
        if not clocks:
            return None
        part = self._take(words.PARTS_OF_TODAY)
        day = Day(offset=0) if part else self._attempt(self._day_behind)
        if part := part or (self._take(words.PARTS) if day else None):
            within = [clock_of(*clock[:2], "", earliest=words.EARLIEST[part]) for clock in clocks]
            clocks = tuple(clock for clock in within if clock is not None)
            return Moments(day, clocks) if len(clocks) == len(within) else None
        return Moments(day, clocks)

    def _day_behind(self) -> Day | None:
        on = self._skip(words.ON)
        day = self._day()
        # "18:30 sunday roast" is no Sunday for certain.
        unsure = day is not None and day.weekday is not None and not on
        return None if unsure and self._next.text else day

    def _day(self) -> Day | None:
        if (offset := self._take(words.FROM_TODAY)) is not None:
            return Day(offset=offset)
        if self._take(words.NEXT_WEEK):
            named = self._attempt(lambda: (self._skip(words.ON), self._take(words.DAY_NAMES))[1])
            return Day(offset=7) if named is None else Day(weekday=named, which="week")
        if (months := self._take(words.NEXT_MONTH)) is not None:
            return Day(months=months)
        day = self._attempt(self._weekday)
        dated = self._attempt(self._calendar_day) or (None if day else self._attempt(self._day_of_month))
        return replace(dated, weekday=day.weekday) if day and dated and not day.which else dated or day

    def _calendar_day(self) -> Day | None:
        self._skip(words.ARTICLES)
        return self._attempt(self._date) or self._attempt(self._date_in_words)

    def _day_of_month(self) -> Day | None:
        """``on the 3rd``, ``am 3.``; without a word in front it is an item of a list."""
        is_led = self.at > 0 and self.tokens[self.at - 1].text in words.ON
        self._skip(words.ARTICLES)
        dom = self._marked_ordinal()
        return Day(date=(None, None, dom)) if is_led and 1 <= dom <= 31 else None

    def _marked_ordinal(self) -> int:
        """An ordinal that shows its ending and counts days of the month; 0: there is none."""
        start, dom = self.at, self._ordinal()
        is_marked = self.at - start > 1
        of_month = self._take(words.OF_THE_MONTH)
        return 0 if not is_marked or (self._next.text in words.COUNTED and not of_month) else dom

    def _weekday(self) -> Day | None:
        which = self._take(words.WHICH) or ""
        name, weekday = self._next.text, self._take(words.DAY_NAMES)
        if weekday is None:
            return None
        if name in words.SHORT_DAYS:
            self._dot()
        return Day(weekday=weekday, which="week" if self._take(words.NEXT_WEEK) else which)

    def _date(self) -> Day | None:
        said = self._kind("date")
        if not said:
            return None
        one, two, *more = map(int, re.findall(r"\d+", said))
        if "-" in said:
            return Day(date=(one, two, more[0]))
        if "/" in said:
            return Day(date=(more[0], *month_and_day(said, one, two, more[0])))
        year = more[0] + (2000 if more[0] < 100 else 0) if more else None
        return Day(date=(year, two, one))

    def _date_in_words(self) -> Day | None:
        month = self._take(words.MONTHS)
        dom = self._ordinal()
        if month is None:
            self._skip(words.OF)
            month = self._take(words.MONTHS)
            self._dot()
        if not dom or month is None:
            return None
        is_year = self._next.kind == "number" and re.fullmatch(r"\d{4}", self._next.text)
        return Day(date=(int(self._kind("number")) if is_year else None, month, dom))

    def _ordinal(self) -> int:
        """A number of one or two digits, with an ending or without; 0: there is none."""
        number = self._digits() or 0
        if number and self._next.is_glued:
            self._skip(words.ORDINALS)
            self._dot()
        return number

    def _digits(self) -> int | None:
        is_short = self._next.kind == "number" and re.fullmatch(r"\d\d?", self._next.text, re.ASCII)
        return int(self._kind("number")) if is_short else None

    # ── times of day ──

    def _part(self) -> tuple[TimeOfDay, ...]:
        """``morning``, ``evening at 8``."""
        part = self._take(words.PARTS)
        return self._within(part) if part else ()

    def _within(self, part: tuple[int, int]) -> tuple[TimeOfDay, ...]:
        return self._clocks(earliest=words.EARLIEST[part]) or (TimeOfDay(*part),)

    def _clocks(self, *, earliest: int | None = None, after_day: bool = False) -> tuple[TimeOfDay, ...]:
        """Times of day; ``earliest``: the first hour that they can mean, from 12 on those after noon."""
        found: list[TimeOfDay] = []
        read = partial(self._clock, earliest=earliest, after_day=after_day)
        while (clock := self._attempt(partial(read, more=bool(found)))) is not None:
            found.append(clock)
        self._clock_was_said = self._clock_was_said or bool(found)
        return tuple(dict.fromkeys(found))

    def _clock(self, *, more: bool, earliest: int | None, after_day: bool) -> TimeOfDay | None:
        if more and not self._and():
            return None
        at = self._skip(words.AT)
        if (named := self._take(words.NAMED_TIMES)) is not None:
            return TimeOfDay(*named)
        around = self._attempt(self._minutes_around)
        figures = self._kind("clock") if around is None else ""
        is_number = self._next.kind == "number"
        is_spoken = not figures and not self._next.text.startswith("0")
        hour, minute = map(int, re.split("[:.]", figures)) if figures else (self._hour(), around or 0)
        if hour is None:
            return None
        half = self._half(at)
        uhr = self._next.text == "uhr"
        oclock = self._take(words.OCLOCK)
        if uhr and around is None:
            is_spoken = is_spoken and not is_number
            minute = minute if figures else self._attempt(self._minutes_behind) or 0
        is_dotted = "." in figures and not after_day
        if not (at or half or oclock or around is not None) and (not figures or is_dotted):
            return None
        if not half and (behind := self._take(words.PARTS_BEHIND)) is not None:
            earliest = behind
        return clock_of(hour, minute, half, earliest=earliest, is_spoken=is_spoken)

    def _half(self, at: str) -> str:
        """``a`` or ``p``; in "um 8 am Bahnhof" it is a word of its own."""
        is_word = at == "um" and self._next.text == "am" and not self._next.is_glued
        return "" if is_word else self._take(words.HALVES) or ""

    def _hour(self) -> int | None:
        return self._take(words.HOURS) if (hour := self._digits()) is None else hour

    def _minutes_around(self) -> int | None:
        """The minutes of ``half past``, ``quarter to``, ``ten past``, ``fünf vor``, before an hour."""
        minutes = self._take(words.TO_THE_HOUR)
        if minutes is None:
            in_words = self._next.kind == "word"
            count = self._count()
            if count is None or count not in range(1, 30):
                return None
            # "at 9 to 10" is more likely from 9 to 10.
            sign = self._take(words.PAST) or self._take(words.MINUTES_BEFORE)
            minutes = int(count) * (sign or (in_words and self._take(words.BEFORE)) or 0)
        start, hour = self.at, self._hour()
        self.at = start
        return minutes if minutes and hour is not None else None

    def _minutes_behind(self) -> int | None:
        """The minutes of ``18 Uhr 30``."""
        return self._digits() if is_minutes(self._next.text) else None
