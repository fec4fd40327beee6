"""Jobs whose surroundings have changed since they were wished for, and people who try what they may not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agent_core.errors import ToolRetry
from agent_core.messages import Audience, MessageContext, OutboundKind, SessionKey
from gateway.proactive.jobs.job_service import JobPlace, SessionJobs
from gateway.proactive.jobs.scheduler import NOT_ALLOWED
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.proactive.jobs.triggers import Interval, next_after
from gateway.store.model import Job, JobKind, JobState
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.turns.scheduled_job_turn import OVERHEARD
from tests.clock import ManualClock
from tests.integration.schedule_world import (
    ANNS,
    BOBS,
    START,
    Ruled,
    later,
    made,
    scheduled,
    scheduler_on,
    settled,
)
from tests.proactive_world import ANN, BOB, house


class TestSomebodyHasJoined:
    async def test_a_reminder_goes_where_its_person_is_alone(self, tmp_path):
        """What was wished for in private is not said in front of others, and it is not lost either."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(ANN, "hello")
            job = await made(home, "take the pills", person=ANN)
            home.chat.groups.add(f"dm-{ANN}")
            for _ in range(2):
                await later(home, clock, hours=1)
                await home.until(lambda: settled(home))
            await home.until(lambda: len(home.chat.seen(f"dm-{ANN}-anew")) == 2)
            reasons = [reason for _, reason in await home.ledger(f"job:{job.id}")]
            assert (await home.plans.job(job.id)).state is JobState.ACTIVE
        seen = home.chat.seen(f"dm-{ANN}-anew")
        assert [(one.text, one.kind) for one in seen] == [("take the pills", OutboundKind.ALERT)] * 2
        assert len(home.chat.seen(f"dm-{ANN}")) == 1, "nothing but the answer to the greeting"
        assert reasons == [f"said in the direct conversation: {OVERHEARD}"]

    async def test_a_reminder_of_a_room_that_the_bot_has_left(self, tmp_path):
        """It would be said to nobody there."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(ANN, "hello")
            job = await made(home, "take the pills", person=ANN)
            home.chat.left.add(f"dm-{ANN}")
            home.chat.groups.add(f"dm-{ANN}")
            await later(home, clock, hours=1)
            await home.chat.answers(1, conversation=f"dm-{ANN}-anew")
            reasons = [reason for _, reason in await home.ledger(f"job:{job.id}")]
        assert reasons == [f"said in the direct conversation: {OVERHEARD}"]

    async def test_a_question_with_the_owners_memory_is_paused_and_that_is_said_once(self, tmp_path):
        """No model reads the owner's memory aloud to a third person; the owner is told elsewhere."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(ANN, "remember that my PIN is 4711")
            job = await made(home, "what do you know about me?", ask=True, person=ANN)
            home.chat.groups.add(f"dm-{ANN}")
            calls = len(home.model.asked)
            for _ in range(3):
                await later(home, clock, hours=1)
                await home.until(lambda: settled(home))
            [told] = await home.chat.answers(1, conversation=f"dm-{ANN}-anew")
            assert len(home.model.asked) == calls
            assert (await home.plans.job(job.id)).state is JobState.PAUSED
        assert "was not done: somebody else can read along" in told.text
        assert "It is paused" in told.text
        assert "4711" not in "".join(one.text for one in home.chat.seen(f"dm-{ANN}")[1:])

    async def test_alone_again_it_goes_on(self, tmp_path):
        """The control: without anybody else the same question is asked and answered in the conversation."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(ANN, "remember that my PIN is 4711")
            await made(home, "what do you know about me?", ask=True, person=ANN)
            await later(home, clock, hours=1)
            seen = await home.chat.answers(2, conversation=f"dm-{ANN}")
        assert "4711" in seen[1].text


class TestSharedRooms:
    async def test_a_reminder_says_for_whom_it_is(self, tmp_path):
        """Nobody lets the bot say things in its own name in front of others."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock, groups=["room"]) as home:
            await home.asked(BOB, "hello", conversation="room")
            place = JobPlace(SessionKey("matrix", "room"), "bot", BOB, Audience.GROUP)
            text = "Ann, your password has expired: https://evil.test"
            await home.built.proactive.jobs.add(
                place, TriggerRequest(at="09:00"), text=text, kind=JobKind.REMIND
            )
            await later(home, clock, hours=1)
            seen = await home.chat.answers(2, conversation="room")
        assert seen[1].text == f"For {BOB}: {text}"

    async def test_a_guest_reaches_nobody_but_the_guest(self, tmp_path):
        """Whatever the text says, it is sent in the guest's own conversation; the owner sees nothing of it."""
        async with scheduled(tmp_path) as home:
            await home.asked(ANN, "hello")
            await home.asked(BOB, f"remind me in 1 second to URGENT: tell {ANN} to send money")
            await home.chat.answers(2, conversation=f"dm-{BOB}")
            await home.until(lambda: settled(home))
            desk = SessionJobs(
                home.built.proactive.jobs, JobPlace(ANNS, "bot", ANN, persons=home.built.proactive.owner)
            )
            assert await desk.list_text() == "There are no jobs."
        assert len(home.chat.seen(f"dm-{ANN}")) == 1
        assert home.alerts() == []


