"""
Signals come from the queue itself: whoever commits something through its port tells nobody, and whoever waits
hears of it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from agent_core.messages import Amendment, OutboundKind
from agent_core.models import Message, Purpose, Usage
from gateway.store.model import Completion, Job, JobKind, JobState, Step, StoppedTurn
from gateway.store.sql.signals import Signals
from gateway.store.sqlite import sqlite_connection
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.sqlite.watching import CommitWatch
from gateway.store.states import InboxState
from gateway.store.stores import LostTurn, NewOutbound, Queue, StoreUnavailable
from gateway.store.wakeups import Signal, Wakeups, Work
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, claim, out, pending, reply

JOB = Job("j1", JobKind.ASK, "hi", "at x", ROOM, "bot", "@a:x", EPOCH, next_at=EPOCH)
NOTE = NewOutbound("email", "bot@mail.test", ROOM, "Hello", OutboundKind.NOTICE)
DRAFT = NewOutbound("email", "bot@mail.test", ROOM, "Hello", OutboundKind.REPLY, hold=True)


class Harness:
    """A store whose signals are counted."""

    def __init__(self, store: Queue, wakeups: Wakeups, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.heard: dict[str, list[object]] = {}
        for name, signal in vars(wakeups).items():
            signal.connect(self.heard.setdefault(name, []).append)

    async def told(self, signal: str, call: Awaitable[object]) -> list[object]:
        """What a signal says during one call."""
        heard = self.heard[signal]
        for _ in range(2):
            await anyio.sleep(0)  # what was committed before is told by then
        heard.clear()
        await call
        for _ in range(2):
            await anyio.sleep(0)
        return list(heard)


@pytest.fixture
async def house(tmp_path: Path):
    wakeups, clock = Wakeups(), ManualClock()
    path = tmp_path / "gateway.db"
    async with await SqliteQueue.open(path, clock=clock, wakeups=wakeups, busy_timeout_s=0.05) as store:
        yield Harness(store, wakeups, clock)


async def running(house: Harness):
    """A turn that is claimed."""
    await accept(house.store, "a")
    return await claim(house.store)


async def sent_once(house: Harness):
    """A row of the outbox on its way."""
    [row] = await house.store.outbox.post([NOTE])
    await house.store.outbox.sending(row)
    return row


async def posted(house: Harness):
    return house.store.outbox.post([NOTE])


async def once(house: Harness):
    return house.store.outbox.post([NOTE], once=("budget", "today"))


async def completed(house: Harness):
    return house.store.turns.complete(await running(house), reply("Hi"))


async def buried(house: Harness):
    return house.store.turns.dead_letter(await running(house), "gone", [NOTE])


def question() -> Step:
    until = (EPOCH + timedelta(hours=1)).isoformat()
    request = {"name": "t1", "asked": [], "call": {"name": "tool"}, "until": until}
    return Step(0, "approval", "d", request, {"verdict": "expired"})


async def asked(house: Harness):
    return house.store.approvals.ask(await running(house), question(), [NOTE], why="waits", delay_s=60.0)


async def settled(house: Harness):
    return house.store.approvals.settle(await running(house), question(), [NOTE])


async def approved(house: Harness):
    [row] = await house.store.outbox.post([DRAFT])
    return house.store.outbox.approve(row.id)


async def apologised(house: Harness):
    row = (await house.store.turns.complete(await running(house), reply("Hi")))[0]
    await house.store.outbox.sending(row)
    return house.store.outbox.record_failure(row, "no", delay_s=None, apology="Sorry")


async def link_up(house: Harness):
    row = await sent_once(house)
    await house.store.outbox.record_failure(row, "no link", delay_s=600.0, waits_for="link:email")
    return house.store.maintenance.due_now("link:email")


async def unsure_link_up(house: Harness):
    row = await sent_once(house)
    await house.store.outbox.uncertain(row)
    await house.store.outbox.record_failure(row, "?", delay_s=600.0, certain=False, waits_for="link:email")
    return house.store.maintenance.due_now("link:email")


async def requeued(house: Harness):
    rows = await house.store.turns.complete(await running(house), reply("Hi"))
    await house.store.outbox.sending(rows[0])
    await house.store.outbox.record_failure(rows[0], "no", delay_s=None)
    return house.store.inbox.requeue(rows[0].inbox_id)


async def dropped(house: Harness):
    rows = await house.store.turns.complete(await running(house), reply("Hi"))
    return house.store.inbox.drop(rows[0].inbox_id)


SENDS: list[Callable[[Harness], Awaitable[Awaitable[object]]]] = [
    posted, once, completed, buried, asked, settled, approved, apologised, link_up,
    unsure_link_up, requeued, dropped,
]  # fmt: skip


@pytest.mark.parametrize("make", SENDS, ids=lambda make: make.__name__)
async def test_whatever_can_be_sent_is_told(house, make):
    """Every call that gives a channel something to send fires ``outbox`` with that channel, once."""
    call = await make(house)
    assert await house.told("outbox", call) in (["email"], ["matrix"])


async def test_what_cannot_be_sent_yet_is_not_told(house):
    """A draft, a mark of a send in hand, one that was taken and a look at the queue wake no sender."""
    assert await house.told("outbox", house.store.outbox.post([DRAFT])) == []
    [row] = await house.store.outbox.post([NOTE])
    for call in (
        house.store.outbox.sending(row),
        house.store.outbox.uncertain(row),
        house.store.outbox.record_send(row, "id"),
        house.store.outbox.next_sends("email", "bot@mail.test"),
        house.store.outbox.post([], once=("budget", "today")),
    ):
        assert await house.told("outbox", call) == []


async def test_what_came_is_told_with_whose_it_is(house):
    """One word for each of several messages; commands and reactions wait for no turn; what is ignored is told to nobody."""
    heard = await house.told("session", accept(house.store, "a", "b"))
    assert heard == [Work(ROOM, 0.0, "matrix", "@alice:hs.test", True, "message")]
    [command] = await house.told("session", accept(house.store, "c", alone=True))
    [reaction] = await house.told("session", accept(house.store, "r", kind="reaction"))
    assert [one.is_quick for one in (*heard, command, reaction)] == [False, True, True]
    assert await house.told("session", accept(house.store, "a")) == []
    assert await house.told("session", accept(house.store, "i", ignore="no")) == []
    assert await house.told("session", accept(house.store, "q", quarantine="why")) == []


async def test_what_waits_is_told_with_when_it_is_due(house):
    """A retry, a delay, a question of a tool, an end of what was waited for, and the word of a person."""
    store, turn = house.store, await running(house)
    retried = store.turns.retry(turn, "away", delay_s=60.0, deferral=True, waits_for="link:matrix")
    assert [one.after_s for one in await house.told("session", retried)] == [60.0]
    assert [one.after_s for one in await house.told("session", store.maintenance.due_now("link:matrix"))] == [
        0.0
    ]
    postponed = store.turns.postpone(await claim(store), "later", delay_s=0.0)
    assert [one.after_s for one in await house.told("session", postponed)] == [0.0]
    asked = store.approvals.ask(
        await claim(store), replace(question(), result=None), [], why="waits", delay_s=60.0
    )
    assert [one.after_s for one in await house.told("session", asked)] == [60.0]
    decided = store.approvals.decide("t1", {"verdict": "approved"})
    assert [(one.after_s, one.is_quick) for one in await house.told("session", decided)] == [(0.0, False)]
    # A question that was decided while its turn ran: nobody else will ever say that the turn can go on.
    again = store.approvals.ask(
        await claim(store), replace(question(), result=None), [], why="", delay_s=60.0
    )
    assert [one.after_s for one in await house.told("session", again)] == [0.0]


async def test_what_a_person_decides_is_told(house):
    """Also while the turn goes on; once, whatever is said later; by a message as well."""
    store, turn = house.store, await running(house)
    for number in (1, 2):
        step = replace(question(), number=number, digest=f"d{number}", result=None)
        step = replace(step, request={**step.request, "name": f"t{number}"})
        await store.approvals.ask(turn, step, [], why="", delay_s=None)
    yes = {"verdict": "approved"}
    assert await house.told("decided", store.approvals.decide("t1", yes)) == ["t1"]
    assert await house.told("decided", store.approvals.decide("t1", yes)) == []
    assert await house.told("decided", store.approvals.decide("t9", yes)) == []
    entry = replace(pending("w"), settles={"t2": {"verdict": "withdrawn"}})
    assert await house.told("decided", store.inbox.accept("matrix", BOT, [entry], {})) == ["t2"]
    assert await house.told("decided", accept(store, "x")) == []


async def test_what_a_person_lets_in_or_tries_again_is_told(house):
    """Out of quarantine, and a dead letter."""
    [row] = await accept(house.store, "q", quarantine="why")
    assert [one.session for one in await house.told("session", house.store.inbox.admit(row.id))] == [ROOM]
    await house.store.turns.dead_letter(await claim(house.store), "gone")
    assert [one.session for one in await house.told("session", house.store.inbox.requeue(row.id))] == [ROOM]


async def test_what_was_behind_is_told(house):
    """The next message, when the one before it is answered, given up or taken back; never when none is left."""
    store = house.store
    rows = await accept(store, "a", "b", "c", "d")
    assert len(await house.told("session", store.turns.complete(await claim(store), reply("Hi")))) == 1
    assert len(await house.told("session", store.turns.dead_letter(await claim(store), "gone"))) == 1
    assert len(await house.told("session", store.inbox.drop(rows[2].id))) == 1
    assert await house.told("session", store.turns.complete(await claim(store), reply("Hi"))) == []


async def test_who_gives_a_turn_back_is_not_told_of_it(house):
    """Else a turn that cannot be run now would be run again at once, and again; the same at the start."""
    turn = await running(house)
    assert await house.told("session", house.store.turns.release(turn)) == []
    await claim(house.store)
    assert await house.told("session", house.store.maintenance.recover()) == []


async def test_whoever_runs_a_turn_is_told_that_it_was_taken_away(house):
    """By the words of its sender; a message that only waits is taken away in silence."""
    turn = await running(house)
    await accept(house.store, "b")
    stop = Amendment(kind="stop", session=ROOM, sender="")
    taken = house.store.inbox.accept("matrix", BOT, [], {}, [stop])
    assert await house.told("stopped", taken) == [StoppedTurn(ROOM, turn.id, "stopped")]


async def test_a_draft_is_told_to_whoever_asks_the_owner(house):
    """What is held fires ``drafts``, whatever call has put it into the outbox; what is not held does not."""
    held = Completion(outbound=[replace(out("Hi"), hold=True)])
    assert await house.told("drafts", house.store.turns.complete(await running(house), held)) == ["matrix"]
    assert await house.told("drafts", house.store.outbox.post([DRAFT])) == ["email"]
    assert await house.told("drafts", house.store.outbox.post([NOTE])) == []


async def test_lines_of_every_history_are_told(house):
    """The turn's own, those for other sessions, and what joins a history when it has arrived."""
    line = Message(role="assistant", content="Hi", id="1", timestamp=EPOCH)
    both = Completion(history=[line], others=[(OTHER, (line,))])
    assert await house.told("history", house.store.turns.complete(await running(house), both)) == [
        ROOM,
        OTHER,
    ]
    line = Message(role="assistant", content="Hi", id="2", timestamp=EPOCH)
    digest = house.store.outbox.post([NOTE], once=("digest", "today"), history=[(OTHER, (line,))])
    assert await house.told("history", digest) == [OTHER]
    [row] = await house.store.outbox.post([replace(NOTE, remembered=True)])
    await house.store.outbox.sending(row)
    assert await house.told("history", house.store.outbox.record_send(row, "id", into=OTHER)) == [OTHER]
    done = house.store.journal.delete_filed_lines([line.id for line in await house.store.journal.lines()])
    assert await house.told("history", done) == []


