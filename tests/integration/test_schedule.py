"""Jobs through the whole gateway: made in chat, run at their time, once, for whom they were made."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from agent_core.errors import ToolDenied, ToolRetry
from agent_core.messages import OutboundKind, SessionKey
from gateway.operations.job_operations import schedule_context
from gateway.operations.operation_context import OperationContext
from gateway.proactive.jobs.job_service import JobPlace, SessionJobs
from gateway.proactive.jobs.scheduler import job_message
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.model import JobKind, JobState
from gateway.store.stores import Pending
from tests.clock import ManualClock
from tests.integration.schedule_world import BOBS, START, later, said, scheduled, settled
from tests.proactive_world import ANN, BOB


async def job(home, number: int = 0):
    return (await home.plans.jobs(done=True))[number]


class TestReminders:
    async def test_remind_me_in_real_time(self, tmp_path):
        """Asked for in chat, it comes by itself, word for word, without a model, and can be asked about."""
        async with scheduled(tmp_path) as home:
            answer = await home.asked(BOB, "remind me in 1 second to take the pills")
            assert answer.startswith("All right. Scheduled as ")
            await home.chat.answers(2, conversation=f"dm-{BOB}")
            calls = len(home.model.asked)
            await home.asked(BOB, "what did you mean?")
        assert said(home)[1] == "take the pills"
        assert calls == 2  # the request, and the answer after the tool
        assert home.model.asked[-1][-2].content == "take the pills"

    async def test_at_a_time_of_the_day_and_never_twice(self, tmp_path):
        """At 09:00, not before; and after it nothing comes any more."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            assert "once, on Fri 2026-05-01 09:00 UTC" in await home.asked(
                BOB, "remind me at 09:00 to call Tom"
            )
            await later(home, clock, minutes=59)
            assert len(said(home)) == 1
            await later(home, clock, minutes=1)
            await home.chat.answers(2, conversation=f"dm-{BOB}")
            for _ in range(3):
                await later(home, clock, days=1)
            await home.until(lambda: settled(home))
            assert (await job(home)).state is JobState.DONE
        assert said(home)[1:] == ["call Tom"]

    @pytest.mark.parametrize(("late", "note"), [("say", True), ("plain", False)])
    async def test_one_that_fell_due_while_nobody_ran_comes_at_the_start(self, tmp_path, late, note):
        """Two days late it is still said, with or without telling that it is late."""
        clock, setting = ManualClock(START), {"misfire": late}
        async with scheduled(tmp_path, clock, schedule=setting) as home:
            await home.asked(BOB, "remind me at 09:00 to call Tom")
            chat = home.chat
        clock.advance(2 * 86_400)
        async with scheduled(tmp_path, clock, schedule=setting, chat=chat) as home:
            await chat.answers(2, conversation=f"dm-{BOB}")
        assert said(home)[1].startswith("call Tom")
        assert ("This was due on Fri 2026-05-01 09:00 UTC and is late" in said(home)[1]) is note


class TestRepeated:
    async def test_missed_runs_are_one(self, tmp_path):
        """A day without looking is one run, at the newest time, and then it goes on as before."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "remind me every 30 minutes to stretch")
            await later(home, clock, hours=24, minutes=10)
            await home.chat.answers(2, conversation=f"dm-{BOB}")
            await later(home, clock, minutes=10)
            assert len(said(home)) == 2
            await later(home, clock, minutes=10)
            await home.chat.answers(3, conversation=f"dm-{BOB}")
            rows = await home.built.store.inbox.rows(session=BOBS)
        names = [row.message.native_id for row in rows if row.message.kind == "job"]
        assert [name.partition(":")[2].partition(":")[2] for name in names] == [
            "2026-05-02T08:30:00Z",
            "2026-05-02T08:00:00Z",
        ]

    async def test_clock_jumps_and_restarts_run_nothing_twice(self, tmp_path):
        """Back by hours, forward, a year that never was, and restarts: each time of the day runs once."""
        clock, chat = ManualClock(START), None
        for hours in (0, 1, -3, 4, 24 * 365, -24 * 365, 1, 1):
            clock.advance(hours * 3600)
            async with scheduled(tmp_path, clock, **({"chat": chat} if chat else {})) as home:
                if chat is None:
                    await home.asked(BOB, "remind me every 60 minutes to stretch")
                chat = home.chat
                await home.built.proactive.scheduler.fire_due()
                await home.until(lambda: settled(home))
        # 09:00, 10:00 (the jump back gives it no second run), the false year, and the true time after it.
        assert len(chat.seen(f"dm-{BOB}")) - 1 == 5

    async def test_two_processes_run_it_once(self, tmp_path):
        """Two schedulers that look at the same moment offer the same row, which is taken once."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "remind me at 09:00 to call Tom")
            [known] = await home.plans.jobs()
            clock.advance(3600)
            scheduler = home.built.proactive.scheduler
            await scheduler.fire_due()
            # The other one has read the job before the first one had moved it on.
            await scheduler._look_at(known, clock.now())
            await home.chat.answers(2, conversation=f"dm-{BOB}")
            await home.until(lambda: settled(home))
        assert said(home)[1:] == ["call Tom"]


