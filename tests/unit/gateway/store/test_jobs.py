"""Jobs, ledger and digest in the embedded store; and a database from before them."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from agent_core.messages import Amendment, MessageContext, SessionKey
from agent_core.models import Message
from gateway.store.model import CollectedAlert, Job, JobKind, JobState, LedgerEntry, RunOutcome
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.store_errors import TooManyJobs
from gateway.store.stores import Completion, LostTurn, NewOutbound, Pending
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import message

KEY = SessionKey("matrix", "!a")
AT = datetime(2026, 5, 1, 9, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path):
    async with await SqliteQueue.open(tmp_path / "g.db", clock=ManualClock()) as one:
        yield one


def a_job(job_id="abcde", person="@a:x", **more) -> Job:
    return Job(job_id, JobKind.ASK, "hello \udce4", "at x", KEY, "bot", person, EPOCH, next_at=AT, **more)


class TestJobs:
    async def test_a_job_is_kept_as_it_is(self, store):
        """All of it comes back; half a character is replaced and not refused."""
        await store.jobs.add_job(a_job(context=MessageContext(route={"event": "$1", "n": [1]})), at_most=1)
        kept = replace(a_job(context=MessageContext(route={"event": "$1", "n": [1]})), text="hello ?")
        assert await store.jobs.job("abcde") == kept

    async def test_the_limit_counts_all_addresses_of_a_person(self, store):
        """What is done does not count; what somebody else has does not either."""
        await store.jobs.add_job(a_job("a"), at_most=1)
        with pytest.raises(TooManyJobs):
            await store.jobs.add_job(a_job("b", "a@x"), at_most=1, persons=["@a:x", "a@x"])
        await store.jobs.add_job(a_job("c", "@b:x"), at_most=1)
        assert await store.jobs.record_run("a", 1, AT, None)
        await store.jobs.add_job(a_job("d"), at_most=1)
        assert {job.id for job in await store.jobs.jobs()} == {"c", "d"}
        assert {job.id for job in await store.jobs.jobs(done=True)} == {"a", "c", "d"}

    async def test_what_a_person_changes_meanwhile_wins(self, store):
        """An instant is not counted off a job that has another revision than the one that ran."""
        await store.jobs.add_job(a_job(), at_most=1)
        paused = await store.jobs.set_job_state("abcde", JobState.PAUSED, AT)
        assert paused is not None
        assert not await store.jobs.record_run("abcde", 1, AT, AT + timedelta(days=1))
        assert (await store.jobs.job("abcde")).next_at == AT
        assert await store.jobs.set_job_state("nobody", JobState.PAUSED, AT) is None
        assert await store.jobs.remove_job("abcde")
        assert not await store.jobs.remove_job("abcde")

    async def test_jobs_of_a_conversation_that_was_left_stay(self, store):
        """A run of theirs that is due finds out whether the bot is there."""
        key = a_job().session
        thread, near = (
            SessionKey(key.channel, key.conversation, "$t"),
            SessionKey(key.channel, f"{key.conversation}0"),
        )
        for number, session in enumerate((key, thread, near)):
            await store.jobs.add_job(replace(a_job(f"job{number}"), session=session), at_most=9)
        await store.jobs.add_job(replace(a_job("other"), account="another"), at_most=9)
        left = Amendment(kind="leave", session=key)
        await store.inbox.accept(key.channel, a_job().account, [], {}, amendments=[left])
        assert {job.state for job in await store.jobs.jobs()} == {JobState.ACTIVE}


class TestLedger:
    async def test_skips_in_a_row_are_one_line_and_nothing_is_noted_twice(self, store):
        """A week of nothing is one line; a run in between begins another; a repetition adds nothing."""
        for minute in (0, 1, 1, 0, 2):
            await store.jobs.note(
                LedgerEntry("h", AT + timedelta(minutes=minute), RunOutcome.SKIPPED, "nothing")
            )
        for _ in range(2):
            await store.jobs.note(LedgerEntry("h", AT + timedelta(minutes=3), RunOutcome.DELIVERED, said="f"))
        await store.jobs.note(LedgerEntry("h", AT + timedelta(minutes=4), RunOutcome.SKIPPED, "nothing"))
        await store.jobs.note(LedgerEntry("h", AT + timedelta(minutes=5), RunOutcome.SKIPPED, "else"))
        lines = await store.jobs.ledger(name="h")
        assert [(one.outcome, one.ticks) for one in lines] == [
            ("skipped", 1), ("skipped", 1), ("delivered", 1), ("skipped", 3),
        ]  # fmt: skip
        assert await store.jobs.was_said("f", since=EPOCH - timedelta(days=1))
        assert not await store.jobs.was_said("f", since=EPOCH + timedelta(days=1))
        assert not await store.jobs.was_said("", since=EPOCH - timedelta(days=1))

    async def test_a_skip_for_a_reason_of_its_own_is_noted_in_the_middle_of_others(self, store):
        """A check-in that was on its way while later ones had nothing to do, and then is left out, has its line."""
        for minute in (0, 2):
            await store.jobs.note(
                LedgerEntry("h", AT + timedelta(minutes=minute), RunOutcome.SKIPPED, "nothing")
            )
        for _ in range(2):
            await store.jobs.note(
                LedgerEntry("h", AT + timedelta(minutes=1), RunOutcome.SKIPPED, "no target")
            )
        assert [(one.reason, one.ticks) for one in await store.jobs.ledger(name="h")] == [
            ("no target", 1),
            ("nothing", 2),
        ]

    async def test_a_row_of_skips_is_not_drawn_over_another_line(self, store):
        """After a clock that showed 1970 for a moment a row does not last for half a century."""
        await store.jobs.note(LedgerEntry("h", AT, RunOutcome.DELIVERED))
        await store.jobs.note(LedgerEntry("h", AT - timedelta(days=20_000), RunOutcome.SKIPPED, "nothing"))
        for minute in (1, 2):
            await store.jobs.note(
                LedgerEntry("h", AT + timedelta(minutes=minute), RunOutcome.SKIPPED, "nothing")
            )
        lines = await store.jobs.ledger(name="h")
        assert [(one.instant, one.ticks) for one in lines] == [
            (AT + timedelta(minutes=1), 2),
            (AT - timedelta(days=20_000), 1),
            (AT, 1),
        ]

    async def test_it_is_pruned_and_keeps_the_last(self, tmp_path):
        """Old lines go, the newest of each name stays, so that it is known when it last ran."""
        clock = ManualClock()
        async with await SqliteQueue.open(tmp_path / "g.db", clock=clock) as store:
            for number in range(5):
                await store.jobs.note(LedgerEntry("h", AT + timedelta(days=number), RunOutcome.SILENT))
            await store.jobs.add_job(a_job(), at_most=1)
            await store.jobs.record_run("abcde", 1, AT, None)
            clock.advance(100 * 86_400)
            assert await store.jobs.prune_plans(older_than_s=90 * 86_400) == 5
            assert len(await store.jobs.ledger()) == 1
            assert await store.jobs.jobs(done=True) == []


class TestTogether:
    async def test_an_alert_its_line_its_entry_and_the_digest_are_one_commit(self, store):
        """All of it with the turn, and nothing of it from a turn that is lost."""
        other = SessionKey("matrix", "!owner")
        await store.inbox.accept("matrix", "@bot:hs.test", [Pending(message("m1"))], {})
        session = message("m1").session
        lost = await store.turns.claim(session)
        await store.maintenance.recover()
        turn = await store.turns.claim(session)
        line = Message(role="assistant", content="milk", id="t.alert", turn="t", timestamp=AT)
        completion = Completion(
            outbound=[NewOutbound("matrix", "bot", other, "milk")],
            others=((other, (line,)),),
            entry=LedgerEntry("h", AT, RunOutcome.DELIVERED, said="f"),
            collected=(CollectedAlert("email", "a@x", "milk", AT),),
        )
        with pytest.raises(LostTurn):
            await store.turns.complete(lost, completion)
        assert (
            await store.jobs.ledger(),
            await store.jobs.list_collected_alerts(),
            await store.journal.lines(other),
        ) == (
            [],
            [],
            [],
        )
        await store.turns.complete(turn, completion)
        assert [one.said for one in await store.jobs.ledger()] == ["f"]
        assert [one.text for one in await store.jobs.list_collected_alerts()] == ["milk"]
        assert [one.message for one in await store.journal.lines(other)] == [line]

    async def test_a_digest_is_posted_once(self, store):
        """The second time with the same value nothing happens, and what was collected since stays."""
        await store.inbox.accept("matrix", "@bot:hs.test", [Pending(message("m1"))], {})
        turn = await store.turns.claim(message("m1").session)
        await store.turns.complete(turn, Completion(collected=(CollectedAlert("email", "a@x", "milk", AT),)))
        [one] = await store.jobs.list_collected_alerts()
        new = [NewOutbound("email", "bot", SessionKey("email", "t"), "milk")]
        assert await store.outbox.post(new, once=("digest", "monday"), collected=[one.id])
        assert not await store.outbox.post(new, once=("digest", "monday"))
        assert await store.jobs.list_collected_alerts() == []
        assert len(await store.outbox.rows()) == 1
        assert await store.outbox.post(new, once=("digest", "tuesday"))

    async def test_what_could_not_be_posted_was_not_posted_once(self, store):
        """The topic's value, the removal of what was collected and the message are one transaction."""
        await store.inbox.accept("matrix", "@bot:hs.test", [Pending(message("m1"))], {})
        turn = await store.turns.claim(message("m1").session)
        await store.turns.complete(turn, Completion(collected=(CollectedAlert("email", "a@x", "milk", AT),)))
        [one] = await store.jobs.list_collected_alerts()
        new = [NewOutbound("email", "bot", SessionKey("email", "t"), "milk")]
        refuse = "CREATE TEMP TRIGGER full BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'full'); END"
        await store.database.writer.call("spoil", lambda db: db.execute(refuse) and None)
        with pytest.raises(sqlite3.IntegrityError, match="full"):
            await store.outbox.post(new, once=("digest", "monday"), collected=[one.id])
        await store.database.writer.call(
            "mend", lambda db: db.execute("DROP TRIGGER IF EXISTS temp.full") and None
        )
        assert await store.jobs.list_collected_alerts() == [one]
        assert await store.outbox.post(new, once=("digest", "monday"), collected=[one.id])
        assert await store.jobs.list_collected_alerts() == []
