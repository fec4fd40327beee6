"""The heartbeat: which tick is due, whether there is anything to do, and a channel that lives through days."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.base import DeliveryFailed, LinkState, Receipt
from channels.heartbeat import HeartbeatChannel, HeartbeatConfig
from channels.heartbeat.schedule import Schedule, parse_instant, tick_name
from tests.clock import EPOCH, LoopClock
from tests.inbox_double import MemoryInbox, running

MINUTE = timedelta(minutes=1)
instants = st.datetimes(
    min_value=datetime(2000, 1, 1), max_value=datetime(2090, 1, 1), timezones=st.just(UTC)
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
    ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC")

    @pytest.mark.parametrize("zone", ZONES)
    def test_a_year_around_the_clock_misses_and_doubles_nothing(self, zone):
        """Every instant of a year fires once, both changes of the clock included."""
        fired = fire_through(Schedule(30.0, zone=ZoneInfo(zone)), utc(2026, 1, 1), utc(2027, 1, 1), 10 * MINUTE)
        assert len(fired) == len(set(fired)) == 365 * 48 - 1
        assert {later - earlier for earlier, later in zip(fired, fired[1:], strict=False)} == {30 * MINUTE}

    @pytest.mark.parametrize("zone", ZONES)
    def test_a_year_of_working_hours(self, zone):
        """From 08:00 to 22:00 local time there are 28 ticks on each of the 365 days."""
        schedule = Schedule(30.0, 8 * 60, 22 * 60, ZoneInfo(zone))
        start = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        end = datetime(2027, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        fired = fire_through(schedule, start, end, 5 * MINUTE)
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
        assert (config.enabled, config.interval_minutes, config.timezone, config.pool) == (True, 30.0, "local", "")
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


@pytest.fixture
def anyio_backend(virtual_backend):
    return virtual_backend


class Beat:
    """A heartbeat in virtual time, over several lives."""

    def __init__(self, tmp_path, **schedule) -> None:
        self.clock = LoopClock()
        self.clock.now()
        self.offset = timedelta(0)
        self.inbox = MemoryInbox()
        self.file = tmp_path / "HEARTBEAT.md"
        self.file.write_text("- [ ] water the plants\n")
        self.schedule = Schedule(**{"interval_minutes": 30.0, **schedule})

    def now(self) -> datetime:
        return self.clock.now() + self.offset

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def channel(self, **options) -> HeartbeatChannel:
        options = {"look_every_s": 1800.0, **options}
        return HeartbeatChannel(self.schedule, checklist=self.file, clock=self, **options)

    async def live(self, hours: float, **options) -> None:
        async with running(self.channel(**options), self.inbox) as run:
            await anyio.sleep(hours * 3600)
            assert run.error is None

    @property
    def ticks(self) -> list[str]:
        return [message.native_id for message in self.inbox.accepted]

    def name(self, hours: float) -> str:
        return tick_name(EPOCH + timedelta(hours=hours))


class TestChannel:
    async def test_three_days(self, tmp_path):
        """A tick every half hour, each once, named by its instant."""
        beat = Beat(tmp_path)
        await anyio.sleep(60)
        await beat.live(72)
        assert beat.ticks == [beat.name(half / 2) for half in range(1, 145)]

    async def test_what_a_tick_is(self, tmp_path):
        """A message of the kind "tick" in the heartbeat's own session, with the checklist in it."""
        beat = Beat(tmp_path)
        await beat.live(0.6)
        (tick,) = beat.inbox.accepted
        assert tick.kind == "tick"
        assert tick.session == SessionKey("heartbeat", "owner")
        assert (tick.sender.address, tick.sender.verified) == ("heartbeat", True)
        assert "water the plants" in tick.text
        assert "HEARTBEAT_OK" in tick.text
        assert beat.inbox.positions == {"last_tick": tick.native_id}
        assert beat.inbox.state is LinkState.UP
        assert beat.inbox.facts[-1]["next_tick"] == beat.name(1.0)

    async def test_the_first_start_has_missed_nothing(self, tmp_path):
        """A new home does not begin with a tick of the past."""
        beat = Beat(tmp_path)
        await anyio.sleep(20 * 60)
        await beat.live(0.1)
        assert beat.ticks == []
        assert beat.inbox.positions == {"last_tick": beat.name(0)}

    async def test_missed_ticks_are_one(self, tmp_path):
        """After a day off there is one tick at the start, the newest."""
        beat = Beat(tmp_path)
        await beat.live(1.1)
        await anyio.sleep(86_400)
        await beat.live(0.1)
        assert beat.ticks == [beat.name(0.5), beat.name(1.0), beat.name(25.0)]

    async def test_a_restart_at_every_moment_repeats_nothing(self, tmp_path):
        """Ten restarts per interval, for a day: the same ticks as without any."""
        beat = Beat(tmp_path)
        await beat.live(0.01)
        for _ in range(480):
            await beat.live(0.05)
        assert beat.ticks == [beat.name(half / 2) for half in range(1, 49)]

    async def test_two_processes_mean_the_same_tick(self, tmp_path):
        """Two clocks that fire the same instant write one message."""
        beat = Beat(tmp_path)
        async with running(beat.channel(), beat.inbox), running(beat.channel(), beat.inbox):
            await anyio.sleep(3 * 3600 + 60)
        assert len(beat.inbox.offered) == 12
        assert beat.ticks == [beat.name(half / 2) for half in range(1, 7)]

    async def test_a_kill_before_the_commit_fires_again(self, tmp_path):
        """A tick that hung in `accept` at the kill comes after the restart, under its name, once."""
        beat = Beat(tmp_path)
        await beat.live(0.1)
        beat.inbox.hold()
        await beat.live(0.5)
        beat.inbox.release()
        await beat.live(0.1)
        assert len(beat.inbox.offered) == 2
        assert beat.ticks == [beat.name(0.5)]

    async def test_a_lost_position_repeats_nothing(self, tmp_path):
        """Even if the last tick is forgotten, its name is known."""
        beat = Beat(tmp_path)
        await beat.live(0.6)
        beat.inbox.positions["last_tick"] = beat.name(0)
        await beat.live(0.1)
        assert len(beat.inbox.offered) == 2
        assert beat.ticks == [beat.name(0.5)]

    async def test_nothing_to_do_is_no_message(self, tmp_path):
        """An empty checklist for two days: no message at all, only the position moves."""
        beat = Beat(tmp_path)
        beat.file.write_text("# Heartbeat\n\n- [x] water the plants\n- [ ]\n")
        await beat.live(47.9)
        assert beat.inbox.offered == []
        assert beat.inbox.positions == {"last_tick": beat.name(47.5)}
        beat.file.write_text("- something new\n")
        await beat.live(0.2)
        assert beat.ticks == [beat.name(48)]

    @pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "dangling"])
    async def test_without_a_readable_checklist_there_is_nothing_to_do(self, tmp_path, kind):
        """Whatever stands in the file's place, the heartbeat goes on."""
        beat = Beat(tmp_path)
        beat.file.unlink()
        if kind == "folder":
            beat.file.mkdir()
        elif kind == "pipe":
            os.mkfifo(beat.file)
        elif kind == "dangling":
            beat.file.symlink_to(tmp_path / "nowhere")
        await beat.live(1.1)
        assert beat.inbox.offered == []
        assert beat.inbox.positions == {"last_tick": beat.name(1.0)}

    async def test_a_huge_binary_checklist_fits_into_a_message(self, tmp_path):
        """Ten megabytes of anything become a tick of a few pages."""
        beat = Beat(tmp_path)
        beat.file.write_bytes(os.urandom(1000) * 10_000)
        await beat.live(0.6)
        (tick,) = beat.inbox.accepted
        assert len(tick.text) < 17_000
        assert "\0" not in tick.text

    async def test_active_hours(self, tmp_path):
        """From 22:00 to 02:00 UTC, three days long: eight ticks a night, and no other."""
        beat = Beat(tmp_path, start_minute=22 * 60, end_minute=2 * 60)
        await beat.live(72)
        hours = [0.5, 1.0, 1.5] + [day * 24 + h / 2 for day in (0, 1, 2) for h in range(44, 52)]
        assert beat.ticks == [beat.name(hour) for hour in hours if hour < 72]

    async def test_the_clock_jumps_forward(self, tmp_path):
        """After a suspended night the machine fires the newest tick within a minute."""
        beat = Beat(tmp_path)
        async with running(beat.channel(look_every_s=60.0), beat.inbox):
            await anyio.sleep(10 * 60)
            beat.offset = timedelta(hours=8)
            await anyio.sleep(61)
        assert beat.ticks == [beat.name(8)]

    async def test_the_clock_jumps_back(self, tmp_path):
        """Time that passes a second time fires nothing a second time, and nothing for long."""
        beat = Beat(tmp_path)
        await beat.live(4.1)
        beat.offset = timedelta(hours=-3)
        await beat.live(4.1)
        assert beat.ticks == [beat.name(half / 2) for half in range(1, 11)]

    async def test_a_very_short_interval(self, tmp_path):
        """0.02 minutes are 1.2 seconds."""
        beat = Beat(tmp_path, interval_minutes=0.02)
        await beat.live(60 / 3600 + 0.0001)
        assert len(beat.ticks) == 50
        assert beat.ticks[0] == "2026-01-01T00:00:01.200Z"


