"""Connections that are lost in the commit: what has happened is told, what has not is made again, each once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import psycopg
import pytest

from agent_core.messages import Amendment
from agent_core.models import Purpose, Usage
from gateway.store.model import Completion
from gateway.store.postgres import pool
from gateway.store.postgres.pool import Pool, ServerCall
from gateway.store.postgres.postgres_connection import Transaction
from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.states import InboxState
from gateway.store.stores import StoreUnavailable
from gateway.store.wakeups import Wakeups
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, claim, out
from tests.postgres_server import PostgresServer
from tests.unit.gateway.store.test_wakeups import NOTE, Harness, question

pytestmark = [pytest.mark.integration]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.with_tables()


@pytest.fixture
async def house(url: str):
    wakeups, clock = Wakeups(), ManualClock()
    async with await PostgresQueue.open(url, clock=clock, wakeups=wakeups) as store:
        yield Harness(store, wakeups, clock)


class Cuts:
    """Loses connections in commits: before the server has the commit, or before its answer is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: list[bool] = []
        """Of each commit to come that is cut whether it happens."""
        self.away = 0
        """How many tries to connect fail after each of them."""
        self.gone = 0
        commit, connected = Transaction.commit, Pool.connect

        def cut(transaction: Transaction) -> str:
            if transaction._look_only or not self.left:
                return commit(transaction)
            if self.left.pop(0):
                commit(transaction)
            transaction._db.close()
            self.gone = self.away
            raise psycopg.OperationalError("the connection is lost")

        def away(pool: Pool) -> tuple[psycopg.Connection, str]:
            if self.gone:
                self.gone -= 1
                raise psycopg.OperationalError("the server is away")
            return connected(pool)

        monkeypatch.setattr(Transaction, "commit", cut)
        monkeypatch.setattr(Pool, "connect", away)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Cuts:
    return Cuts(monkeypatch)


@pytest.fixture(params=["asked", "not asked"])
def is_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the server is asked what became of it. The control is a queue that does not ask."""
    if request.param == "not asked":
        monkeypatch.setattr(ServerCall, "is_open", False)
    return request.param == "asked"


async def until(found: Callable[[], bool]) -> None:
    """Wait for what is told by itself."""
    with anyio.fail_after(60):
        while not found():
            await anyio.sleep(0.01)


async def repeated(call: Callable[[], Awaitable[object]]) -> None:
    """What callers do: again, until it is taken."""
    with anyio.fail_after(60):
        while True:
            try:
                await call()
                return
            except StoreUnavailable:
                await anyio.sleep(0.05)


@pytest.mark.parametrize("happens", [True, False])
async def test_what_has_no_key_counts_once(house: Harness, cuts: Cuts, *, is_asked: bool, happens: bool):
    """A cost and a message to nobody's question, whose callers repeat what was refused."""
    store = house.store
    for call in (
        lambda: store.usage.add(ROOM, Usage(calls=1, prompt_tokens=7), Purpose.CHAT),
        lambda: store.outbox.post([NOTE]),
    ):
        cuts.left, cuts.away = [happens], 2
        await repeated(call)
    cuts.gone = 0
    [row] = await store.usage.rows()
    counted = (row.usage.calls, row.usage.prompt_tokens, len(await store.outbox.rows()))
    assert counted == ((2, 14, 2) if happens and not is_asked else (1, 7, 1))


@pytest.mark.parametrize("happens", [True, False])
async def test_a_claim_is_had_or_has_not_happened(
    house: Harness, cuts: Cuts, *, is_asked: bool, happens: bool
):
    """Else its row would be running in a process that does not know of it."""
    await accept(house.store, "a")
    cuts.left, cuts.away = [happens], 2
    turn = None
    try:
        turn = await claim(house.store)
    except StoreUnavailable:
        assert not is_asked
    cuts.gone = 0
    [row] = await house.store.inbox.rows()
    assert (row.state is InboxState.RUNNING) == (turn is not None or happens)
    if is_asked:
        assert turn is not None and row.attempts == 1
        await house.store.turns.complete(turn, Completion(outbound=[out("Hi")]))


@pytest.mark.parametrize("happens", [True, False])
async def test_a_claim_of_nobody_is_undone_through_every_loss(
    house: Harness, cuts: Cuts, *, is_asked: bool, happens: bool
):
    """Its caller was cancelled, its own commit and that of what undoes it were lost, and the server was away."""
    await accept(house.store, "a")
    heard = house.heard["session"]
    heard.clear()
    # An undo of which the queue loses every trace leaves the row running.
    cuts.left, cuts.away = [True, happens], 2
    task = asyncio.ensure_future(house.store.turns.claim(ROOM))
    await until(lambda: len(cuts.left) == 1)
    task.cancel()
    with pytest.raises((asyncio.CancelledError, StoreUnavailable)):
        await task
    await house.store.database.writer._none_open.wait()
    cuts.gone = 0
    [row] = await house.store.inbox.rows()
    assert (row.state is InboxState.READY) == is_asked
    if is_asked:
        assert row.attempts == 0
        await until(lambda: bool(heard))


