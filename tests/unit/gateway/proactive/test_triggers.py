"""When jobs are due: pure, over a year, in zones with and without summer time, from any starting point."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proactive.jobs.trigger_parsing import TriggerRequest, parse_request, span_of
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
)

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
    @pytest.mark.parametrize("zone", ZONES)
    @pytest.mark.parametrize("clock", [(2, 30), (1, 30), (2, 0), (3, 0), (0, 0), (9, 0), (1, 45)])
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

    @pytest.mark.parametrize("zone", ZONES)
    @pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 1-3 * * *", "0 9 * * 1-5", "15 */6 1,15 * *"])
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

    @pytest.mark.parametrize(
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
    @pytest.mark.parametrize(
        "timing",
        [
            Once(utc(2026, 5, 1, 9)),
            Interval(3600, utc(2026, 5, 1, 9, 0, 1)),
            Cron("0 9 * * 1-5", "Europe/Berlin"),
            Cron("*/5 1-3 * * MON#1", "America/Argentina/Buenos_Aires"),
        ],
        ids=str,
    )
    def test_what_is_kept_reads_back(self, timing):
        """The text in the database is the timing again."""
        assert parse_timing(str(timing)) == timing

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "at",
            "at noon",
            "at 2026-05-01T09:00",
            "every 0 from 2026-01-01T00:00:00Z",
            "every x",
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


def test_a_unit_with_a_long_s_is_read_and_breaks_nothing():
    """The pattern takes it, since it ignores case; the table of units has it in its folded form."""
    assert span_of("90 ſec") == 1.5


@pytest.mark.parametrize(
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