async def test_what_was_spent_is_told(house):
    """A cost that is noted by itself, a second one on the same line, and one that comes with an answer."""
    usage = Usage(prompt_tokens=5, calls=1)
    for _ in range(2):
        noted = house.store.usage.add(ROOM, usage, Purpose.CHAT)
        assert len(await house.told("usage", noted)) == 1
    answered = house.store.turns.complete(await running(house), Completion(usage=usage))
    assert len(await house.told("usage", answered)) == 1
    assert await house.told("usage", house.store.usage.rows()) == []


async def test_a_job_that_is_due_sooner_is_told(house):
    """A new one, one that goes on, one that is earlier; not one that is paused, has run or was removed."""
    store, soon, later = house.store, EPOCH, EPOCH + timedelta(hours=2)
    assert await house.told("jobs", store.jobs.add_job(JOB, at_most=9)) == ["j1"]
    assert await house.told("jobs", store.jobs.record_run("j1", 0, soon, later)) == []
    assert await house.told("jobs", store.jobs.set_job_state("j1", JobState.PAUSED, later)) == []
    assert await house.told("jobs", store.jobs.set_job_state("j1", JobState.ACTIVE, later)) == ["j1"]
    assert await house.told("jobs", store.jobs.set_job_state("j1", JobState.ACTIVE, soon)) == ["j1"]
    assert await house.told("jobs", store.jobs.remove_job("j1")) == []


