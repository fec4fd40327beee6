"""When jobs are due: pure, over a year, in zones with and without summer time, from any starting point."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_core.language import speaking
from agent_core.tools.schedule_tool import ScheduleTool
from gateway.proactive.jobs import time_words as words
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, format_timing, parse_request, zone_name
from gateway.proactive.jobs.triggers import (
    Cron,
    Interval,
    Once,
    TriggerInvalid,
    checked_cron,
    newest_due,
    next_after,
    parse_timing,
    shortest_gap,
    zone_of,
)
from tests.rows import rows

EXPRESSIONS = ["30 2 * * *", "*/20 1-3 * * *", "0 9 * * 1-5", "15 */6 1,15 * *"]
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"]
YEAR = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


def runs_of(timing, first: datetime = YEAR[0], end: datetime = YEAR[1]) -> list[datetime]:
    found, at = [], first - timedelta(microseconds=1)
    while (at := next_after(timing, at)) is not None and at < end:
        found.append(at)
    return found


def naive_runs(hour: int, minute: int, zone: str, month: int) -> list[str]:
    """The days on which a program runs that asks each minute whether the clock on the wall shows the time."""
    tz, found, at = ZoneInfo(zone), [], utc(2026, month, 20)
    while at.month == month:
        local = at.astimezone(tz)
        if (local.hour, local.minute) == (hour, minute):
            found.append(f"{local:%m-%d}")
        at += timedelta(minutes=1)
    return found


class TestCron:
    @rows("zone", ZONES)
    @rows("clock", [(2, 30), (1, 30), (2, 0), (3, 0), (0, 0), (9, 0), (1, 45)])
    def test_a_daily_time_comes_once_a_day_in_each_zone(self, zone, clock):
        """365 runs in a year, one on each local day, strictly later each time, whatever the clocks do."""
        hour, minute = clock
        runs = runs_of(Cron(f"{minute} {hour} * * *", zone))
        days = [run.astimezone(ZoneInfo(zone)).date() for run in runs]
        assert len(set(days)) == len(days)
        assert len(runs) in (364, 365)  # the year begins at another moment in each zone
        assert all(timedelta(hours=22) < b - a < timedelta(hours=26) for a, b in pairwise(runs))

    def test_a_minute_by_minute_clock_would_lose_one_and_double_one(self):
        """The control: a clock that is looked at each minute misses a skipped time and repeats another one."""
        assert "03-29" not in naive_runs(2, 30, "Europe/Berlin", 3)
        assert naive_runs(2, 30, "Europe/Berlin", 10).count("10-25") == 2

    def test_a_time_that_is_skipped_runs_at_the_first_moment_after_it(self):
        """02:30 does not exist in Berlin on 2026-03-29: it runs at 03:00 summer time."""
        assert next_after(Cron("30 2 * * *", "Europe/Berlin"), utc(2026, 3, 29)) == utc(2026, 3, 29, 1, 0)
        # Lord Howe moves by half an hour: 02:15 does not exist there on 2026-10-04.
        assert next_after(Cron("15 2 * * *", "Australia/Lord_Howe"), utc(2026, 10, 3, 12)) == utc(
            2026, 10, 3, 15, 30
        )

    def test_a_time_that_occurs_twice_runs_at_its_first_occurrence(self):
        """02:30 occurs twice in Berlin on 2026-10-25: it runs in summer time, and not again."""
        daily = Cron("30 2 * * *", "Europe/Berlin")
        assert next_after(daily, utc(2026, 10, 24, 22)) == utc(2026, 10, 25, 0, 30)
        assert next_after(daily, utc(2026, 10, 25, 0, 30)) == utc(2026, 10, 26, 1, 30)
        # Also for somebody who looks in the second of the two hours.
        assert next_after(daily, utc(2026, 10, 25, 1, 15)) == utc(2026, 10, 26, 1, 30)

    def test_a_star_follows_the_clock_on_the_wall(self):
        """Each half hour: the doubled hour is run through twice, the skipped one not at all."""
        half = Cron("*/30 * * * *", "Europe/Berlin")
        for month in (3, 10):
            runs = runs_of(half, utc(2026, month, 24), utc(2026, month, 31))
            assert len(runs) == 7 * 48
            assert all(later - run == timedelta(minutes=30) for run, later in pairwise(runs))

    @pytest.mark.parametrize(
        ("zone", "expression"),
        [
            pytest.param(
                zone, expression, marks=[pytest.mark.slow] if (row - column) % len(EXPRESSIONS) else []
            )
            for row, zone in enumerate(ZONES)
            for column, expression in enumerate(EXPRESSIONS)
        ],
    )
    def test_it_does_not_depend_on_when_one_looks(self, zone, expression):
        """From every hour of the year the same next run is found, and the same newest one."""
        timing = checked_cron(expression, zone)
        runs = runs_of(timing)
        number, at = 0, YEAR[0] + timedelta(minutes=7)
        while at < runs[-1]:
            while runs[number] <= at:
                number += 1
            assert next_after(timing, at) == runs[number]
            if number:
                assert newest_due(timing, None, at) == runs[number - 1]
                assert newest_due(timing, runs[number - 1], at) is None
            at += timedelta(hours=61)

    def test_years_of_missed_minutes_are_one_run_and_found_at_once(self):
        """Six years of "each minute" that nobody ran are the newest minute; so is one missed leap day."""
        now = utc(2026, 7, 1, 12, 0, 30)
        assert newest_due(Cron("* * * * *", "UTC"), utc(2020, 1, 1), now) == utc(2026, 7, 1, 12)
        assert newest_due(Cron("0 0 29 2 *", "UTC"), utc(2019, 1, 1), now) == utc(2024, 2, 29)
        assert newest_due(Cron("0 0 29 2 *", "UTC"), utc(2024, 3, 1), now) is None

    def test_a_field_of_quartz_that_may_be_anything(self):
        """Models write them for one of the two days."""
        assert checked_cron("0 9 ? * MON", "UTC") == Cron("0 9 * * MON", "UTC")

    @rows(
        ("expression", "zone"),
        [
            ("", "UTC"),
            ("* * * *", "UTC"),
            ("* * * * * *", "UTC"),
            ("60 * * * *", "UTC"),
            ("0 24 * * *", "UTC"),
            ("0 0 31 2 *", "UTC"),
            ("@daily", "UTC"),
            ("0 9 * * MON-XXX", "UTC"),
            ("0 9 * * *", "Mars/Phobos"),
            ("0 9 * * *", "Europe"),
            ("0 9 * * *", "../etc/passwd"),
            ("0 9 * * *", ""),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, expression, zone):
        """A wrong field, a day that no calendar has, a zone that no map has: said at once, not at run time."""
        with pytest.raises(TriggerInvalid):
            checked_cron(expression, zone)


class TestEvery:
    def test_it_is_counted_from_its_start(self):
        """Each 45 minutes from 09:10: summer time and looking times move nothing."""
        timing = Interval(45 * 60, utc(2026, 3, 28, 9, 10))
        assert next_after(timing, utc(2026, 1, 1)) == utc(2026, 3, 28, 9, 10)
        assert next_after(timing, utc(2026, 3, 28, 9, 10)) == utc(2026, 3, 28, 9, 55)
        assert newest_due(timing, utc(2026, 3, 28, 9, 55), utc(2026, 3, 30)) == utc(2026, 3, 29, 23, 25)
        assert newest_due(timing, None, utc(2026, 3, 28)) is None

    @given(
        seconds=st.integers(1, 10_000_000),
        start=st.integers(0, 4_000_000_000),
        now=st.integers(0, 5_000_000_000),
    )
    @settings(max_examples=200)
    def test_newest_and_next_enclose_the_moment(self, seconds, start, now):
        """The newest is not after now, the next one is, and nothing lies between them."""
        timing = Interval(seconds, datetime.fromtimestamp(start, UTC))
        at = datetime.fromtimestamp(now, UTC)
        newest, following = newest_due(timing, None, at), next_after(timing, at)
        assert following is not None
        assert following > at
        if newest is None:
            assert following == timing.start
        else:
            assert newest <= at
            assert following - newest == timedelta(seconds=seconds)


class TestAt:
    def test_once(self):
        """It is due from its instant on, until it has run."""
        timing = Once(utc(2026, 5, 1, 9))
        assert next_after(timing, utc(2026, 5, 1)) == utc(2026, 5, 1, 9)
        assert newest_due(timing, None, utc(2026, 5, 1, 8, 59)) is None
        assert newest_due(timing, None, utc(2027, 5, 1)) == utc(2026, 5, 1, 9)
        assert newest_due(timing, utc(2026, 5, 1, 9), utc(2027, 5, 1)) is None
        assert next_after(timing, utc(2026, 5, 1, 9)) is None


class TestText:
    @rows(
        "timing",
        [
            Once(utc(2026, 5, 1, 9)),
            Interval(3600, utc(2026, 5, 1, 9, 0, 1)),
            Cron("0 9 * * 1-5", "Europe/Berlin"),
            Once(utc(2026, 5, 1, 9), utc(2026, 5, 1, 21)),
            Cron("30 8 * * * | 0 21 * * *", "UTC"),
            Cron("0 9 * * 1", "Europe/Berlin", 2, "weeks", since=date(2026, 11, 30)),
            Cron("0 9 * * 5L", "Europe/Berlin", 3, "months", since=date(2026, 11, 27)),
            Cron("0 9 * * *", "Europe/Berlin", 3, since=date(2026, 11, 28)),
            Cron("*/5 1-3 * * MON#1", "America/Argentina/Buenos_Aires"),
        ],
        ids=str,
    )
    def test_what_is_kept_reads_back(self, timing):
        """The text in the database is the timing again."""
        assert parse_timing(str(timing)) == timing

    @rows(
        "text",
        [
            "",
            "at",
            "at noon",
            "at 2026-05-01T09:00",
            "every 0 from 2026-01-01T00:00:00Z",
            "every x",
            "cron 0 9 * * * in UTC each 2 weeks from 2026-13-01",
            "cron 0 9 * * * in UTC each 2 years from 2026-12-01",
            "cron 0 9",
        ],
    )
    def test_anything_else_is_refused(self, text):
        """A damaged row is an error of that row, with our own exception."""
        with pytest.raises(TriggerInvalid):
            parse_timing(text)

    def test_the_shortest_gap_counts_and_not_the_first(self):
        """Two runs a minute apart once a day are a minute apart."""
        assert shortest_gap(checked_cron("0,1 9 * * *", "UTC"), utc(2026, 1, 1)) == timedelta(minutes=1)
        assert shortest_gap(Once(utc(2026, 1, 1)), utc(2026, 1, 1)) is None
        assert shortest_gap(Interval(90, utc(2026, 1, 1)), utc(2026, 1, 1)) == timedelta(seconds=90)


@rows(
    ("said", "due"),
    [
        ("friday 09:00", utc(2026, 11, 27, 8)),
        ("Monday 12:00", utc(2026, 11, 30, 11)),  # it is Monday, and that is over
        ("monday 18:00", utc(2026, 11, 23, 17)),  # it is Monday, and that is to come
        ("sunday at 09:00", utc(2026, 11, 29, 8)),
    ],
)
def test_a_weekday_is_the_next_one_in_the_zone(said: str, due: datetime) -> None:
    """On a Monday at one in the afternoon in Berlin."""
    now = utc(2026, 11, 23, 12)
    found = parse_request(
        TriggerRequest(at=said), now, zone="Europe/Berlin", min_interval=timedelta(minutes=1)
    )
    assert found == Once(due)


def test_a_weekday_after_the_clocks_change_has_its_time_of_the_day() -> None:
    """On the Friday before the end of summer time "monday 09:00" is nine by the new clock."""
    now = utc(2026, 10, 23, 12)
    wish = TriggerRequest(at="monday 09:00")
    found = parse_request(wish, now, zone="Europe/Berlin", min_interval=timedelta(minutes=1))
    assert found == Once(utc(2026, 10, 26, 8))


SATURDAY = utc(2026, 11, 28, 14, 30)
"""15:30 in Berlin."""


def parsed(said: str, now: datetime = SATURDAY):
    wish = TriggerRequest(at=said)
    return parse_request(wish, now, zone="Europe/Berlin", min_interval=timedelta(minutes=1))


@rows(
    ("said", "due"),
    [
        ("in 2 h 30 min", utc(2026, 11, 28, 17)),
        ("in 2h30m", utc(2026, 11, 28, 17)),
        ("in 90", utc(2026, 11, 28, 16)),
        ("in half an hour", utc(2026, 11, 28, 15)),
        ("in 2 weeks 09:00", utc(2026, 12, 12, 8)),
        ("6pm", utc(2026, 11, 28, 17)),
        ("tonight", utc(2026, 11, 28, 19)),
        ("tonight at 9", utc(2026, 11, 28, 20)),
        ("friday evening at 8", utc(2026, 12, 4, 19)),
        ("next friday 18:00", utc(2026, 12, 4, 17)),
        ("6pm on friday", utc(2026, 12, 4, 17)),
        ("04.12.2026 18:00", utc(2026, 12, 4, 17)),
        ("04.12. 18:00", utc(2026, 12, 4, 17)),
        ("25/12/2026 6 p.m.", utc(2026, 12, 25, 17)),
        ("12/12/2026 at 9", utc(2026, 12, 12, 8)),
        ("4 december 18:00", utc(2026, 12, 4, 17)),
        ("March 4th at 6pm", utc(2027, 3, 4, 17)),
        ("tomorrow at 8", utc(2026, 11, 29, 7)),
        ("2026-12-24T18:00Z", utc(2026, 12, 24, 18)),
        ("2026-12-24 18:00", utc(2026, 12, 24, 17)),
        ("tomorrow at midnight", utc(2026, 11, 29, 23)),
        ("tonight at midnight", utc(2026, 11, 28, 23)),
        ("friday at midnight", utc(2026, 12, 4, 23)),
        ("midnight", utc(2026, 11, 28, 23)),
        ("18 Uhr", utc(2026, 11, 28, 17)),
        ("18:00 Uhr", utc(2026, 11, 28, 17)),
        ("9 o'clock", utc(2026, 11, 28, 20)),
        ("9 Uhr", utc(2026, 11, 29, 8)),
        ("at 8 in the evening", utc(2026, 11, 28, 19)),
        ("in 1.5 hours", utc(2026, 11, 28, 16)),
        ("in two and a half hours", utc(2026, 11, 28, 17)),
        ("in an hour and a half", utc(2026, 11, 28, 16)),
        ("midday", utc(2026, 11, 29, 11)),
        ("monday morning", utc(2026, 11, 30, 8)),
        ("the day after tomorrow at 9", utc(2026, 11, 30, 8)),
        ("next week 09:00", utc(2026, 12, 5, 8)),
        ("monday next week 09:00", utc(2026, 11, 30, 8)),
        ("next week on saturday 09:00", utc(2026, 12, 5, 8)),
        ("tues 09:00", utc(2026, 12, 1, 8)),
        ("morgen um 9", utc(2026, 11, 29, 8)),
        ("heute Abend", utc(2026, 11, 28, 19)),
        ("heute abend um 8", utc(2026, 11, 28, 19)),
        ("nächsten Freitag 18 Uhr", utc(2026, 12, 4, 17)),
        ("in 2 Stunden und 30 Minuten", utc(2026, 11, 28, 17)),
        ("in einer halben Stunde", utc(2026, 11, 28, 15)),
        ("in 1,5 Stunden", utc(2026, 11, 28, 16)),
        ("ÜBERMORGEN um 10 Uhr", utc(2026, 11, 30, 9)),
        ("Montagmorgen", utc(2026, 11, 30, 8)),
        ("24. Dezember 18 Uhr", utc(2026, 12, 24, 17)),
    ],
)
def test_a_time_is_understood_whole(said: str, due: datetime) -> None:
    """On a Saturday afternoon in Berlin."""
    assert parsed(said) == Once(due)


@rows(
    ("said", "kept"),
    [
        ("09:00 and 21:00", "at 2026-11-28T20:00:00Z, 2026-11-29T08:00:00Z"),
        ("every 2 h 30 min", "every 9000 from 2026-11-28T17:00:00Z"),
        ("every day 09:00 and 21:00", "cron 0 9,21 * * * in Europe/Berlin"),
        ("every day at 8:30, 9pm", "cron 30 8 * * * | 0 21 * * * in Europe/Berlin"),
        ("daily at 9", "cron 0 9 * * * in Europe/Berlin"),
        ("every monday, wednesday and friday at 8am", "cron 0 8 * * 1,3,5 in Europe/Berlin"),
        ("every 2 weeks on monday", "cron 0 9 * * 1 in Europe/Berlin each 2 weeks from 2026-11-30"),
        ("every other day at 8", "cron 0 8 * * * in Europe/Berlin each 2 days from 2026-11-29"),
        ("every month on the 1st", "cron 0 9 1 * * in Europe/Berlin"),
        ("jeden Montag um 8", "cron 0 8 * * 1 in Europe/Berlin"),
        ("jeden zweiten Dienstag um 9", "cron 0 9 * * 2 in Europe/Berlin each 2 weeks from 2026-11-30"),
        ("alle 30 Minuten", "every 1800 from 2026-11-28T15:00:00Z"),
        ("täglich um 7 Uhr", "cron 0 7 * * * in Europe/Berlin"),
        ("on mondays at 8", "cron 0 8 * * 1 in Europe/Berlin"),
        ("every evening at 8", "cron 0 20 * * * in Europe/Berlin"),
        ("every day at midnight", "cron 0 0 * * * in Europe/Berlin"),
        ("weekly on monday", "cron 0 9 * * 1 in Europe/Berlin"),
    ],
)
def test_a_repetition_is_understood_whole(said: str, kept: str) -> None:
    """What is kept reads back as the same."""
    assert str(parsed(said)) == kept
    assert parse_timing(kept) == parsed(said)


@rows(
    "said",
    [
        "in 2 hours 30",
        "in 2 months and",
        "in 30 min 2 h",
        "every 2 weeks on monday and",
        "every monday until friday",
        "at 9 and 21",
        "18:30:00",
        "09:00 CET",
        "tonight at 12",
        "3 in the afternoon",
        "9",
        "90 \u017fec",
        "31.02.2027 10:00",
        "10:00 tomorrow or so",
        "in 2,5 Monaten",
        "tonight at 2",
        "every friday at midnight",
        "9:00 on mondays",
        "heute Nacht um 1",
        "2026-11-22 09:00",
    ],
)
def test_what_is_not_understood_whole_is_refused(said: str) -> None:
    """Never half of it: the text names what was not understood, or an example, or what is wrong with it."""
    with pytest.raises(TriggerInvalid, match=r"write|calendar|in the past"):
        parsed(said)


def test_tonight_after_its_hour_is_in_an_hour() -> None:
    """Nobody who says so late means an hour that is over; with a time of day it is over."""
    late = utc(2026, 11, 28, 21, 30)
    assert parsed("tonight", late) == parsed("heute Abend", late) == Once(late + timedelta(hours=1))
    with pytest.raises(TriggerInvalid, match="in the past"):
        parsed("tonight at 8", late)


@pytest.mark.parametrize(
    "said",
    [
        "on mondays 9:00",
        "jeden Tag um 8",
        "alle 2 Tage 9:00",
        "weekly on friday",
        "on the 1st of every month",
        "am letzten Freitag jedes Monats",
    ],
)
async def test_no_repetition_passes_for_a_reminder_that_comes_once(said: str) -> None:
    """What the owner worded is done unasked if it comes once; the tool knows every word that repeats."""
    once = {"action": "add", "text": "tea", "at": "morgen um 9"}
    assert not isinstance(parsed(said), Once)
    assert await ScheduleTool(Mock()).wording({**once, "at": said}) is None
    assert await ScheduleTool(Mock()).wording(once) is not None


@pytest.mark.parametrize(
    "word", sorted([*words.EVERY, *words.ADVERBS, *words.PLURALS, *words.MONTHS_BETWEEN])
)
async def test_the_tool_knows_each_word_that_repeats(word: str) -> None:
    """Also those that nobody has listed here."""
    word = word.replace("ae", "ä").replace("oe", "ö").replace("ue", "ü") if "lich" in word else word
    assert await ScheduleTool(Mock()).wording({"action": "add", "text": "tea", "at": f"{word} 9:00"}) is None


@rows("name", ["UTC", "Etc/UTC", "Zulu", "Etc/Universal"])
def test_coordinated_universal_time_has_one_name(name: str) -> None:
    """However a machine or a person calls it, it is shown as UTC."""
    assert format_timing(checked_cron("0 9 * * *", name), name) == "every day at 09:00 (UTC)"
    assert zone_name(zone_of(name).key) == "UTC"


def test_two_readings_are_named() -> None:
    """In the middle of a week "next friday" is this week's for some, and next week's for others."""
    with pytest.raises(TriggerInvalid, match="2026-04-12 or 2026-12-04"):
        parsed("04/12/2026 18:00")
    with pytest.raises(TriggerInvalid, match="2026-11-27 or 2026-12-04"):
        parsed("next friday 18:00", utc(2026, 11, 25))
    german = re.escape("„nächsten Freitag“ kann 27.11.2026 oder 04.12.2026")
    with speaking("de"), pytest.raises(TriggerInvalid, match=german):
        parsed("nächsten Freitag 18 Uhr", utc(2026, 11, 25))
    assert parsed("next monday 18:00", utc(2026, 11, 25)) == Once(utc(2026, 11, 30, 17))


def test_each_second_week_keeps_its_hour_over_a_year() -> None:
    """26 Mondays, two weeks apart on the calendar, at nine by the wall's clock; from wherever one looks."""
    timing = parsed("every 2 weeks on monday 09:00")
    runs = [run.astimezone(ZoneInfo("Europe/Berlin")) for run in runs_of(timing, SATURDAY, utc(2027, 11, 29))]
    assert [run.date() for run in runs] == [date(2026, 11, 30) + timedelta(days=14 * n) for n in range(27)][
        :26
    ]
    assert {f"{run:%H:%M}" for run in runs} == {"09:00"}
    between = runs[3] + timedelta(days=8)
    assert newest_due(timing, None, between) == runs[3]
    assert next_after(timing, between) == runs[4]


def test_two_times_once_each_are_two_runs() -> None:
    """Of both missed, the newest is due; behind the second there is none."""
    timing = Once(utc(2026, 11, 28, 20), utc(2026, 11, 29, 8))
    assert next_after(timing, SATURDAY) == utc(2026, 11, 28, 20)
    assert next_after(timing, utc(2026, 11, 28, 20)) == utc(2026, 11, 29, 8)
    assert newest_due(timing, SATURDAY, utc(2026, 11, 30)) == utc(2026, 11, 29, 8)
    assert next_after(timing, utc(2026, 11, 29, 8)) is None
