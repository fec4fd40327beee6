"""The races: each call that changes something, with the same or with what excludes it (`races.py`)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from agent_core.messages import Amendment, SessionKey
from agent_core.models import Purpose, Usage
from agent_core.tools.grants import Grant, GrantKind, Scope
from gateway.store.model import APPROVAL, WITHDRAWN, Job, JobKind, LedgerEntry, RunOutcome
from gateway.store.states import IllegalMove, InboxState, OutboxState
from gateway.store.store_errors import TooManyJobs
from gateway.store.stores import Completion, LostTurn, Queue, Step
from tests.clock import EPOCH
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, answer, claim, out, pending, step
from tests.contract.races import Race, Ran

AT = EPOCH + timedelta(days=1)
LATER = (EPOCH + timedelta(days=400)).isoformat()
STOP = Amendment(kind="stop", session=ROOM)
WITHDRAW = Amendment(kind="withdraw", native_id="a", sender="@alice:hs.test")
REPLACE = Amendment(kind="replace", native_id="a", sender="@alice:hs.test", text="changed")
ALERT = SessionKey("matrix", "!owner:hs.test")


async def nothing(_: Queue) -> None:
    """Nothing is prepared."""


async def waiting(queue: Queue) -> None:
    await accept(queue, "a")


async def taken(queue: Queue) -> Any:
    await accept(queue, "a")
    return await claim(queue)


async def dead(queue: Queue) -> int:
    turn = await taken(queue)
    await queue.turns.dead_letter(turn, "no")
    return turn.head.id


async def quarantined(queue: Queue) -> int:
    [row] = await queue.inbox.accept("matrix", BOT, [pending("a", quarantine="why")], {})
    return row.id


async def two_parts(queue: Queue) -> Any:
    parts = await answer(queue, await taken(queue), "one", "two")
    for part in parts:
        await queue.outbox.sending(part)
    return parts


async def one_part(queue: Queue) -> Any:
    [row] = await queue.outbox.post([out("seen", session=ALERT, remembered=True)])
    await queue.outbox.sending(row)
    return row


async def draft(queue: Queue) -> int:
    [row] = await queue.turns.complete(await taken(queue), Completion(outbound=[out("hello", hold=True)]))
    return row.id


async def asked(queue: Queue) -> Any:
    turn = await taken(queue)
    request = {"name": "a000001", "asked": [], "call": {"name": "shell"}, "until": LATER}
    question = Step(0, APPROVAL, "d", request, None)
    await queue.approvals.ask(turn, question, [], why="asks", delay_s=0.0)
    return await claim(queue), question


async def amend(queue: Queue, what: Amendment) -> Any:
    return await queue.inbox.accept("matrix", BOT, [], {}, [what])


def a_job(job_id: str) -> Job:
    return Job(job_id, JobKind.ASK, "hello", "at x", ROOM, "bot", "@a:x", EPOCH, next_at=AT)


def a_grant(grant_id: str) -> Grant:
    until = EPOCH + timedelta(hours=1)
    return Grant(
        grant_id, Scope(GrantKind.CALL, "shell", '["make"]'), str(ROOM), ("@a:x",), "@o:x", EPOCH, until
    )


async def orphans(queue: Queue) -> int:
    """Steps of turns that nobody will take up again."""
    query = (
        "SELECT COUNT(*) FROM turn_steps WHERE turn NOT IN"
        " (SELECT turn FROM inbox WHERE state IN ('ready', 'running') AND turn IS NOT NULL)"
    )
    found = await queue.turns._reader.call("orphans", lambda db: db.execute(query).fetchone())  # type: ignore[attr-defined]
    return int(found[0])


async def state_of(queue: Queue, inbox_id: int = 1) -> InboxState:
    found = await queue.inbox.row(inbox_id)
    assert found is not None
    return found[0].state


# ── what must be true ──


async def one_of_two(ran: Ran) -> None:
    assert sum(bool(result) for result in ran.both) == 1, ran.both


async def one_refused(ran: Ran) -> None:
    assert ran.failed == 1, ran.both
    refused = next(result for result in ran.both if isinstance(result, Exception))
    assert isinstance(refused, (LostTurn, IllegalMove, TooManyJobs)), refused


async def one_claim(ran: Ran) -> None:
    await one_of_two(ran)
    [turn] = [result for result in ran.both if result]
    await ran.queue.turns.release(turn)


async def settled(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert await state_of(ran.queue) is InboxState.SETTLED


async def answered_once(ran: Ran) -> None:
    await one_refused(ran)
    assert len(await ran.queue.outbox.rows()) == 1
    assert len(await ran.queue.journal.lines()) == 2


async def answered_or_stopped(ran: Ran) -> None:
    lost = isinstance(ran.one, LostTurn)
    assert lost or not isinstance(ran.one, Exception), ran.one
    assert bool(ran.other.stopped) is lost, ran.both
    assert await state_of(ran.queue) is (InboxState.IGNORED if lost else InboxState.ANSWERED)
    assert len(await ran.queue.outbox.rows()) == (0 if lost else 1)
    assert not await orphans(ran.queue)


async def given_back_or_stopped(ran: Ran) -> None:
    assert ran.failed == 0 or isinstance(ran.one, LostTurn), ran.both
    assert await state_of(ran.queue) is InboxState.IGNORED


async def no_step_of_a_stopped_turn(ran: Ran) -> None:
    assert ran.other.stopped, ran.both
    assert ran.one is None or isinstance(ran.one, LostTurn), ran.one
    assert not await orphans(ran.queue)


async def taken_and_stopped_or_never(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert await state_of(ran.queue) is InboxState.IGNORED
    assert (ran.one is not None) is bool(ran.other.stopped), ran.both


async def never_half_reset(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert await state_of(ran.queue) is (InboxState.IGNORED if ran.one is None else InboxState.RUNNING)


async def asked_as_edited(ran: Ran) -> None:
    """The claim has the new text, or is lost, and the next one has it."""
    assert ran.failed == 0, ran.both
    text, turn = REPLACE.text, ran.one
    if turn.head.message.text != text:
        assert [each.turn for each in ran.other.stopped] == [turn.id], ran.both
        assert await state_of(ran.queue) is InboxState.READY
        turn = await claim(ran.queue)
    else:
        assert not ran.other.stopped, ran.both
    assert turn.head.message.text == text, ran.both


async def one_row(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert len(ran.one) + len(ran.other) == 1
    assert len(await ran.queue.inbox.rows()) == 1


async def one_apology(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    texts = [row.message.text for row in await ran.queue.outbox.rows(limit=9)]
    assert texts.count("sorry") == 1, texts


async def remembered_once(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert len(await ran.queue.journal.lines()) == 1


async def gone(ran: Ran) -> None:
    assert ran.other is True, ran.both
    assert await state_of(ran.queue) is InboxState.IGNORED


async def admitted_or_dropped(ran: Ran) -> None:
    assert ran.other is True, ran.both
    assert isinstance(ran.one, (SessionKey, IllegalMove)), ran.one
    found = await ran.queue.inbox.row(ran.prepared)
    assert found is not None and found[0].state is InboxState.IGNORED
    assert found[0].message.text == ""


async def one_verdict(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    kept = [verdict_of(result) for result in ran.both]
    [question] = await ran.queue.approvals.questions()
    assert kept == [(question.verdict or {}).get("verdict")] * 2, kept


def verdict_of(result: Any) -> Any:
    told = result if isinstance(result, dict) else result.verdict
    return (told or {}).get("verdict")


async def granted_only_by_a_yes(ran: Ran) -> None:
    await one_verdict(ran)
    assert bool(await ran.queue.grants.rows()) is (verdict_of(ran.one) == "approved"), ran.both


async def one_line(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert len(await ran.queue.jobs.ledger(name="h")) == 1


async def both_counted(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert [row.usage.calls for row in await ran.queue.usage.rows()] == [2]


async def one_fence_each(ran: Ran) -> None:
    assert sorted(result or 0 for result in ran.both) == [0, 1], ran.both


async def dead_or_alive(ran: Ran) -> None:
    """Whoever has lost its lease cannot renew it, and whoever has renewed keeps it."""
    renewed, taken = ran.both
    assert renewed == (taken is None), ran.both


async def sent_or_given_up(ran: Ran) -> None:
    await one_refused(ran)
    row = await ran.queue.outbox.row(ran.prepared)
    assert row is not None and row.state in (OutboxState.PENDING, OutboxState.DEAD)


async def newest_post_known(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert await ran.queue.outbox.post([out("again")], once=("topic", "new")) == []


async def not_accepted_again(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert list(ran.one) == [], ran.one


# ── what is called ──


async def ignored_long_ago(queue: Queue) -> None:
    """An ignored row that is old, and another one after it: the last one always stays."""
    await queue.inbox.accept("matrix", BOT, [pending("a", ignore="no"), pending("b")], {})
    # Older than the clock can be moved here.
    old = "UPDATE inbox SET ended_at = 0, accepted_at = 0 WHERE native_id = 'a'"
    await queue.turns._writer.call("age", lambda db: db.execute(old) and None, locks=())  # type: ignore[attr-defined]


async def posted_long_ago(queue: Queue) -> None:
    """Something that was posted once, and whose message is forgotten."""
    (row,) = await queue.outbox.post([out("told")], once=("topic", "old"))
    await queue.outbox.sending(row)
    await queue.outbox.record_send(row, "$1")
    old = "UPDATE outbox SET payload = NULL, ended_at = 0"
    await queue.turns._writer.call("age", lambda db: db.execute(old) and None, locks=())  # type: ignore[attr-defined]


def noted(minutes: int, outcome: RunOutcome = RunOutcome.SKIPPED) -> Any:
    entry = LedgerEntry("h", AT + timedelta(minutes=minutes), outcome, "nothing")
    return lambda queue, _: queue.jobs.note(entry)


def leased(holder: str) -> Any:
    return lambda queue, _: queue.maintenance.lease("matrix/bot", holder=holder, ttl_s=30.0)


async def a_lease_that_is_over(queue: Queue) -> None:
    await queue.maintenance.lease("daemon", holder="one", ttl_s=-1.0)


def renewed(queue: Queue, _: Any) -> Any:
    return queue.maintenance.renew_lease("daemon", holder="one", fence=1, ttl_s=30.0)


def decided(verdict: str, grant: Grant | None = None) -> Any:
    return lambda queue, _: queue.approvals.decide("a000001", {"verdict": verdict}, grant=grant)


def timed_out(queue: Queue, prepared: Any) -> Any:
    turn, question = prepared
    end = Step(question.number, question.kind, question.digest, question.request, {"verdict": "expired"})
    return queue.approvals.settle(turn, end, [])


def part_sent(number: int) -> Any:
    return lambda queue, parts: queue.outbox.record_send(parts[number], f"${number}")


def part_failed(number: int) -> Any:
    return lambda queue, parts: queue.outbox.record_failure(
        parts[number], "no such room", delay_s=None, apology="sorry"
    )


def spent(queue: Queue, _: Any) -> Any:
    return queue.usage.add(ROOM, Usage(model="m", calls=1, prompt_tokens=1), Purpose.CHAT)


async def two_turns(queue: Queue) -> list[Any]:
    await accept(queue, "a")
    await accept(queue, "b", session=OTHER)
    return [await claim(queue), await claim(queue, OTHER)]


def dear(number: int) -> Any:
    costs = Completion(spent=Usage(calls=1, cost_usd=1.0))
    return lambda queue, turns: queue.turns.complete(turns[number], costs)


async def both_kept(ran: Ran) -> None:
    assert ran.failed == 0, ran.both
    assert len(await ran.queue.usage.costliest_turns(since="2026-01-01")) == 2


def completed(queue: Queue, turn: Any) -> Any:
    return answer(queue, turn)


def stopped(queue: Queue, _: Any) -> Any:
    return amend(queue, STOP)


def claimed(queue: Queue, _: Any) -> Any:
    return queue.turns.claim(ROOM)


def accepted(queue: Queue, _: Any) -> Any:
    return accept(queue, "a")


RACES = [
    Race("two claims of a session", waiting, claimed, claimed, one_claim),
    Race(
        "two claims beside a turn",
        lambda queue: accept(queue, "a", alone=True),
        lambda queue, _: queue.turns.claim(ROOM, out_of_band=True),
        lambda queue, _: queue.turns.claim(ROOM, out_of_band=True),
        one_claim,
    ),
    Race("two holders of a lease", nothing, leased("one"), leased("other"), one_fence_each),
    Race(
        "a lease is taken from a process that comes back",
        a_lease_that_is_over,
        renewed,
        lambda queue, _: queue.maintenance.lease("daemon", holder="other", ttl_s=30.0),
        dead_or_alive,
    ),
    Race(
        "both parts of an answer are sent",
        two_parts,
        part_sent(0),
        part_sent(1),
        settled,
        guard="uncommitted",
    ),
    Race("both parts of an answer fail", two_parts, part_failed(0), part_failed(1), one_apology),
    Race(
        "a message is sent twice",
        one_part,
        lambda queue, row: queue.outbox.record_send(row, "$1", into=ALERT),
        lambda queue, row: queue.outbox.record_send(row, "$1", into=ALERT),
        remembered_once,
    ),
    Race("a message is accepted twice", nothing, accepted, accepted, one_row, guard="statement"),
    Race(
        "a key becomes a digest while its message comes again",
        ignored_long_ago,
        accepted,
        lambda queue, _: queue.maintenance.prune(older_than_s=1.0),
        not_accepted_again,
        at=r"FROM seen|DELETE FROM inbox",
        within_s=2.0,
    ),
    Race(
        "what was posted once is forgotten while its topic gets another value",
        posted_long_ago,
        lambda queue, _: queue.outbox.post([out("news")], once=("topic", "new")),
        lambda queue, _: queue.maintenance.prune(older_than_s=1.0),
        newest_post_known,
        guard="statement",
        at=r"INTO once|FROM outbox WHERE key",
        within_s=2.0,
    ),
    Race("two ends of a turn", taken, completed, completed, answered_once, guard="statement"),
    Race("an end against a stop", taken, completed, stopped, answered_or_stopped),
    Race(
        "a release against a stop",
        taken,
        lambda queue, turn: queue.turns.release(turn),
        stopped,
        given_back_or_stopped,
        guard="statement",
    ),
    Race(
        "a step against a stop",
        taken,
        lambda queue, turn: queue.turns.record_step_start(turn, step(0)),
        stopped,
        no_step_of_a_stopped_turn,
        at=r"SELECT 1 FROM inbox WHERE state = 'running'|DELETE FROM turn_steps",
    ),
    Race(
        "a claim against a withdrawal",
        waiting,
        claimed,
        lambda queue, _: amend(queue, WITHDRAW),
        taken_and_stopped_or_never,
    ),
    Race(
        "a claim against an edit", waiting, claimed, lambda queue, _: amend(queue, REPLACE), asked_as_edited
    ),
    Race(
        "a claim against a reset",
        waiting,
        claimed,
        lambda queue, _: queue.inbox.reset_session(ROOM),
        never_half_reset,
    ),
    Race(
        "a requeue against a drop",
        dead,
        lambda queue, row: queue.inbox.requeue(row),
        lambda queue, row: queue.inbox.drop(row),
        gone,
        guard="statement",
    ),
    Race(
        "two requeues",
        dead,
        lambda queue, row: queue.inbox.requeue(row),
        lambda queue, row: queue.inbox.requeue(row),
        one_of_two,
        guard="statement",
    ),
    Race(
        "two let a message in",
        quarantined,
        lambda queue, row: queue.inbox.admit(row),
        lambda queue, row: queue.inbox.admit(row),
        one_refused,
        guard="statement",
    ),
    Race(
        "a message is let in and dropped",
        quarantined,
        lambda queue, row: queue.inbox.admit(row),
        lambda queue, row: queue.inbox.drop(row),
        admitted_or_dropped,
        guard="statement",
    ),
    Race(
        "a draft is approved and rejected",
        draft,
        lambda queue, row: queue.outbox.approve(row),
        lambda queue, row: queue.outbox.reject(row),
        sent_or_given_up,
        guard="statement",
    ),
    Race("two decisions", asked, decided("approved"), decided("refused"), one_verdict),
    Race("a decision against its time", asked, decided("approved"), timed_out, one_verdict),
    Race(
        "a grant against a no",
        asked,
        decided("approved", a_grant("g000001")),
        decided("refused"),
        granted_only_by_a_yes,
    ),
    Race("a yes against a withdrawal", asked, decided("approved"), decided(WITHDRAWN), one_verdict),
    Race(
        "two jobs at the limit",
        nothing,
        lambda queue, _: queue.jobs.add_job(a_job("one"), at_most=1),
        lambda queue, _: queue.jobs.add_job(a_job("other"), at_most=1),
        one_refused,
    ),
    Race(
        "an instant of a job fires twice",
        lambda queue: queue.jobs.add_job(a_job("one"), at_most=1),
        lambda queue, _: queue.jobs.record_run("one", 1, AT, None),
        lambda queue, _: queue.jobs.record_run("one", 1, AT, None),
        one_of_two,
        guard="statement",
    ),
    Race(
        "a line of the ledger twice",
        nothing,
        noted(0, RunOutcome.DELIVERED),
        noted(0, RunOutcome.DELIVERED),
        one_line,
    ),
    Race(
        "posted once",
        nothing,
        lambda queue, _: queue.outbox.post([out("low")], once=("budget", "today")),
        lambda queue, _: queue.outbox.post([out("low")], once=("budget", "today")),
        one_of_two,
        guard="statement",
    ),
    Race("two dear turns of a day", two_turns, dear(0), dear(1), both_kept, at="SELECT value FROM state"),
    Race("spent twice", nothing, spent, spent, both_counted, guard="statement"),
]