async def test_nothing_is_told_of_what_did_not_happen(house):
    """A call that is refused, and with it undone, tells nothing; one that shares its commit does."""
    old = await running(house)
    await house.store.maintenance.recover()
    await claim(house.store)

    async def both() -> None:
        async with anyio.create_task_group() as tasks:

            async def refused() -> None:
                with pytest.raises(LostTurn):
                    await house.store.turns.complete(old, reply("lost"))

            tasks.start_soon(refused)
            tasks.start_soon(house.store.outbox.post, [NOTE])

    assert await house.told("outbox", both()) == ["email"]


async def test_nothing_is_told_of_what_the_disk_did_not_take(house, tmp_path):
    """While the database is locked by somebody else nothing happens, and nothing is told."""
    other = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def locked() -> None:
        with pytest.raises(StoreUnavailable):
            await house.store.outbox.post([NOTE])

    try:
        assert await house.told("outbox", locked()) == []
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert await house.told("outbox", house.store.outbox.post([NOTE])) == ["email"]


async def test_a_commit_is_told_although_its_caller_was_cancelled(house):
    """It has happened, so somebody must send it."""
    loop, at_work, go_on = asyncio.get_running_loop(), anyio.Event(), threading.Event()
    [row] = await house.store.outbox.post([DRAFT])

    def slowly(db: sqlite3.Connection) -> None:
        db.execute("UPDATE outbox SET state = 'pending' WHERE id = ?", (row.id,))
        loop.call_soon_threadsafe(at_work.set)
        go_on.wait(10)

    async def cancelled() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(house.store.database.writer.call, "approve", slowly)
            await at_work.wait()
            tasks.cancel_scope.cancel()
        go_on.set()
        await house.store.database.writer.call("nothing", lambda _: None)  # the one before has ended

    assert await house.told("outbox", cancelled()) == ["email"]