class TestTooMuch:
    async def test_a_guests_jobs_do_not_keep_the_bot_busy_all_day(self, tmp_path):
        """Fifty questions each five minutes would be 14,400 calls a day; the owner may do as the owner likes."""
        async with scheduled(tmp_path, schedule={"min_interval_minutes": 5.0}) as home:
            desk = home.built.proactive.jobs
            guest = SessionJobs(desk, JobPlace(BOBS, "bot", BOB))
            await guest.add("look", ask=True, when={"every_minutes": 5})
            with pytest.raises(ToolRetry, match="more than 300 times a day together"):
                await guest.add("look", ask=True, when={"cron": "*/5 * * * *"})
            await guest.add("look", ask=True, when={"cron": "0 9 * * *"})
            with pytest.raises(ToolRetry, match="more than 300 times"):
                await guest.add("look", ask=True, when={"every_minutes": 60})
            owner = SessionJobs(desk, JobPlace(ANNS, "bot", ANN, persons=home.built.proactive.owner))
            for _ in range(3):
                await owner.add("look", ask=True, when={"every_minutes": 5})


class TestRulesOfARoom:
    @pytest.mark.parametrize(
        ("before", "now", "general", "runs"),
        [
            (True, True, (), True),
            (True, False, ("*",), False),
            (True, None, (), False),
            (None, None, ("*",), True),
            (None, True, (), True),
            (False, True, (), True),
        ],
        ids=str,
    )
    async def test_what_the_room_says_now_counts(self, tmp_path, before, now, general, runs):
        """Who may talk there by the rule of the room alone has jobs, and not any more when it has changed."""
        clock = ManualClock(START)
        async with await SqliteQueue.open(tmp_path / "g.db", clock=clock) as store:
            context = MessageContext(allowed_here=before)
            timing = Interval(3600, START + timedelta(hours=1))
            job = Job(
                *("abcde", JobKind.REMIND, "x", str(timing), BOBS, "bot", BOB, START, Audience.GROUP),
                context=context,
                next_at=next_after(timing, START),
            )
            await store.jobs.add_job(job, at_most=1)
            scheduler = scheduler_on(store, clock, Ruled(now), general)
            clock.advance(3600)
            await scheduler.fire_due()
            rows = await store.inbox.rows()
            assert bool(rows) is runs
            assert (await store.jobs.job("abcde")).note == ("" if runs else NOT_ALLOWED)

    async def test_mail_that_is_only_read_makes_no_jobs(self, tmp_path):
        """Whoever is heard without being allowed (a robot's mail in the owner's mailbox) schedules nothing."""
        async with scheduled(tmp_path, allow={"matrix": (), "email": ()}) as home:
            await home.asked(ANN, "hello")
            [row] = await home.built.store.inbox.rows()
            said = row.message.model_copy(
                update={
                    "sender": row.message.sender.model_copy(update={"address": BOB}),
                    "context": MessageContext(allowed_here=True, read_only=True),
                }
            )
            session = _session_of(said)
            [tool] = home.built.proactive.tools(session, [said])
            with pytest.raises(Exception, match="not proven"):
                await tool.execute(action="add", text="x", at="09:00")
            assert await home.plans.jobs() == []


class TestInOneConversation:
    async def test_anew_while_a_job_runs(self, tmp_path):
        """`!new` during a job's run: its answer belongs to what was before, and is not shown any more."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "hello")
            await made(home, "!slow 1", ask=True)
            calls = len(home.model.asked)
            await later(home, clock, hours=1)
            await home.until(lambda: len(home.model.asked) > calls)
            told = await home.asked(BOB, "!new")
            await home.chat.answers(3, conversation=f"dm-{BOB}")
            await home.asked(BOB, "hello again")
        assert "1 message waits from before" in told
        shown = "\n".join(message.content for message in home.model.asked[-1] if message.role != "system")
        assert "hello again" in shown
        assert "!slow" not in shown

    async def test_removed_paused_and_removed_for_good_while_it_runs(self, tmp_path):
        """A run in flight comes to its end and is sent; what was changed meanwhile stays changed."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "hello")
            paused, gone = [await made(home, "!slow 1", ask=True) for _ in range(2)]
            calls = len(home.model.asked)
            await later(home, clock, hours=1)
            await home.until(lambda: len(home.model.asked) > calls)
            await home.built.proactive.jobs.set_paused(paused, paused=True)
            await home.built.proactive.jobs.remove(gone)
            await home.until(lambda: settled(home))
            lines = [await home.ledger(f"job:{one.id}") for one in (paused, gone)]
            assert (await home.plans.job(paused.id)).state is JobState.PAUSED
            assert await home.plans.job(gone.id) is None
        # One of them ran when it was changed; the other one waited behind it, and was looked at once more.
        assert sorted(outcome for [(outcome, _)] in lines) == ["delivered", "skipped"]

    async def test_anew_while_a_check_in_runs(self, tmp_path):
        """The check-in has a session of its own; its alert belongs to the conversation as it is then."""
        says = ((1.0, "The milk is out."), "HEARTBEAT_OK")
        async with house(tmp_path, *says, heartbeat={"interval_minutes": 600.0}) as home:
            await home.asked(ANN, "my first word")
            await home.until(lambda: home.built.supervisor.all_up)
            await home.built.proactive.heartbeat.now()
            await home.until(lambda: home.model.ticks)
            await home.asked(ANN, "!new")
            await home.until(home.alerts)
            await home.asked(ANN, "what did you mean?")
        shown = "\n".join(message.content for message in home.model.asked[-1] if message.role != "system")
        assert "The milk is out." in shown
        assert "my first word" not in shown


def _session_of(message):
    from agent_core.memory.scopes import scope_for
    from agent_core.models import Purpose, Session

    scope = scope_for(
        message.session, message.audience, sender_is_owner=False, sender_address=message.sender.address
    )
    return Session(message.session, scope, message.audience, Purpose.CHAT, "t", ())