@pytest.mark.parametrize("pauses", [True, False])
async def test_an_undo_that_is_refused_does_not_keep_the_server_busy(
    house: Harness, monkeypatch: pytest.MonkeyPatch, *, pauses: bool
):
    """A disk may be full for hours; the control asks again at once."""
    if not pauses:
        monkeypatch.setattr(pool, "RETRY_UNDO_S", 0.0)
    tries = 0

    def refused(db: object, value: object) -> None:
        nonlocal tries
        tries += 1
        if not full_no_more:
            raise psycopg.errors.DiskFull("no room")

    full_no_more = False
    writer, begun = house.store.database.writer, asyncio.Event()
    loop = asyncio.get_running_loop()

    def run(_: object) -> None:
        loop.call_soon_threadsafe(begun.set)

    task = asyncio.ensure_future(writer.call("claim", run, locks=(), undo=refused))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(1.5)
    assert (tries <= 3) == pauses, tries
    full_no_more = True
    with anyio.fail_after(60):
        await writer._none_open.wait()


async def test_what_a_lost_commit_would_have_told_is_told(house: Harness, cuts: Cuts, *, is_asked: bool):
    """A message, a command, an answer with its line: each was committed, and nobody was told so."""
    store = house.store
    cuts.left = [True]
    await repeated(lambda: accept(store, "a"))
    assert len(await store.inbox.rows()) == 1
    cuts.left = [True]
    await repeated(lambda: accept(store, "b", session=OTHER, alone=True))
    cuts.left = [True]
    await repeated(lambda: store.outbox.post([NOTE]))
    await anyio.sleep(0.05)
    told = {(work.session, work.is_quick) for work in house.heard["session"]}
    assert told == ({(ROOM, False), (OTHER, True)} if is_asked else set())
    assert "email" in house.heard["outbox"]


async def test_a_turn_that_was_taken_away_is_told(house: Harness, cuts: Cuts):
    """The stop was committed, and the turn runs on until somebody says so."""
    await accept(house.store, "a")
    turn = await claim(house.store)
    cuts.left = [True]
    await house.store.inbox.accept("matrix", BOT, [], {}, [Amendment(kind="stop", session=ROOM, sender="")])
    await until(lambda: bool(house.heard["stopped"]))
    assert [(one.session, one.turn) for one in house.heard["stopped"]] == [(ROOM, turn.id)]


async def test_a_decision_is_told(house: Harness, cuts: Cuts):
    """A call waits for it, in a turn that runs."""
    await accept(house.store, "a")
    step = replace(question(), result=None)
    await house.store.approvals.ask(await claim(house.store), step, [NOTE], why="waits", delay_s=None)
    cuts.left = [True]
    await house.store.approvals.decide("t1", {"verdict": "approved"})
    await until(lambda: house.heard["decided"] == ["t1"])


async def test_a_server_that_took_over_cannot_say_so_the_claim_is_undone(
    house: Harness, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
):
    """Its transactions have the numbers of others: it is not believed, and the caller is told before anybody claims again."""
    timelines = itertools.count()
    monkeypatch.setattr("gateway.store.postgres.pool.timeline_of", lambda db: str(next(timelines)))
    await accept(house.store, "a")
    for happens in (True, False):
        cuts.left = [happens]
        with pytest.raises(StoreUnavailable):
            await claim(house.store)
        [row] = await house.store.inbox.rows()
        assert (row.state, row.attempts) == (InboxState.READY, 0)
        cuts.left = [happens]
        with pytest.raises(StoreUnavailable):
            await house.store.usage.add(ROOM, Usage(calls=1), Purpose.CHAT)
    assert [row.usage.calls for row in await house.store.usage.rows()] == [1]


async def test_a_caller_does_not_wait_for_ever(house: Harness, cuts: Cuts, monkeypatch: pytest.MonkeyPatch):
    """After a while they are told that nobody knows, and what was committed is told when the server is back."""
    monkeypatch.setattr(pool, "NOTIFIED_WITHIN_S", 0.1)
    cuts.left, cuts.away = [True], 10_000
    with anyio.fail_after(60):
        with pytest.raises(StoreUnavailable):
            await accept(house.store, "a")
        assert house.heard["session"] == []
        cuts.gone = 0
        await until(lambda: bool(house.heard["session"]))
    assert len(await house.store.inbox.rows()) == 1


async def test_a_queue_with_a_doubt_can_be_closed(house: Harness, cuts: Cuts):
    """While the server is away for good: whoever waits is told."""
    cuts.left, cuts.away = [True], 10_000
    task = asyncio.ensure_future(accept(house.store, "a"))
    await until(lambda: not cuts.left)
    with anyio.fail_after(60):
        await house.store.aclose()
    with pytest.raises(StoreUnavailable):
        await task
