"""Jobs whose surroundings have changed since they were wished for, and people who try what they may not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent_core.errors import ToolRetry
from agent_core.messages import Audience, OutboundKind, SessionKey
from gateway.access import Access, Alias
from gateway.operations import Operations, RequestInvalid
from gateway.schedule.config import ScheduleConfig
from gateway.schedule.desk import Place, SessionDesk
from gateway.schedule.runs import MERGED, OVERHEARD
from gateway.schedule.scheduler import NOT_ALLOWED, Scheduler, job_message
from gateway.schedule.timing import Cron, Every, next_after
from gateway.schedule.wishes import Wish
from gateway.work.plan_port import Job, JobKind, JobState
from gateway.work.port import Pending
from gateway.work.sqlite import SqliteWorkStore
from tests.clock import ManualClock
from tests.unasked_world import ANN, BOB, house

START = datetime(2026, 5, 1, 8, tzinfo=UTC)
ANNS, BOBS = (SessionKey("matrix", f"dm-{one}") for one in (ANN, BOB))


def scheduled(tmp_path, clock=None, **more):
    more.setdefault("schedule", {"jitter_seconds": 0.0})
    return house(tmp_path, heartbeat={"enabled": False}, checklist=None, clock=clock, **more)


async def later(home, clock, **span) -> None:
    clock.advance(timedelta(**span).total_seconds())
    await home.built.unasked.scheduler.look()


async def settled(home) -> bool:
    stats = await home.built.store.stats()
    return not any((stats.inbox["ready"], stats.inbox["running"], stats.outbox["pending"]))


def operations(home) -> Operations:
    wake = home.built.gateway.parts.dispatcher.wake
    return Operations(home.built.store, home.built.memory, planned=home.built.unasked.planned(), wake=wake)


async def made(home, text: str, *, ask: bool = False, person: str = BOB, cron: str = "0 * * * *") -> Job:
    place = Place(SessionKey("matrix", f"dm-{person}"), "bot", person)
    kind = JobKind.ASK if ask else JobKind.REMIND
    return await home.built.unasked.desk.add(place, Wish(cron=cron), text=text, kind=kind)


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
            place = Place(SessionKey("matrix", "room"), "bot", BOB, Audience.GROUP)
            text = "Ann, your password has expired: https://evil.test"
            await home.built.unasked.desk.add(place, Wish(at="09:00"), text=text, kind=JobKind.REMIND)
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
            desk = SessionDesk(
                home.built.unasked.desk, Place(ANNS, "bot", ANN, persons=home.built.unasked.owner)
            )
            assert await desk.listed() == "There are no jobs."
        assert len(home.chat.seen(f"dm-{ANN}")) == 1
        assert home.alerts() == []


class TestTooMuch:
    async def test_a_guests_jobs_do_not_keep_the_bot_busy_all_day(self, tmp_path):
        """Fifty questions each five minutes would be 14,400 calls a day; the owner may do as the owner likes."""
        async with scheduled(tmp_path, schedule={"min_interval_minutes": 5.0}) as home:
            desk = home.built.unasked.desk
            guest = SessionDesk(desk, Place(BOBS, "bot", BOB))
            await guest.add("look", ask=True, when={"every_minutes": 5})
            with pytest.raises(ToolRetry, match="more than 300 times a day together"):
                await guest.add("look", ask=True, when={"cron": "*/5 * * * *"})
            await guest.add("look", ask=True, when={"cron": "0 9 * * *"})
            with pytest.raises(ToolRetry, match="more than 300 times"):
                await guest.add("look", ask=True, when={"every_minutes": 60})
            owner = SessionDesk(desk, Place(ANNS, "bot", ANN, persons=home.built.unasked.owner))
            for _ in range(3):
                await owner.add("look", ask=True, when={"every_minutes": 5})


class Ruled:
    """A channel with a rule for a room: who may talk there."""

    def __init__(self, allowed: bool | None) -> None:
        self.allowed = allowed

    def allowed_here(self, session: SessionKey, person: str) -> bool | None:
        return self.allowed


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
        async with await SqliteWorkStore.open(tmp_path / "g.db", clock=clock) as store:
            context = {} if before is None else {"allowed_here": before}
            timing = Every(3600, START + timedelta(hours=1))
            job = Job(
                *("abcde", JobKind.REMIND, "x", str(timing), BOBS, "bot", BOB, START, Audience.GROUP),
                context=context,
                next_at=next_after(timing, START),
            )
            await store.add_job(job, at_most=1)
            scheduler = _scheduler(store, clock, Ruled(now), general)
            clock.advance(3600)
            await scheduler.look()
            rows = await store.inbox()
            assert bool(rows) is runs
            assert (await store.job("abcde")).note == ("" if runs else NOT_ALLOWED)

    async def test_mail_that_is_only_read_makes_no_jobs(self, tmp_path):
        """Whoever is heard without being allowed (a robot's mail in the owner's mailbox) schedules nothing."""
        async with scheduled(tmp_path, allow={"matrix": (), "email": ()}) as home:
            await home.asked(ANN, "hello")
            [row] = await home.built.store.inbox()
            said = row.message.model_copy(
                update={
                    "sender": row.message.sender.model_copy(update={"address": BOB}),
                    "context": {"allowed_here": True, "read_only": True},
                }
            )
            session = _session_of(said)
            [tool] = home.built.unasked.tools(session, [said])
            with pytest.raises(Exception, match="not proven"):
                await tool.execute(action="add", text="x", at="09:00")
            assert await home.plans.jobs() == []


class TestAtAnyTime:
    async def test_what_had_to_wait_comes_once(self, tmp_path):
        """Three hours without a model are one answer, that of the newest run, and say why."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(BOB, "hello")
            job = await made(home, "what is new?", ask=True)
            clock.advance(3 * 3600)
            waiting = [Pending(job_message(job, START + timedelta(hours=h), late=False)) for h in (1, 2)]
            await home.built.store.accept("matrix", "bot", waiting, {})
            await home.built.unasked.scheduler.look()
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
        async with await SqliteWorkStore.open(tmp_path / "g.db", clock=clock) as store:
            for number in range(300):
                timing = Every(86_400, START + timedelta(hours=2, seconds=number))
                job = Job(
                    *(f"j{number}", JobKind.REMIND, "x", str(timing), BOBS, "bot", BOB, START),
                    next_at=next_after(timing, START),
                )
                await store.add_job(job, at_most=10_000)
            read: list[int] = []
            scheduler = _scheduler(_Counted(store, read), clock, Ruled(None), ("*",))
            for seconds in (0, 30, 30, -7200, 30, 14_250, 30):
                clock.advance(seconds)
                await scheduler.look()
            assert read[:5] == [300, 0, 0, 300, 0]
            assert read[5] == 300, "and once in a while"
            assert 0 < read[6] < 100


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
            await home.built.unasked.desk.set_paused(paused, paused=True)
            await home.built.unasked.desk.remove(gone)
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
            await home.built.unasked.heartbeat.now()
            await home.until(lambda: home.model.ticks)
            await home.asked(ANN, "!new")
            await home.until(home.alerts)
            await home.asked(ANN, "what did you mean?")
        shown = "\n".join(message.content for message in home.model.asked[-1] if message.role != "system")
        assert "The milk is out." in shown
        assert "my first word" not in shown