class TestQuestions:
    async def test_the_model_is_asked_in_the_conversation_with_its_memory_and_tools(self, tmp_path):
        """It answers where it was made, with that person's memory; and it cannot make jobs from there."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "remember that my cat is called Tom")
            operations = OperationContext(
                home.built.store,
                home.built.memory,
                planned=schedule_context(home.built.proactive, home.built.conversations),
            )
            await operations.call(
                "cron_add",
                {
                    "text": "what do you know about me?",
                    "cron": "0 9 * * *",
                    "ask": True,
                    "session": str(BOBS),
                },
            )
            await operations.call(
                "cron_add",
                {
                    "text": "remind me in 5 minutes to loop",
                    "cron": "0 10 * * *",
                    "ask": True,
                    "session": str(BOBS),
                },
            )
            assert {one.person for one in await home.plans.jobs()} == {BOB}
            await later(home, clock, hours=1)
            await home.chat.answers(2, conversation=f"dm-{BOB}")
            await later(home, clock, hours=1)
            await home.chat.answers(3, conversation=f"dm-{BOB}")
            assert len(await home.plans.jobs()) == 2
            usage = {row.purpose for row in await home.built.store.usage.rows()}
        assert "my cat is called Tom" in said(home)[1]
        assert "A scheduled job cannot create jobs" in said(home)[2]
        assert usage == {"chat", "job"}

    async def test_in_a_room_it_has_the_rooms_scope(self, tmp_path):
        """The owner's job in a shared room does not read the owner's memory aloud there."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock, groups=["room"]) as home:
            await home.asked(ANN, "remember that my PIN is 4711")
            await home.asked(ANN, "hello", conversation="room")
            operations = OperationContext(
                home.built.store,
                home.built.memory,
                planned=schedule_context(home.built.proactive, home.built.conversations),
            )
            await operations.call(
                "cron_add",
                {"text": "what do you know about me?", "at": "09:00", "ask": True, "session": "matrix/room"},
            )
            await later(home, clock, hours=1)
            seen = await home.chat.answers(2, conversation="room")
        assert "4711" not in seen[1].text
        assert seen[1].kind is not OutboundKind.ALERT

    async def test_one_that_fails_says_so_to_whoever_wished_it(self, tmp_path):
        """A crash of the model is one sentence in the conversation, and a line in the ledger."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "hello")
            operations = OperationContext(
                home.built.store,
                home.built.memory,
                planned=schedule_context(home.built.proactive, home.built.conversations),
            )
            added = await operations.call(
                "cron_add", {"text": "!crash", "at": "09:00", "ask": True, "session": str(BOBS)}
            )
            await later(home, clock, hours=1)
            await home.chat.answers(2, conversation=f"dm-{BOB}")
            [(outcome, _)] = await home.ledger(f"job:{added['job']['id']}")
        assert said(home)[1].startswith(f"Sorry, the scheduled job {added['job']['id']} could not be done.")
        assert outcome == "failed"


class TestChanges:
    async def test_a_person_who_may_not_speak_any_more_gets_nothing(self, tmp_path):
        """Their job does not run, which is shown; and it runs again when they may."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "remind me every 60 minutes to stretch")
            chat = home.chat
        closed = {"matrix": (), "email": ()}
        async with scheduled(tmp_path, clock, chat=chat, allow=closed) as home:
            await later(home, clock, hours=1)
            assert (await job(home)).note == "its person may no longer talk to me"
            assert (await home.built.proactive.state())["schedule"]["not_run"] == 1
        async with scheduled(tmp_path, clock, chat=chat) as home:
            await later(home, clock, hours=1)
            await chat.answers(2, conversation=f"dm-{BOB}")
            assert (await job(home)).note == ""
        assert said(home)[1:] == ["stretch"]

    async def test_what_is_changed_while_a_run_is_in_flight_is_kept(self, tmp_path):
        """A pause between the look and its end stays a pause; a removed job's waiting row says nothing."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "remind me every 60 minutes to stretch")
            [known] = await home.plans.jobs()
            await home.built.proactive.jobs.set_paused(known, paused=True)
            clock.advance(3600)
            await home.built.proactive.scheduler._look_at(known, clock.now())
            assert (await job(home)).state is JobState.PAUSED
            await home.until(lambda: settled(home))
            assert await home.ledger(f"job:{known.id}") == [("skipped", "it was paused")]
            await home.built.proactive.jobs.set_paused(replace(known), paused=False)
            assert (await job(home)).next_at == START + timedelta(hours=2)
            await home.built.proactive.jobs.remove(known)
            clock.advance(1)
            row = job_message(known, clock.now(), late=False)
            await home.built.store.inbox.accept(row.channel, row.account, [Pending(row)], {})
            home.built.dispatcher.wake(row.session)
            await home.until(lambda: settled(home))
            assert (await home.ledger(f"job:{known.id}"))[-1] == ("skipped", "it was removed")
        assert len(said(home)) == 1

    async def test_limits_and_whose_jobs_are_seen(self, tmp_path):
        """So many jobs for each person, none too often, and nobody sees another's."""
        clock = ManualClock(START)
        setting = {"jobs_per_person": 2, "min_interval_minutes": 5.0}
        async with scheduled(tmp_path, clock, schedule=setting) as home:
            desk = home.built.proactive.jobs
            bob, ann = (JobPlace(SessionKey("matrix", f"dm-{one}"), "bot", one) for one in (BOB, ANN))
            bobs = SessionJobs(desk, bob)
            for number in range(2):
                await bobs.add(f"job {number}", ask=False, when={"in_minutes": 5})
            with pytest.raises(ToolDenied, match="You have 2 jobs already"):
                await bobs.add("one more", ask=False, when={"in_minutes": 5})
            with pytest.raises(ToolRetry, match="too often"):
                await SessionJobs(desk, ann).add("x", ask=False, when={"cron": "* * * * *"})
            assert await SessionJobs(desk, ann).list_text() == "There are no jobs."
            [first, _] = await home.plans.jobs()
            with pytest.raises(ToolRetry, match="There is no job"):
                await SessionJobs(desk, ann).change(first.id, "remove")
            room = replace(bob, session=SessionKey("matrix", "room"), audience="group")
            assert await SessionJobs(desk, room).list_text() == "There are no jobs."
            assert await bobs.change(first.id, "remove") == f"{first.id} is removed."
            await bobs.add("room again", ask=True, when={"at": "tomorrow 09:00"})

    async def test_an_unproven_address_makes_no_jobs(self, tmp_path):
        """Whoever may be somebody else cannot have anything scheduled; such mails are not even answered."""
        async with scheduled(tmp_path) as home:
            home.chat.say(BOB, "remind me in 1 minute to x", verified=False)
            await home.until(lambda: home.chat.acknowledged == 1)
            assert await home.plans.jobs() == []

    async def test_a_question_starts_a_little_later_each_at_its_own_moment(self, tmp_path):
        """Jitter keeps questions apart, the same after a restart; reminders are on time."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock, schedule={"jitter_seconds": 600.0}) as home:
            await home.asked(BOB, "hello")
            place = JobPlace(BOBS, "bot", BOB)
            for kind in (JobKind.ASK, JobKind.ASK, JobKind.REMIND):
                await home.built.proactive.jobs.add(
                    place, TriggerRequest(cron="0 9 * * *"), text="hello", kind=kind
                )
            waits = {await home.built.proactive.scheduler.fire_due() for _ in range(2)}
            await later(home, clock, hours=1)
            fired = [one for one in await home.plans.jobs() if one.last_at is not None]
            assert [one.kind for one in fired] == [JobKind.REMIND]
            await later(home, clock, minutes=10)
            fired = [one for one in await home.plans.jobs() if one.last_at is not None]
            assert len(fired) == 3
        assert waits == {30.0}
