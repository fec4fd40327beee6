"""
Reads the parts of a time from its tokens: numbers, ordinals and times of the day (``halb sieben``, ``at 9 and
21:30``). The rules that put them together are those of `time_grammar`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TypeVar

from gateway.proactive.jobs import time_words as words
from gateway.proactive.jobs.time_syntax import TimeOfDay, When, clock_of, is_minutes

_T = TypeVar("_T")


class TokenReader:
    """Reads one text from left to right; a rule that does not fit leaves the position as it was."""

    def __init__(self, text: str) -> None:
        text = text.strip()
        self.text = unicodedata.normalize("NFC", text[:1000]) + text[1000:]
        self.tokens, self.at = words.tokens_of(self.text), 0
        self._clock_was_said = self._ends_in_hours = self._is_bare = False
        self._ordinal_end = 0

    @property
    def end(self) -> int:
        """The place behind the last token that was taken."""
        return self.tokens[self.at - 1].end if self.at else 0

    @property
    def rest(self) -> str:
        """The text that is not read yet."""
        return self.text[self.end :]

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

    def _count(self) -> float | None:
        if self._next.kind == "number" or (self._next.kind == "clock" and "." in self._next.text):
            return float(self._kind(self._next.kind).replace(",", "."))
        return self._take(words.COUNTS)

    def _ordinal(self) -> int:
        """A number of one or two digits, with an ending or without; 0: there is none."""
        number = self._digits() or 0
        if number and self._next.is_glued:
            self._skip(words.ORDINALS)
            self._dot()
        return number

    def _numeral(self) -> int:
        """``3rd``, ``3.``, ``3`` or ``third``, -1 for ``last``; 0: there is none."""
        if (named := self._take(words.NTH)) is not None:
            return named
        start, number = self.at, self._ordinal()
        self._ordinal_end = self.at if self.at - start > 1 else 0
        return number

    def _marked_numeral(self) -> int:
        """The same without figures alone (``3``)."""
        start, number = self.at, self._numeral()
        is_word = self.at > start and self.tokens[start].kind == "word"
        return number if is_word or self._ordinal_end == self.at else 0

    @property
    def _is_unsure_day(self) -> bool:
        """True if what comes next may be counted by the ordinal before it: ``on the 3rd`` floor."""
        follows = self._next
        is_word = follows.kind == "word" and not follows.has_comma
        is_of_time = follows.text in (words.LEADS - words.OF) | words.TIME_WORDS | words.INTRODUCTORY_WORDS
        return 0 < self._ordinal_end == self.at and is_word and not is_of_time

    def _range_of_days(self) -> tuple[int, ...] | None:
        """``monday to thursday``, ``mo-fr``."""
        through = words.DASHES if self._next.text in words.SHORT_GERMAN else words.THROUGH
        first = self._take(words.ENDS_OF_RANGES)
        self._dot()
        last = self._take(words.ENDS_OF_RANGES) if self._skip(through) else None
        if first is None or last is None:
            return None
        self._dot()
        return tuple((first + later) % 7 for later in range((last - first) % 7 + 1))

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
        if not half and (behind := self._take(words.TRAILING_PARTS)) is not None:
            earliest = behind
        return clock_of(hour, minute, half, earliest=earliest, is_spoken=is_spoken)

    def _half(self, at: str) -> str:
        """Return ``a`` or ``p``; in "um 8 am Bahnhof" it is a word of its own."""
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

    # ── zones ──

    def _zone(self) -> str | None:
        """The IANA name for ``Europe/London``, ``London time`` or ``Berliner Zeit``."""
        in_brackets = self._skip("(")
        for count in range(min(5, len(self.tokens) - self.at), 0, -1):
            said = self.tokens[self.at : self.at + count]
            written = self.text[said[0].start : said[-1].end]
            behind = self.tokens[self.at + count : self.at + count + 1]
            is_place = bool(behind) and behind[0].text in words.TIME_OF_A_PLACE and written[:1].isupper()
            name = written.lower()
            names = (name, name.removesuffix("er")) if is_place else (name,) if "/" in name else ()
            if zone := next(filter(None, map(words.zones_by_name().get, names)), ""):
                self.at += count + is_place
                if in_brackets:
                    self._skip(")")
                return zone
        return None

    @property
    def _is_unknown_zone(self) -> bool:
        """True for what may be a zone and is none that is known: ``Wiener Zeit``, ``london time``."""
        first, second, third = (each.text for each in (*self.tokens[self.at :], *[words.NOTHING] * 3)[:3])
        if second == "/":
            return self.tokens[self.at + 1].is_glued and any(
                zone.startswith(f"{first}/") for zone in words.zones_by_name()
            )
        if not words.TIME_OF_A_PLACE & {second, third}:
            return False
        is_place = any(name in words.zones_by_name() for name in (first, f"{first} {second}"))
        return is_place or (second == "zeit" and first.endswith("er"))