class TestOperator:
    async def test_a_paused_job_runs_when_it_is_told_to(self, tmp_path):
        """`cron run` means now; the job stays paused. That squidbot runs is not a matter of the heartbeat."""
        async with scheduled(tmp_path) as home:
            await home.asked(BOB, "hello")
            job = await made(home, "stretch")
            call = operations(home).call
            await call("cron_pause", {"id": job.id})
            assert (await call("cron_run", {"id": job.id}))["running"] is True
            seen = await home.chat.answers(2, conversation=f"dm-{BOB}")
            assert (await home.plans.job(job.id)).state is JobState.PAUSED
        assert seen[1].text == "stretch"

    async def test_where_jobs_are_switched_off_none_is_taken(self, tmp_path):
        """Nothing is kept that would never run, and it is said why."""
        async with scheduled(tmp_path, schedule={"enabled": False}) as home:
            await home.asked(ANN, "hello")
            with pytest.raises(RequestInvalid, match=r"agents\.schedule\.enabled is false"):
                await operations(home).call("cron_add", {"text": "x", "at": "09:00"})


def _scheduler(store, clock, channel, general) -> Scheduler:
    return Scheduler(
        plans=store,
        store=store,
        access=Access([Alias("matrix", ANN)], {"matrix": general}),
        channels={"matrix": channel},
        config=ScheduleConfig(),
        clock=clock,
        wake=lambda _: None,
    )


def _session_of(message):
    from agent_core.memory.scopes import scope_for
    from agent_core.models import Purpose, Session

    scope = scope_for(
        message.session, message.audience, sender_is_owner=False, sender_address=message.sender.address
    )
    return Session(message.session, scope, message.audience, Purpose.CHAT, "t", ())


class _Counted:
    """A store that counts how many jobs are read at once."""

    def __init__(self, store, read) -> None:
        self._store, self._read = store, read

    async def jobs(self, **which):
        found = await self._store.jobs(**which)
        self._read.append(len(found))
        return found

    def __getattr__(self, name):
        return getattr(self._store, name)
