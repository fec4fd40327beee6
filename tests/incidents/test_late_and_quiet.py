"""
A repeated reminder that was missed came without a word of being late, though the README says that it says so. Over the
active hours' end nothing stood in the ledger, and the next check-in that was named lay in the middle of the night.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from channels.heartbeat.channel import OUTSIDE
from channels.heartbeat.tick_schedule import Schedule
from gateway.operations.job_operations import schedule_context
from gateway.operations.operation_context import OperationContext
from tests.clock import EPOCH, ManualClock
from tests.integration.schedule_world import START, later, made, said, scheduled
from tests.proactive_world import ANN, BOB, Weeks, house

NIGHT = {"active_hours_start": "08:00", "active_hours_end": "22:00", "timezone": "UTC"}


@pytest.mark.parametrize(("late", "note"), [("say", True), ("plain", False)])
@pytest.mark.parametrize("ask", [False, True])
async def test_a_repeated_job_that_was_missed_says_that_it_is_late(tmp_path, late, note, ask):
    """Of the missed ones the newest comes at the start, and says when it was due; the next one is in time."""
    clock, setting = ManualClock(START), {"misfire": late, "jitter_seconds": 0.0}
    async with scheduled(tmp_path, clock, schedule=setting) as home:
        await home.asked(BOB, "hello")
        await made(home, "stretch", ask=ask)
        chat = home.chat
    clock.advance(timedelta(days=1, minutes=20).total_seconds())
    async with scheduled(tmp_path, clock, schedule=setting, chat=chat) as home:
        await chat.answers(2, conversation=f"dm-{BOB}")
        await later(home, clock, minutes=40)
        await chat.answers(3, conversation=f"dm-{BOB}")
        asked = [messages[-1].content for messages in home.model.asked]
    texts = asked[-2:] if ask else said(home)[1:]
    assert ["2026-05-02 08:00 UTC and is late" in text for text in texts] == [note, False]
    assert all("stretch" in text for text in texts)


async def test_one_that_starts_a_little_later_by_itself_is_not_late(tmp_path):
    """The control: a question's own jitter of up to half an hour is no lateness."""
    clock, setting = ManualClock(START), {"jitter_seconds": 1800.0}
    async with scheduled(tmp_path, clock, schedule=setting) as home:
        await made(home, "stretch", ask=True)
        for _ in range(18):
            await later(home, clock, minutes=5)
        await home.chat.answers(1, conversation=f"dm-{BOB}")
        asked = [messages[-1].content for messages in home.model.asked]
    assert any("stretch" in text for text in asked)
    assert not any("is late" in text for text in asked)


@pytest.mark.parametrize("checklist", [None, "- [ ] call mum\n"])
async def test_each_night_is_one_line_of_the_ledger(tmp_path, checklist):
    """Two days, and what is left out at night is said once a night; by day all is as it was."""
    days = Weeks(2)
    async with house(
        tmp_path,
        "HEARTBEAT_OK",
        checklist=checklist,
        heartbeat={"interval_minutes": 30.0, **NIGHT},
        clock=days.clock,
        sleep=days.sleep,
    ) as home:
        await home.asked(ANN, "hello")
        await days.pass_by()
        entries = await home.plans.ledger(name="heartbeat", limit=1000)
    quiet = [entry for entry in entries if entry.reason == OUTSIDE]
    assert [entry.outcome for entry in quiet] == ["skipped"] * 3
    hours = sorted((entry.instant - EPOCH) / timedelta(hours=1) for entry in quiet)
    assert hours == pytest.approx([0.5, 22.0, 46.0], abs=0.05)
    assert all(entry.ticks == 1 for entry in quiet)


async def test_a_dry_run_at_night_names_the_morning(tmp_path):
    """So does `status`, and so does the channel's own report."""
    config = {"interval_minutes": 30.0, **NIGHT}
    async with house(tmp_path, "x", heartbeat=config, clock=ManualClock()) as home:
        planned = schedule_context(home.built.proactive, home.built.conversations)
        operations = OperationContext(home.built.store, home.built.memory, planned=planned)
        dry = await operations.call("heartbeat_now", {"dry_run": True})
        told = (await home.built.proactive.state())["heartbeat"]["next"]
        await home.until(lambda: "next_tick" in home.built.supervisor.status("heartbeat").facts)
        reported = home.built.supervisor.status("heartbeat").facts["next_tick"]
    assert (dry["active"], dry["next"], told, reported) == (False, *["2026-01-01T08:00:00Z"] * 3)


@pytest.mark.parametrize(
    ("at", "interval", "following"),
    [
        ("12:10", 30, "12:30"),
        ("21:40", 30, "08:00+1"),
        ("21:20", 30, "21:30"),
        ("23:10", 30, "08:00+1"),
        ("03:00", 30, "08:00"),
        ("03:00", 24 * 60, "08:00"),
        ("09:00", 24 * 60, "08:00+1"),
        ("23:00", 24 * 60, "08:00+1"),
        ("09:00", 7 * 24 * 60, "08:00+7"),
    ],
)
def test_the_next_check_in_is_within_the_active_hours(at, interval, following):
    """Pure: the time at which the next tick fires. The first of January 2026 is the instant of a week's tick."""
    clock, _, days = following.partition("+")
    schedule = Schedule(interval, start_minute=8 * 60, end_minute=22 * 60)
    now = datetime.fromisoformat(f"2026-01-01T{at}:00+00:00")
    told = schedule.next_run(now)
    expected = datetime.fromisoformat(f"2026-01-01T{clock}:00+00:00") + timedelta(days=int(days or 0))
    assert told == expected
    assert schedule.is_open(told)


def test_it_is_what_really_fires():
    """Minute by minute over a change to summer time: whatever was told last is when the next tick fires."""
    for interval in (7.0, 100.0, 24 * 60.0):
        schedule = Schedule(interval, 22 * 60 + 30, 3 * 60, ZoneInfo("Europe/Berlin"))
        now = datetime(2026, 3, 27, 0, 0, tzinfo=UTC)
        last, told = schedule.newest(now), None
        for _ in range(4 * 24 * 60):
            now += timedelta(minutes=1)
            due = schedule.due(now, last)
            if due is not None:
                if told is not None:
                    assert abs(now - told) < timedelta(minutes=1), interval
                last, told = due, None
            if told is None or now.minute == 0:
                again = schedule.next_run(now)
                assert told in (None, again)
                told = again


def test_without_active_hours_there_is_no_next_one():
    """An empty window never opens."""
    assert Schedule(30, 540, 540).next_run(EPOCH) is None
