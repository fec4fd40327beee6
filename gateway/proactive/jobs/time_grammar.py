"""
The grammar of times as people and models write them, in English and German: ``in 2 h 30 min``, ``friday
6pm``, ``halb sieben``, ``jeden Montag um 8``. Pure syntax: what is read becomes an instant in
`trigger_parsing`. One tokenizer, the tables of `time_words`, and rules that take tokens from left to right. A
text is read whole or not at all, which no library does: dateparser takes "at 9 and 21" for the 21st of
September, parsedatetime and recurrent take "half an hour" for an hour and leave out what they do not know;
none reads "halb sieben".
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from functools import partial

from agent_core.language import _
from gateway.proactive.jobs import time_words as words
from gateway.proactive.jobs.time_reader import TokenReader
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

_BETWEEN = " \t\r\n:,."
_DEFAULT = (TimeOfDay(*words.MORNING),)


def read_when(text: str) -> When:
    """Read a text that is a time and nothing else. Raises `NotATime` or `Ambiguous`."""
    reader = _Reader(text)
    when = reader.when()
    if rest := reader.rest.strip(" ,\t\r\n"):
        raise NotATime(
            _("I do not understand {rest} in {text}", rest=f"{rest[:40]!r}", text=f"{reader.text[:80]!r}"),
            reader.example,
        )
    return when


def split_when(text: str) -> tuple[str, str]:
    """Split the time from the text after it. Raises `Ambiguous`, or `NotATime` with an example of both."""
    reader = _Reader(text)
    try:
        when = reader.when()
    except NotATime as error:
        raise NotATime(str(error), _example(*_time_behind(text), error.example)) from None
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
        example = f"{time} at {said}" if is_time(with_at) else with_colon
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
        example = f"{time} {clock} {others}" if is_time(f"{time} {clock}") else with_colon
        raise NotATime(
            _(
                "I am not sure whether {clock} belongs to the time {time}",
                clock=f"{clock!r}",
                time=f"{time!r}",
            ),
            example,
        )
    return time, said


def split_trailing_time(text: str) -> tuple[str, str]:
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
    for token in reader.tokens[1:] if len(reader.tokens) < words.MAX_TOKENS else ():
        if is_time(reader.text[token.start :]):
            return reader.text[token.start :], reader.text[: token.start].strip(_BETWEEN)
    return "", ""


def _example(time: str, said: str, other: str = "") -> str:
    """A reminder with this time and text as it is written, if they are both clear; else with another time."""
    if is_free_of_times(said):
        return f"{time} {said}"
    return _("{time} call Tom", time=other or NotATime("").example)


def is_time(text: str) -> bool:
    """Return True if a text is a time and nothing else."""
    try:
        read_when(text)
    except (NotATime, Ambiguous):
        return False
    return True


def _of_every_month(day: Calendar) -> str:
    """A repetition that can be read, for a day such as the last Friday."""
    return f"the {words.NTH_NAMES[day.nth]} {words.WEEK[day.weekdays[0]].lower()} of every month"


class _Reader(TokenReader):
    """The rules."""

    def when(self) -> When:
        """The longest time that begins here. Raises `NotATime`."""
        found = self._first(
            self._months_from_now, self._span_from_now, self._repeated, self._clock_repeated, self._moments
        )
        if found is None:
            said = _("I do not understand {text} as a time", text=f"{self.text[:40]!r}")
            raise NotATime(said, self.example)
        if isinstance(found, Calendar | Moments) and self._clock_was_said:
            return replace(found, zone=self._attempt(self._zone) or "")
        return found

    @property
    def example(self) -> str:
        """A time that can be read for a text that cannot, repeated if that is to be; empty: any."""
        return _("every 2 hours") if any(each.text in words.EVERY for each in self.tokens) else ""

    def can_continue(self, when: When) -> bool:
        """Return True if the next words may belong to it: ``every monday 9``, ``18:00 CET``."""
        if self._is_unsure_day or (self._clock_was_said and self._is_unknown_zone):
            return True
        first, second, *_ = *self.tokens[self.at :], words.NOTHING, words.NOTHING
        is_text = second.kind == "word" and second.text not in words.TIME_WORDS
        if first.text in words.INTRODUCTORY_WORDS or (first.text == "to" and is_text):
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
        is_slashed = self._next.text == "/" and self._next.is_glued  # "12/24"
        self.at = start
        if follows.text[:1].isdigit():
            return is_joined or counts or is_unit or is_slashed or follows.kind != "number"
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
            return True
        return not self._is_unsure_day

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

    # ── every … ──

    def _repeated(self) -> When | None:
        if (unit := self._take(words.ADVERBS)) is not None:
            found = self._calendar(words.SECONDS[unit], in_days=unit != "h")
            return Calendar(_DEFAULT) if unit == "d" and isinstance(found, Every) else found
        if (months := self._take(words.MONTHS_BETWEEN)) is not None:
            return self._by_months(months)
        if self._skip(words.EVERY):
            return self._first(
                self._each_months,
                self._each_in_month,
                self._each_weekdays,
                self._each_part,
                self._each_count,
            )
        self._skip(words.ON)
        if (dated := self._first(self._of_each_month)) is not None:
            return dated
        start, is_plural = self.at, self._take(words.PLURALS) is not None
        self.at = start
        is_range = not is_plural and self._range_of_days() is not None
        self.at = start
        found = self._each_weekdays() if is_plural or is_range else None
        return found if found and (is_plural or found.clocks is not _DEFAULT) else None

    def _clock_repeated(self) -> When | None:
        """``at 7am every weekday``: the time of day in front."""
        clocks = self._clocks()
        if clocks and (days := self._attempt(self._range_of_days)):
            return Calendar(clocks, weekdays=days)
        if not clocks or self._next.text not in (*words.EVERY, *words.ADVERBS, *words.PLURALS):
            return None
        found = self._repeated()
        if isinstance(found, Every) and not found.seconds % words.SECONDS["d"]:
            found = Calendar(_DEFAULT, round(found.seconds / words.SECONDS["d"]))
        is_open = isinstance(found, Calendar) and found.clocks is _DEFAULT
        return replace(found, clocks=clocks) if isinstance(found, Calendar) and is_open else None

    def _each_part(self) -> When | None:
        part = self._part()
        return Calendar(part) if part else None

    # ── in some months ──

    def _each_months(self) -> When | None:
        """``month``, ``3 months``, ``other year``, behind "every"."""
        other: float | None = 2 if self._skip(words.OTHER) else self._attempt(self._counted)
        count = self._count() if other is None else other
        unit = self._take(words.MONTH_UNITS)
        months = (1 if count is None else count) * (unit or 0)
        is_span = not months or months % 1 or self._next.text in words.OF  # "quarter of an hour"
        return None if is_span else self._by_months(int(months))

    def _by_months(self, count: int) -> When:
        on = self._attempt(self._on_a_date if count % 12 == 0 else self._on_days)
        found = on or self._attempt(self._on_days) or Calendar(_DEFAULT)
        self._ordinal_end = 0
        each = 1 if found.month and count == 12 else count
        return replace(found, clocks=self._times_of_day() or _DEFAULT, count=each, unit="months")

    def _on_a_date(self) -> Calendar | None:
        self._skip(words.ON)
        day = self._calendar_day()
        year, month, dom = (day and day.date) or (None, None, 0)
        if year is not None or month is None:
            return None
        check_day(month, dom)
        return Calendar(_DEFAULT, days_of_month=(dom,), month=month)

    def _on_days(self) -> Calendar | None:
        return self._days_in_month() if self._skip(words.ON) else self._nth_weekday()

    def _days_in_month(self) -> Calendar | None:
        return self._attempt(self._nth_weekday) or self._attempt(self._days_of_month)

    def _nth_weekday(self) -> Calendar | None:
        """``first monday``, ``letzten Freitag``."""
        self._skip(words.ARTICLES)
        nth, days = self._marked_numeral(), self._take(words.EACH_DAYS) or ()
        is_one = -1 <= nth <= 5 and nth and len(days) == 1
        return Calendar(_DEFAULT, unit="months", weekdays=days, nth=nth) if is_one else None

    def _days_of_month(self) -> Calendar | None:
        """``the 1st and 15th``, ``day 3``, ``last day``."""
        found: tuple[int, ...] = ()
        while (dom := self._attempt(partial(self._more_days_of_month, more=bool(found)))) is not None:
            found += (dom,)
        return Calendar(_DEFAULT, unit="months", days_of_month=found) if found else None

    def _more_days_of_month(self, *, more: bool) -> int | None:
        if more and not self._and():
            return None
        self._skip(words.ARTICLES)
        self._skip(words.DAY)
        dom = self._numeral()
        is_sure = not more or self._ordinal_end == self.at
        self._skip(words.DAY)
        is_counted = self._next.text in (*words.EACH_DAYS, *words.UNITS, *words.MONTHS_AHEAD)
        dom = 31 if dom == -1 else dom
        return dom if is_sure and not is_counted and 1 <= dom <= 31 else None

    def _each_in_month(self) -> When | None:
        """``first monday``, ``1st of the month``, behind "every"."""
        found = self._days_in_month()
        if found is None:
            return None
        said = self.text[: self.end]
        of_month = self._take(words.OF_THE_MONTH) or self._take(words.OF_EACH_MONTH)
        is_by_count = found.nth == 2 or not (found.nth or self._ordinal_end == self.at)
        if not of_month and is_by_count:
            return None
        if not of_month and found.nth > 2:
            weekday = words.WEEK[found.weekdays[0]].lower()
            raise Ambiguous(
                _(
                    "{said} can be {first} or {second}; write the one that you mean like this",
                    said=f"{said!r}",
                    first=f"'every {found.nth} weeks on {weekday}'",
                    second=f"{_of_every_month(found)!r}",
                )
            )
        return self._with_clocks(found)

    def _of_each_month(self) -> When | None:
        found = self._days_in_month()
        if found is not None and self._take(words.OF_EACH_MONTH):
            return self._with_clocks(found)
        if found is not None and found.nth:
            self._take(words.OF_THE_MONTH)
            said = self.text[: self.end]
            month = f"{_of_every_month(found)!r}"
            raise Ambiguous(
                _("{said} can be {month} or one day; write this or the date", said=f"{said!r}", month=month)
            )
        return None

    def _with_clocks(self, found: Calendar) -> Calendar:
        clocks = self._times_of_day() if found.nth else self._clocks()
        return replace(found, clocks=clocks or _DEFAULT)

    # ── in some weeks, or after some days ──

    def _each_weekdays(self) -> Calendar | None:
        days = self._attempt(self._days_but) or self._weekdays()
        return Calendar(self._times_of_day() or _DEFAULT, weekdays=days) if days else None

    def _days_but(self) -> tuple[int, ...] | None:
        """``weekday except friday``; of ``day except sunday`` the six others."""
        days = self._weekdays() or (tuple(range(7)) if self._take(words.UNITS) == "d" else ())
        if not days or not self._skip(words.EXCEPT):
            return None
        others = self._weekdays()
        return tuple(sorted({*days} - {*others})) if others else None

    def _times_of_day(self) -> tuple[TimeOfDay, ...]:
        return self._clocks(after_day=True) or self._part()

    def _weekdays(self) -> tuple[int, ...]:
        found: tuple[int, ...] = ()
        while days := self._attempt(partial(self._more_weekdays, more=bool(found))):
            found += days
        return tuple(sorted(set(found)))

    def _more_weekdays(self, *, more: bool) -> tuple[int, ...] | None:
        if more and not self._and():
            return None
        return self._attempt(self._range_of_days) or self._take(words.EACH_DAYS)

    def _each_count(self) -> When | None:
        count = 2 if self._skip(words.OTHER) else self._attempt(self._counted)
        if count == 2 and (weekdays := self._weekdays()):
            return Calendar(self._times_of_day() or _DEFAULT, 2, "weeks", weekdays=weekdays)
        seconds, in_days = self._span(implied=float(count or 1))
        return self._calendar(seconds, in_days=in_days) if seconds else None

    def _counted(self) -> int | None:
        """``2nd``, ``2.`` or ``second`` of every so many."""
        number = self._marked_numeral()
        return number if number > 1 else None

    def _calendar(self, seconds: float, *, in_days: bool) -> When | None:
        days = round(seconds / words.SECONDS["d"])
        in_weeks = in_days and days % 7 == 0
        is_on = bool(self._skip(words.ON)) or self._next.text in words.PLURALS
        start, on_days = self.at, self._weekdays() if is_on or in_weeks else ()
        clocks = self._times_of_day() if in_days or on_days else ()
        if on_days and (is_on or clocks):
            return Calendar(clocks or _DEFAULT, days // 7, "weeks", weekdays=on_days) if in_weeks else None
        if on_days:
            self.at, clocks = start, ()
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
        dom = self._numeral()
        is_marked = self._ordinal_end == self.at
        of_month = self._take(words.OF_THE_MONTH)
        return Day(date=(None, None, dom)) if is_led and (is_marked or of_month) and 1 <= dom <= 31 else None

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