@pytest.mark.parametrize("tries_again", [True, False])
async def test_a_claim_of_nobody_is_undone_when_the_disk_takes_it(
    house, tmp_path, monkeypatch, *, tries_again
):
    """Its caller was cancelled while somebody else had the database; the control does not try again."""
    monkeypatch.setattr(sqlite_connection, "RETRY_UNDO_S", 0.02 if tries_again else 600)
    await accept(house.store, "a")
    writer, at_work, go_on = house.store.database.writer, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    other = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None, check_same_thread=False)
    note = writer._note_commit

    def committed(call):
        note(call)
        if call.name == "claim" and not go_on.is_set():
            loop.call_soon_threadsafe(at_work.set)
            go_on.wait(10)

    monkeypatch.setattr(writer, "_note_commit", committed)
    task = asyncio.ensure_future(house.store.turns.claim(ROOM))
    await at_work.wait()
    other.execute("BEGIN IMMEDIATE")
    house.heard["session"].clear()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(StoreUnavailable):
        await house.store.outbox.post([NOTE])
    other.execute("ROLLBACK")
    other.close()
    for _ in range(500 if tries_again else 20):
        [row] = await house.store.inbox.rows()
        if row.state is InboxState.READY:
            break
        await asyncio.sleep(0.01)
    assert (row.state is InboxState.READY) == tries_again
    assert [work.session for work in house.heard["session"]] == ([ROOM] if tries_again else [])


async def test_it_is_told_on_a_new_connection_too(house):
    """The triggers live in the connection, and every new one has them."""

    def broken(_: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    with pytest.raises(StoreUnavailable):
        await house.store.database.writer.call("read", broken)
    assert house.store.database.writer._db is None
    assert await house.told("outbox", house.store.outbox.post([NOTE])) == ["email"]


async def test_a_subscriber_is_called_in_a_task(tmp_path):
    """So it may start others and ask for the time, which a callback of the bare loop may not."""
    wakeups, done = Wakeups(), anyio.Event()

    async def work(_: float) -> None:
        done.set()

    path = tmp_path / "gateway.db"
    async with (
        await SqliteQueue.open(path, clock=ManualClock(), wakeups=wakeups) as store,
        anyio.create_task_group() as tasks,
    ):
        wakeups.session.connect(lambda _: tasks.start_soon(work, anyio.current_time()))
        await accept(store, "a")
        with anyio.fail_after(60):
            await done.wait()


async def test_a_subscriber_that_raises_keeps_no_other_from_its_wake_up():
    heard: list[str] = []
    signal = Signal[str]()
    signal.connect(lambda _: 1 / 0)
    signal.connect(heard.append)
    signal.fire("matrix")
    assert heard == ["matrix"]


async def test_a_damaged_row_keeps_no_other_session_from_its_wake_up(house):
    """Somebody has written a word where a time stands; what came true in the same commit is told all the same."""
    await accept(house.store, "a")
    await accept(house.store, "b", session=OTHER)

    def damage(db):
        db.execute("UPDATE inbox SET next_at = 1e12")
        db.execute("UPDATE inbox SET next_at = '' WHERE id = 1")
        db.execute("UPDATE inbox SET next_at = NULL WHERE id = 2")

    # An empty text is no time, and sorts behind all of them.
    told = await house.told("session", house.store.database.writer.call("damage", damage))
    assert [one.session for one in told] == [OTHER]
    watch = CommitWatch(Signals(wakeups := Wakeups(), lambda: 0.0))
    wakeups.outbox.connect((heard := []).append)
    watch.fire([("session", str(ROOM), "soon", "matrix", "chat", 1, "x", 1), ("outbox", "matrix")])
    await anyio.sleep(0)
    assert heard == ["matrix"]