def alert(text: str) -> OutboundMessage:
    return OutboundMessage(
        id="k1",
        channel="heartbeat",
        account="heartbeat",
        session=SessionKey("heartbeat", "owner"),
        text=text,
        created_at=EPOCH,
        kind=OutboundKind.ALERT,
    )


class TestDelivering:
    async def test_nobody_reads_messages_to_the_clock(self, tmp_path):
        """Without a target an alert is refused for good, with a plain reason, and nothing is uncertain."""
        marks = []

        async def mark():
            marks.append(1)

        with pytest.raises(DeliveryFailed, match="no target") as caught:
            await Beat(tmp_path).channel().deliver(alert("the plants!"), uncertain=mark)
        assert not caught.value.temporary
        assert marks == []

    async def test_a_target_gets_alerts_and_no_silence(self, tmp_path):
        """What is said is forwarded with its mark; "nothing to say" is forwarded to nobody."""
        sent, marks = [], []

        async def mark():
            marks.append(1)

        async def forward(message, uncertain):
            await uncertain()
            sent.append(message.text)
            return Receipt("there")

        channel = Beat(tmp_path).channel(forward=forward)
        assert await channel.deliver(alert("the plants!"), uncertain=mark) == Receipt("there")
        assert (await channel.deliver(alert("HEARTBEAT_OK"), uncertain=mark)).provider_id
        assert sent == ["the plants!"]
        assert marks == [1]

    async def test_hints_and_closing_are_quiet(self, tmp_path):
        """Nothing happens and nothing raises."""
        channel = Beat(tmp_path).channel()
        await channel.typing(SessionKey("heartbeat", "owner"), on=True)
        await channel.preview(SessionKey("heartbeat", "owner"), "half")
        assert await channel.probe(alert("x")) is None
        await channel.aclose()
        await channel.aclose()
