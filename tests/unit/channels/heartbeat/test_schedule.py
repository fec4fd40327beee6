"""Which tick is due: pure, over years, zones and changes of the clock; and the settings behind it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from channels.heartbeat.config import HeartbeatConfig
from channels.heartbeat.tick_schedule import Schedule, parse_instant, tick_name

MINUTE = timedelta(minutes=1)
# From 2000 to 2090.
instants = st.integers(946_684_800_000, 3_786_912_000_000).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)
intervals = st.one_of(st.floats(0.01, 10_080.0), st.sampled_from([0.02, 1.0, 7.0, 30.0, 1440.0]))


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


class TestSchedule:
    @given(now=instants, interval=intervals)
    def test_ticks_do_not_depend_on_when_one_looks(self, now, interval):
        """The newest tick is not in the future, the following one is, and every look between finds the same."""
        schedule = Schedule(interval)
        newest, following = schedule.newest(now), schedule.following(now)
        assert newest <= now < following
        assert following - newest == schedule.interval
        assert schedule.newest(newest) == newest
        assert schedule.newest(following - timedelta(microseconds=1)) == newest
        assert schedule.newest(following) == following

    @given(now=instants, interval=intervals)
    def test_names_read_back(self, now, interval):
        """A tick's name is its instant, and different ticks have different names."""
        tick = Schedule(interval).newest(now)
        assert parse_instant(tick_name(tick)) == tick
        assert tick_name(tick) != tick_name(tick + Schedule(interval).interval)

    def test_names_are_in_utc(self):
        """The zone of the observer does not change the name."""
        assert tick_name(utc(2026, 1, 1, 0, 30).astimezone(ZoneInfo("Asia/Tokyo"))) == "2026-01-01T00:30:00Z"
        assert tick_name(utc(2026, 1, 1) + timedelta(milliseconds=1200)) == "2026-01-01T00:00:01.200Z"

    @pytest.mark.parametrize("name", [None, "", "yesterday", "2026-01-01T00:00:00", "12"])
    def test_a_bad_position_is_none(self, name):
        """What is no instant with a zone counts as no position."""
        assert parse_instant(name) is None

    @given(now=instants, missed=st.integers(0, 5000))
    def test_missed_ticks_are_one(self, now, missed):
        """However many were missed, the newest is due, and after it none until the next instant."""
        schedule = Schedule(30.0)
        newest = schedule.newest(now)
        due = schedule.due(now, newest - missed * schedule.interval)
        assert due == (newest if missed else None)
        assert schedule.due(now, newest) is None

    def test_a_clock_that_was_ahead_does_not_silence_it(self):
        """A last tick of the year 2099 is disregarded; one that is a little ahead is waited for."""
        schedule, now = Schedule(30.0), utc(2026, 1, 1, 12, 10)
        assert schedule.due(now, utc(2099, 1, 1)) == utc(2026, 1, 1, 12)
        assert schedule.due(now, utc(2026, 1, 1, 12, 30)) is None

    @pytest.mark.parametrize(
        ("start", "end", "open_at", "shut_at"),
        [
            ("00:00", "24:00", ["00:00", "12:00", "23:59"], []),
            ("08:00", "22:00", ["08:00", "21:59"], ["07:59", "22:00", "00:00"]),
            ("22:00", "06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "21:59"]),
            ("08:00", "24:00", ["08:00", "23:59"], ["00:00", "07:59"]),
            ("08:00", "00:00", ["08:00", "23:59"], ["00:00", "07:59"]),
            ("09:00", "09:00", [], ["09:00", "08:59", "00:00"]),
        ],
    )
    def test_windows(self, start, end, open_at, shut_at):
        """The start is inside, the end is outside, and a window may cross midnight."""
        zone = ZoneInfo("Europe/Berlin")
        config = HeartbeatConfig(active_hours_start=start, active_hours_end=end, timezone="Europe/Berlin")
        for times, expected in ((open_at, True), (shut_at, False)):
            for time in times:
                hour, minute = map(int, time.split(":"))
                now = datetime(2026, 3, 10, hour, minute, tzinfo=zone).astimezone(UTC)
                assert config.schedule().is_open(now) is expected, time

    def test_a_night_ends_with_one_tick(self):
        """Ticks outside of the window are merged into the newest, which fires when the window opens."""
        schedule = Schedule(60.0, start_minute=8 * 60 + 5, end_minute=22 * 60, zone=UTC)
        last = utc(2026, 1, 1, 21)
        assert schedule.due(utc(2026, 1, 2, 8, 4), last) is None
        assert schedule.due(utc(2026, 1, 2, 8, 5), last) == utc(2026, 1, 2, 8)

    def test_a_daily_tick_finds_the_window(self):
        """An interval of a day stands at midnight UTC and fires in the morning."""
        schedule = Schedule(1440.0, start_minute=8 * 60, end_minute=22 * 60, zone=UTC)
        assert schedule.due(utc(2026, 1, 2, 7, 59), utc(2026, 1, 1)) is None
        assert schedule.due(utc(2026, 1, 2, 8), utc(2026, 1, 1)) == utc(2026, 1, 2)


def fire_through(schedule: Schedule, start: datetime, end: datetime, step: timedelta) -> list[datetime]:
    """What fires if one looks every ``step``."""
    fired, last, now = [], schedule.newest(start), start
    while now < end:
        due = schedule.due(now, last)
        if due is not None:
            fired.append(due)
            last = due
        now += step
    return fired


class TestSummerTime:
    ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")

    @pytest.mark.parametrize("zone", ZONES)
    def test_a_year_around_the_clock_misses_and_doubles_nothing(self, zone):
        """Every instant of a year fires once, both changes of the clock included."""
        fired = fire_through(
            Schedule(30.0, zone=ZoneInfo(zone)), utc(2026, 1, 1), utc(2027, 1, 1), 10 * MINUTE
        )
        assert len(fired) == len(set(fired)) == 365 * 48 - 1
        assert {later - earlier for earlier, later in pairwise(fired)} == {30 * MINUTE}

    @pytest.mark.parametrize("zone", ZONES[:3])
    def test_a_year_of_working_hours(self, zone):
        """From 08:00 to 22:00 local time there are 28 ticks on each of the 365 days."""
        schedule = Schedule(30.0, 8 * 60, 22 * 60, ZoneInfo(zone))
        start = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        end = datetime(2027, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        fired = fire_through(schedule, start, end, 10 * MINUTE)
        days: dict[str, int] = {}
        for instant in fired:
            day = instant.astimezone(ZoneInfo(zone)).date().isoformat()
            days[day] = days.get(day, 0) + 1
        assert len(days) == 365
        assert set(days.values()) == {28}

    def test_an_hour_that_is_skipped(self):
        """On 29 March 2026 Berlin has no 02:00 to 03:00: a window there does not open that day."""
        schedule = Schedule(30.0, 120, 180, ZoneInfo("Europe/Berlin"))
        fired = fire_through(schedule, utc(2026, 3, 28), utc(2026, 3, 31), MINUTE)
        assert [tick_name(instant) for instant in fired] == [
            "2026-03-28T01:00:00Z",
            "2026-03-28T01:30:00Z",
            "2026-03-30T00:00:00Z",
            "2026-03-30T00:30:00Z",
        ]

    def test_an_hour_that_comes_twice(self):
        """On 25 October 2026 Berlin has 02:00 to 03:00 twice: four ticks, each with its own name."""
        schedule = Schedule(30.0, 120, 180, ZoneInfo("Europe/Berlin"))
        fired = fire_through(schedule, utc(2026, 10, 24, 12), utc(2026, 10, 25, 12), MINUTE)
        assert [tick_name(instant) for instant in fired] == [
            "2026-10-25T00:00:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T01:30:00Z",
        ]

    def test_control_a_naive_schedule_is_caught(self):
        """Negative control: ticks that are named by local time are doubled in October."""
        zone = ZoneInfo("Europe/Berlin")
        fired = fire_through(Schedule(30.0, zone=zone), utc(2026, 10, 24), utc(2026, 10, 26), MINUTE)
        naive = [instant.astimezone(zone).replace(tzinfo=None) for instant in fired]
        assert len(set(naive)) < len(naive)


class TestConfig:
    def test_defaults(self):
        """Every half hour, all day, in the machine's zone, with the default pool."""
        config = HeartbeatConfig()
        assert (config.enabled, config.interval_minutes, config.timezone, config.pool) == (
            True,
            30.0,
            "local",
            "",
        )
        assert config.schedule() == Schedule(30.0, 0, 1440, None)
        assert config.schedule().is_open(utc(2026, 1, 1))
        assert config.warnings == ()

    @pytest.mark.parametrize(
        "bad",
        [
            {"interval_minutes": 0},
            {"interval_minutes": -1},
            {"interval_minutes": True},
            {"interval_minutes": "30"},
            {"interval_minutes": float("nan")},
            {"interval_minutes": float("inf")},
            {"interval_minutes": 1e9},
            {"enabled": "yes"},
            {"active_hours_start": "24:00"},
            {"active_hours_start": "8:00"},
            {"active_hours_start": 1320},
            {"active_hours_start": "08:00\n"},
            {"active_hours_start": "0٨:00"},
            {"active_hours_end": "24:01"},
            {"active_hours_end": ""},
            {"active_hours_end": None},
            {"timezone": "Europe/Atlantis"},
            {"timezone": "Europe"},
            {"timezone": "../etc/passwd"},
            {"timezone": "/etc/passwd"},
            {"timezone": ""},
            {"timezone": "a\0b"},
            {"interval": 30},
        ],
        ids=repr,
    )
    def test_mistakes_are_errors(self, bad):
        """What cannot work is refused, with the key in the error."""
        with pytest.raises(ValidationError) as caught:
            HeartbeatConfig(**bad)
        assert [error["loc"] for error in caught.value.errors()] == [tuple(bad)]

    def test_a_time_without_quotes_is_explained(self):
        """YAML makes a number of 22:00; the error says what to do."""
        with pytest.raises(ValidationError, match='in quotes, such as "22:00"'):
            HeartbeatConfig(active_hours_end=1320)

    def test_an_empty_window_is_warned_of(self):
        """Start and end at the same time: allowed, and never fires."""
        assert len(HeartbeatConfig(active_hours_start="09:00", active_hours_end="09:00").warnings) == 1
