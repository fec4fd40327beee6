"""Connections that are lost in the commit: the caller is told, its claim is undone, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import psycopg
import pytest

from agent_core.messages import Amendment
from agent_core.models import Purpose, Usage
from gateway.store.model import Completion
from gateway.store.postgres import pool
from gateway.store.postgres.pool import Pool
from gateway.store.postgres.postgres_connection import Transaction
from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.sql import inbox_statements
from gateway.store.states import InboxState
from gateway.store.stores import LostTurn, StoreUnavailable
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

        def away(pool: Pool) -> psycopg.Connection:
            if self.gone:
                self.gone -= 1
                raise psycopg.OperationalError("the server is away")
            return connected(pool)

        monkeypatch.setattr(Transaction, "commit", cut)
        monkeypatch.setattr(Pool, "connect", away)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Cuts:
    return Cuts(monkeypatch)


@pytest.fixture(params=["made good", "forgotten"])
def is_mended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether what a lost commit leaves is made good. The control is a queue that forgets it."""
    if request.param == "forgotten":
        monkeypatch.setattr(Pool, "_take_back", lambda pool, call: None)
    return request.param == "made good"


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
async def test_what_is_repeated_counts_once(house: Harness, cuts: Cuts, *, happens: bool):
    """Its caller is told, and repeats it: a message and a post have keys. The control is a cost, which has none."""
    store = house.store
    calls = (
        lambda: accept(store, "a"),
        lambda: store.outbox.post([NOTE], once=("note", "1")),
        lambda: store.usage.add(ROOM, Usage(calls=1, prompt_tokens=7), Purpose.CHAT),
    )
    for call in calls:
        cuts.left, cuts.away = [happens], 2
        await repeated(call)
    cuts.gone = 0
    [row] = await store.usage.rows()
    assert (len(await store.inbox.rows()), len(await store.outbox.rows())) == (1, 1)
    assert row.usage.calls == 1 + happens


@pytest.mark.parametrize("happens", [True, False])
async def test_an_answer_is_committed_once(house: Harness, cuts: Cuts, *, happens: bool):
    """What has happened has ended the claim, so a repetition is refused."""
    await accept(house.store, "a")
    turn = await claim(house.store)
    cuts.left = [happens]
    try:
        await repeated(lambda: house.store.turns.complete(turn, Completion(outbound=[out("Hi")])))
    except LostTurn:
        assert happens
    assert [row.message.text for row in await house.store.outbox.rows()] == ["Hi"]


@pytest.mark.parametrize("happens", [True, False])
async def test_a_claim_whose_commit_is_lost_is_undone(
    house: Harness, cuts: Cuts, *, is_mended: bool, happens: bool
):
    """Else its row would be running in a process that does not know of it."""
    await accept(house.store, "a")
    cuts.left, cuts.away = [happens], 2
    with pytest.raises(StoreUnavailable):
        await claim(house.store)
    await house.store.database.writer._none_open.wait()
    cuts.gone = 0
    [row] = await house.store.inbox.rows()
    assert (row.state is InboxState.READY) == (is_mended or not happens)
    if is_mended:
        assert row.attempts == 0
        await house.store.turns.complete(await claim(house.store), Completion(outbound=[out("Hi")]))


@pytest.mark.parametrize("unique", [True, False])
async def test_a_late_undo_does_not_take_the_next_claim(
    house: Harness, cuts: Cuts, monkeypatch: pytest.MonkeyPatch, *, unique: bool
):
    """The lost claim of a turn that is tried again has not happened. The control gives both claims one fence."""
    if not unique:
        monkeypatch.setattr(inbox_statements.secrets, "randbelow", lambda _: 0)
    store = house.store
    await accept(store, "a")
    await store.turns.retry(await claim(store), "away", delay_s=0.0, deferral=False)
    late: list[Any] = []
    undo = Pool._take_back
    monkeypatch.setattr(Pool, "_take_back", lambda pool, call: late.append((pool, call)))
    cuts.left = [False]
    with pytest.raises(StoreUnavailable):
        await claim(store)
    turn = await claim(store)
    for pool_of, call in late:
        undo(pool_of, call)
    await store.database.writer._none_open.wait()
    [row] = await store.inbox.rows()
    assert (row.state is InboxState.RUNNING) is unique
    if unique:
        await store.turns.complete(turn, Completion(outbound=[out("Hi")]))


@pytest.mark.parametrize("happens", [True, False])
async def test_a_claim_of_nobody_is_undone_through_every_loss(
    house: Harness, cuts: Cuts, *, is_mended: bool, happens: bool
):
    """Its caller was cancelled, its own commit and that of what undoes it were lost, and the server was away."""
    await accept(house.store, "a")
    heard = house.heard["session"]
    heard.clear()
    cuts.left, cuts.away = [True, happens], 2
    task = asyncio.ensure_future(house.store.turns.claim(ROOM))
    await until(lambda: len(cuts.left) == 1)
    task.cancel()
    with pytest.raises((asyncio.CancelledError, StoreUnavailable)):
        await task
    await house.store.database.writer._none_open.wait()
    cuts.gone = 0
    [row] = await house.store.inbox.rows()
    assert (row.state is InboxState.READY) == is_mended
    if is_mended:
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


async def test_what_a_lost_commit_would_have_told_is_told(house: Harness, cuts: Cuts, *, is_mended: bool):
    """A message, a command, an answer with its line: each was committed, and nobody was told so."""
    store = house.store
    cuts.left = [True]
    await repeated(lambda: accept(store, "a"))
    assert len(await store.inbox.rows()) == 1
    cuts.left = [True]
    await repeated(lambda: accept(store, "b", session=OTHER, alone=True))
    cuts.left = [True]
    await repeated(lambda: store.outbox.post([NOTE], once=("note", "1")))
    await store.database.writer._none_open.wait()
    await anyio.sleep(0.05)
    told = {(work.session, work.is_quick) for work in house.heard["session"]}
    assert told == ({(ROOM, False), (OTHER, True)} if is_mended else set())
    assert ("email" in house.heard["outbox"]) == is_mended


async def test_a_turn_that_was_taken_away_is_told(house: Harness, cuts: Cuts):
    """The stop was committed, and the turn runs on until somebody says so."""
    await accept(house.store, "a")
    turn = await claim(house.store)
    cuts.left = [True]
    stop = Amendment(kind="stop", session=ROOM, sender="")
    await repeated(lambda: house.store.inbox.accept("matrix", BOT, [], {}, [stop]))
    await until(lambda: bool(house.heard["stopped"]))
    assert [(one.session, one.turn) for one in house.heard["stopped"]] == [(ROOM, turn.id)]


async def test_a_decision_is_told(house: Harness, cuts: Cuts):
    """A call waits for it, in a turn that runs."""
    await accept(house.store, "a")
    step = replace(question(), result=None)
    await house.store.approvals.ask(await claim(house.store), step, [NOTE], why="waits", delay_s=None)
    cuts.left = [True]
    await repeated(lambda: house.store.approvals.decide("t1", {"verdict": "approved"}))
    await until(lambda: house.heard["decided"] == ["t1"])


async def test_a_caller_does_not_wait_for_a_server_that_is_away(house: Harness, cuts: Cuts):
    """They are told that nobody knows, and what was committed is told when the server is back."""
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
