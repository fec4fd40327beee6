"""Jobs and odd times: clocks that jump, long absences, zones that are gone, leap years, and what a model says for a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from time import process_time as clock_s

import pytest

from agent_core.errors import ToolRetry
from gateway.proactive.jobs.job_service import JobPlace, SessionJobs
from gateway.proactive.jobs.scheduler import job_message
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.proactive.jobs.triggers import Cron, Interval, next_after
from gateway.store.model import Job, JobKind, JobState
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Pending
from gateway.turns.scheduled_job_turn import MERGED
from tests.clock import ManualClock
from tests.integration.schedule_world import BOBS, START, Ruled, later, made, scheduled, scheduler_on, settled
from tests.proactive_world import BOB


class TestFaults:
    async def test_a_short_interval_is_not_lost_in_a_long_jitter(self, tmp_path):
        """A question every minute starts every minute, though it may start up to an hour later."""
        clock = ManualClock(START)
        setting = {"jitter_seconds": 3600.0, "min_interval_minutes": 0.01, "runs_per_day": 0}
        async with scheduled(tmp_path, clock, schedule=setting) as home:
            await home.asked(BOB, "hello")
            place = JobPlace(BOBS, "bot", BOB)
            desk = home.built.proactive.jobs
            await desk.add(place, TriggerRequest(cron="* * * * *"), text="hello", kind=JobKind.ASK)
            for _ in range(60):
                await later(home, clock, seconds=10)
            await home.until(lambda: settled(home))
            rows = await home.built.store.inbox.rows(session=BOBS, limit=100)
        instants = sorted(row.message.received_at for row in rows if row.message.kind == "job")
        assert len(instants) in (9, 10)
        assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(minutes=1)}

    async def test_a_clock_that_is_centuries_ahead_ends_no_job(self, tmp_path):
        """In 2230 nothing runs and nothing is over, and looking takes no time; afterwards all is as before."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock, schedule={"runs_per_day": 0}) as home:
            await home.asked(BOB, "hello")
            desk, place = home.built.proactive.jobs, JobPlace(BOBS, "bot", BOB)
            for wish in (
                TriggerRequest(cron="*/5 * * * *"),
                TriggerRequest(every_minutes=60),
                TriggerRequest(at="2026-05-01 09:30"),
            ):
                await desk.add(place, wish, text="stretch", kind=JobKind.REMIND)
            before = await home.plans.jobs()
            clock.advance(204 * 366 * 86_400)
            began = clock_s()
            await home.built.proactive.scheduler.fire_due()
            assert clock_s() - began < 5
            assert await home.plans.jobs() == before
            clock.advance(-204 * 366 * 86_400)
            await later(home, clock, hours=1, minutes=2)
            await home.chat.answers(3, conversation=f"dm-{BOB}")
            assert {one.state for one in await home.plans.jobs()} == {JobState.ACTIVE}

    async def test_a_job_whose_zone_is_not_there_any_more_says_so_and_stays(self, tmp_path):
        """It is noted where people look, once, the others run, and it can be paused and removed."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "remind me at 09:00 to call Tom")
            [known] = await home.plans.jobs()
            lost = replace(known, id="lostt", timing="cron 0 9 * * * in Atlantis/Capital")
            await home.plans.add_job(lost, at_most=10)
            await later(home, clock, minutes=11)
            noted = await home.plans.job("lostt")
            assert (noted.note, noted.next_at) == ("its trigger cannot be read", known.next_at)
            assert (await home.built.proactive.state())["schedule"]["not_run"] == 1
            await later(home, clock, hours=1)
            await home.chat.answers(2, conversation=f"dm-{BOB}")
            assert await home.plans.job("lostt") == noted
            desk = SessionJobs(home.built.proactive.jobs, JobPlace(BOBS, "bot", BOB))
            assert "its trigger cannot be read" in await desk.list_text()
            assert await desk.change("lostt", "pause") == "lostt is paused."
            with pytest.raises(ToolRetry, match="cannot be resumed: unknown time zone"):
                await desk.change("lostt", "resume")
            assert await desk.change("lostt", "remove") == "lostt is removed."

    @pytest.mark.parametrize(
        "when",
        [
            {"in_minutes": 10**400},
            {"in_minutes": float("nan")},
            {"every_minutes": float("inf")},
            {"every_minutes": True},
            {"at": "9999-12-31 23:59"},
            {"at": "0001-01-01 00:00", "timezone": "Asia/Tokyo"},
            {"at": "2020-01-01 09:00"},
            {"at": "\0"},
            {"cron": "0," * 150 + "0 9 * * *"},
            {"cron": "0 9 * * *", "timezone": "../../etc/passwd"},
            {"cron": "0 9 * * *", "timezone": "A" * 200},
        ],
    )
    async def test_whatever_a_model_says_for_a_time_is_answered(self, tmp_path, when):
        """With a word on what is wrong, so that it can say it better; nothing is kept."""
        async with scheduled(tmp_path, ManualClock(START)) as home:
            desk = SessionJobs(home.built.proactive.jobs, JobPlace(BOBS, "bot", BOB))
            with pytest.raises(ToolRetry, match="Nothing was scheduled: "):
                await desk.add("x", ask=False, when=when)
            assert await home.plans.jobs() == []


class TestAtAnyTime:
    async def test_what_had_to_wait_comes_once(self, tmp_path, monkeypatch):
        """Three hours without a model are one answer, that of the newest run, and say why."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "hello")
            job = await made(home, "what is new?", ask=True)
            clock.advance(3 * 3600)
            waiting = [Pending(job_message(job, START + timedelta(hours=h), late=False)) for h in (1, 2)]
            with monkeypatch.context() as patch:
                patch.setattr(home.built.wakeups.session, "fire", lambda _: None)  # as without a model
                await home.built.store.inbox.accept("matrix", "bot", waiting, {})
            await home.built.proactive.scheduler.fire_due()
            await home.until(lambda: settled(home))
            lines = await home.ledger(f"job:{job.id}")
        assert [outcome for outcome, _ in lines] == ["skipped", "delivered"]
        assert lines[0][1] == MERGED
        assert len(home.chat.seen(f"dm-{BOB}")) == 2

    async def test_a_clock_that_was_ahead_merges_nothing(self, tmp_path):
        """The run of a year that never was is not newer than those of today."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "hello")
            job = await made(home, "stretch")
            await later(home, clock, days=365)
            await home.until(lambda: settled(home))
            await later(home, clock, days=-365)
            for _ in range(2):
                await later(home, clock, hours=1)
                await home.until(lambda: settled(home))
            outcomes = [outcome for outcome, _ in await home.ledger(f"job:{job.id}")]
        assert outcomes == ["delivered"] * 3

    async def test_a_day_back_runs_nothing_again(self, tmp_path):
        """A clock that is set back by a day: what has run is known by its names, and then it goes on."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "hello")
            await made(home, "stretch", cron="0 */6 * * *")
            for _ in range(4):
                await later(home, clock, hours=6)
                await home.until(lambda: settled(home))
            before = len(home.chat.seen(f"dm-{BOB}"))
            clock.advance(-86_400)
            for _ in range(3):
                await later(home, clock, hours=6)
                await home.until(lambda: settled(home))
            assert len(home.chat.seen(f"dm-{BOB}")) == before
            await later(home, clock, hours=12)
            await home.chat.answers(before + 1, conversation=f"dm-{BOB}")

    def test_the_twenty_ninth_of_february(self):
        """It comes in leap years and in no other."""
        leap = Cron("0 9 29 2 *", "Europe/Berlin")
        first = next_after(leap, START)
        assert (first, next_after(leap, first)) == (
            datetime(2028, 2, 29, 8, tzinfo=UTC),
            datetime(2032, 2, 29, 8, tzinfo=UTC),
        )

    async def test_many_jobs_cost_a_look_nothing(self, tmp_path):
        """A look reads what is due soon; all are read at the start, and when the clock was set back."""
        clock = ManualClock(START)
        async with await SqliteQueue.open(tmp_path / "g.db", clock=clock) as store:
            for number in range(300):
                timing = Interval(86_400, START + timedelta(hours=2, seconds=number))
                job = Job(
                    *(f"j{number}", JobKind.REMIND, "x", str(timing), BOBS, "bot", BOB, START),
                    next_at=next_after(timing, START),
                )
                await store.jobs.add_job(job, at_most=10_000)
            read: list[int] = []
            scheduler = scheduler_on(store, clock, Ruled(None), ("*",), _Counted(store.jobs, read))
            for seconds in (0, 30, 30, -7200, 30, 14_250, 30):
                clock.advance(seconds)
                await scheduler.fire_due()
            assert read[:5] == [300, 0, 0, 300, 0]
            assert read[5] == 300, "and once in a while"
            assert 0 < read[6] < 100


class _Counted:
    """Plans that count how many jobs are read at once."""

    def __init__(self, store, read) -> None:
        self._store, self._read = store, read

    async def jobs(self, **which):
        found = await self._store.jobs(**which)
        self._read.append(len(found))
        return found

    def __getattr__(self, name):
        return getattr(self._store, name)
