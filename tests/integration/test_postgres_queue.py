"""The queue in PostgreSQL beside what every queue promises: faults of the server, poolers, homes, plans, signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path

import anyio
import psycopg
import pytest

from gateway.store.postgres.postgres_connection import Transaction, connect, is_pooled, place_of
from gateway.store.postgres.postgres_queue import PostgresQueue, migrate
from gateway.store.sql import inbox_statements, maintenance_statements, maintenance_store
from gateway.store.sql.engine import NOTHING
from gateway.store.states import InboxState
from gateway.store.stores import Queue, StoreUnavailable
from gateway.store.wakeups import Wakeups
from tests.clock import ManualClock
from tests.contract.queue_data import OTHER, ROOM, accept, answer, claim, pending
from tests.pooler import Pooler
from tests.postgres_server import PASSWORD, PostgresServer

pytestmark = [pytest.mark.integration]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.with_tables()


@pytest.fixture
async def store(url: str):
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        yield store


async def back(store: Queue) -> None:
    """Wait until the server is reached again."""
    with anyio.fail_after(60):
        while True:
            try:
                await store.maintenance.stats()
                return
            except StoreUnavailable:
                await anyio.sleep(0.05)


async def test_a_server_that_crashes_is_waited_for_and_has_lost_nothing(postgres: PostgresServer):
    """Calls say no at once while it is away, and a turn that was claimed before is still owned afterwards."""
    with PostgresServer.start(fsync=True) as server:
        url = server.with_tables()
        async with await PostgresQueue.open(url, clock=ManualClock()) as store:
            await accept(store, "a")
            turn = await claim(store)
            server.kill()
            for _ in range(20):
                with pytest.raises(StoreUnavailable):
                    await store.maintenance.stats()
            server.begin()
            await back(store)
            await answer(store, turn)
            [row] = await store.inbox.rows()
            assert row.state is InboxState.ANSWERED and row.attempts == 1


async def test_a_connection_that_is_ended_between_two_calls_is_replaced(postgres: PostgresServer, store, url):
    """Nothing had happened on it, so the caller does not even hear of it."""
    await accept(store, "a")
    await store.maintenance.stats()
    with postgres.admin() as db:
        ended = db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            (url.rpartition("/")[2],),
        ).fetchall()
    assert len(ended) >= 2
    await accept(store, "b")
    assert len(await store.inbox.rows()) == 2


async def test_a_transaction_that_loses_its_connection_is_made_once_more_and_counts_once(
    postgres: PostgresServer, store
):
    """The first one was ended after its statements and before its commit."""
    tries = []

    def run(db: Transaction) -> int:
        tries.append(db)
        db.execute("INSERT INTO state (topic, value) VALUES (?, 'x')", (f"t{len(tries)}",))
        [(pid,)] = db.execute("SELECT pg_backend_pid()").fetchall()
        if len(tries) == 1:
            with postgres.admin() as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            db.execute("SELECT 1")
        return len(tries)

    assert await store.database.writer.call("try", run, locks=NOTHING) == 2
    found = await store.database.reader.call(
        "look", lambda db: db.execute("SELECT topic FROM state WHERE topic LIKE 't%'").fetchall()
    )
    assert found == [("t2",)]


async def test_two_that_wait_for_each_other_are_both_done(postgres: PostgresServer, store):
    """A deadlock, which locks out of order make, is repeated and nobody hears of it."""
    await store.state.write("a", "0")
    await store.state.write("b", "0")
    meet = asyncio.Barrier(2)
    loop = asyncio.get_running_loop()
    tries = []

    async def both(first: str, second: str) -> None:
        def run(db: Transaction) -> None:
            tries.append(first)
            add = "UPDATE state SET value = value || '1' WHERE topic = ?"
            db.execute(add, (first,))
            if len(tries) <= 2:
                asyncio.run_coroutine_threadsafe(meet.wait(), loop).result(10)
            db.execute(add, (second,))

        await store.database.writer.call("both", run, locks=NOTHING)

    await asyncio.gather(both("a", "b"), both("b", "a"))
    assert len(tries) >= 3  # whoever was ended may meet the other one again
    assert await store.state.read("a") == await store.state.read("b") == "011"


async def test_a_claim_whose_caller_was_cancelled_has_not_happened(store):
    """Whenever the cancellation comes: the row is ready again, and its start does not count."""
    await accept(store, "a")
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.02):
        task = asyncio.ensure_future(store.turns.claim(ROOM))
        await asyncio.sleep(delay)
        if not task.cancel():
            turn = task.result()
            assert turn is not None
            await store.turns.release(turn)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await (
            store.database.writer._none_open.wait()
        )  # what was begun has come to its end, and what undoes it
        [row] = await store.inbox.rows()
        assert (row.state, row.attempts) == (InboxState.READY, 0)


async def test_homes_of_one_database_do_not_see_each_other(postgres: PostgresServer, url: str):
    """The same ids, keys, topics and leases in two homes are two things."""
    migrate(url, home=2)
    clock = ManualClock()
    async with (
        await PostgresQueue.open(url, clock=clock, home=1) as one,
        await PostgresQueue.open(url, clock=clock, home=2) as two,
    ):
        for store in (one, two):
            await accept(store, "a")
            await store.state.write("topic", "x")
            assert await store.maintenance.lease("l", holder=str(id(store)), ttl_s=10) == 1
        await one.state.write("topic", "mine")
        await answer(one, await claim(one))
        assert await two.state.read("topic") == "x"
        assert [row.state for row in await two.inbox.rows()] == [InboxState.READY]
        assert await two.outbox.rows() == []
        assert one.maintenance.identity != two.maintenance.identity
    with postgres.admin(url.rpartition("/")[2]) as db:  # a superuser sees no more than it asks for
        db.execute("SELECT set_config('squidbot.home', '2', false)")
        assert db.execute("SELECT count(*) FROM squidbot.outbox").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM squidbot.all_outbox").fetchone() == (1,)


@pytest.mark.parametrize("waits", [True, False])
async def test_recovery_waits_for_what_a_dead_process_is_committing(
    store, url: str, monkeypatch: pytest.MonkeyPatch, *, waits: bool
):
    """A claim that is committed after the start of recovery is recovered too. The control takes no lock."""
    await accept(store, "a")
    if not waits:
        monkeypatch.setattr(maintenance_store, "ALONE", NOTHING)
    with connect(url) as dead:
        transaction = Transaction(dead, 1)
        transaction.execute("UPDATE inbox SET state = 'running', turn = 't' WHERE native_id = ?", ("a",))
        if waits:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.maintenance.recover)
                await anyio.sleep(0.3)
                transaction.commit()
        else:
            await store.maintenance.recover()
            transaction.commit()
    [row] = await store.inbox.rows()
    assert row.state is (InboxState.READY if waits else InboxState.RUNNING)


async def test_the_head_of_a_session_is_found_by_the_index(postgres: PostgresServer, store, url: str):
    """With 5,000 waiting and 50,000 settled rows a claim or a name reads some rows, not all of them."""
    with postgres.admin(url.rpartition("/")[2]) as db:
        db.execute(
            "INSERT INTO squidbot.all_inbox (home, channel, account, native_id, session, kind, payload, state,"
            " accepted_at) SELECT 1, 'matrix', 'bot', 'n' || n, CASE WHEN n % 11 = 0 THEN 'matrix/!hot' ELSE"
            " 'matrix/!r' || n % 200 END, 'message', '{}', CASE WHEN n % 11 = 0 THEN 'ready' ELSE 'settled' END, 0"
            " FROM generate_series(1, 55000) AS n"
        )
        db.execute("ANALYZE squidbot.all_inbox")
    head = f"{inbox_statements._claimable()} ORDER BY id LIMIT ?"
    plans = {
        "head": (head, ("matrix/!hot", 1), "inbox_work"),
        "running": (
            "SELECT 1 FROM inbox WHERE state = 'running' AND session = ? LIMIT 1", ("matrix/!hot",), "inbox_running",
        ),
        "newest": (maintenance_statements._newest_ids(1), ("matrix/!r7",), "inbox_newest"),
        "known": ("SELECT id FROM inbox WHERE channel = ? AND account = ? AND native_id = ?",
                  ("matrix", "bot", "n7"), "all_inbox_home_channel_account_native_id_key"),
    }  # fmt: skip
    for name, (text, arguments, index) in plans.items():
        [plan] = await store.database.reader.call(
            "explain",
            lambda db, text=text, arguments=arguments: db.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", arguments
            ).fetchone(),
        )
        shown = json.dumps(plan)
        assert index in shown, (name, shown)
        buffers = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
        assert buffers <= (24 if name == "newest" else 12), (
            name,
            shown,
        )  # it looks once for each of four states


async def test_signals_come_after_the_commit_and_not_without_one(url: str):
    """What is rolled back wakes nobody; what is committed wakes with the sender and the session."""
    wakeups, heard, drafts, decided = Wakeups(), [], [], []
    wakeups.decided.connect(decided.append)
    wakeups.session.connect(heard.append)
    wakeups.history.connect(drafts.append)
    async with await PostgresQueue.open(url, clock=ManualClock(), wakeups=wakeups) as store:

        def fails(db: Transaction) -> None:
            db.execute("INSERT INTO history_journal (session, line) VALUES (?, '{}')", (str(ROOM),))
            db.note("decided", "a000000")
            raise ValueError("not this")

        with pytest.raises(ValueError, match="not this"):
            await store.database.writer.call("fails", fails, locks=NOTHING)
        await store.database.writer.call("notes", lambda db: db.note("decided", 'a1"é'), locks=NOTHING)
        await accept(store, "a")
        await accept(store, "b", session=OTHER)
        await anyio.sleep(0)
        assert [(work.session, work.sender) for work in heard] == [
            (ROOM, pending("a").message.sender.address),
            (OTHER, pending("b").message.sender.address),
        ]
        assert drafts == []
        assert decided == ['a1"é']


async def test_nothing_stays_on_a_connection(url: str):
    """What a transaction has set is gone with it, so a pooler may give its connection to anybody."""
    with connect(url) as db:
        names = ("squidbot.home", "search_path", "statement_timeout", "squidbot.facts")
        before = [db.execute("SELECT current_setting(%s, true)", (name,)).fetchone() for name in names]
        transaction = Transaction(db, 1)
        transaction.lock("one", "two")
        transaction.execute("INSERT INTO history_journal (session, line) VALUES ('a/b', '{}')")
        assert "history" in transaction.commit()
        after = [db.execute("SELECT current_setting(%s, true)", (name,)).fetchone() for name in names]
        assert [found[0] or "" for found in after] == [(found or ("",))[0] or "" for found in before]
        assert db.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


async def test_through_pgbouncer_in_transaction_mode(postgres: PostgresServer, url: str, tmp_path: Path):
    """Two server connections for six of ours: calls find their home and their locks whichever they get."""
    if Pooler.program() is None:
        pytest.skip("PgBouncer is not installed here (Debian: apt install pgbouncer)")
    with Pooler.start(postgres, url.rpartition("/")[2]) as pooler:
        with connect(pooler.url) as db, connect(url) as direct:
            assert is_pooled(db) and not is_pooled(direct)
        async with await PostgresQueue.open(pooler.url, clock=ManualClock()) as store:
            for number in range(30):
                await accept(store, f"a{number}")
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(store.maintenance.stats)
            for _ in range(30):
                await answer(store, await claim(store))
            assert (await store.maintenance.stats()).inbox["answered"] == 30


def test_the_place_of_a_database_has_no_password():
    assert (
        place_of(f"postgresql://me:{PASSWORD}@db.test:5433/x?sslmode=require")
        == "postgresql://db.test:5433/x"
    )
    assert place_of("postgresql://[") == "postgresql://"


async def test_a_lock_of_many_sessions_is_one_transaction(store):
    """An accept of 1,200 sessions holds 1,200 locks."""
    names = [f"session:matrix/!s{number}" for number in range(1200)]
    held = await store.database.writer.call(
        "many",
        lambda db: db.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone(),
        locks=names,
    )
    assert held == (1200 + 1,)  # and the one that all share


async def test_a_server_that_hangs_is_noticed(postgres: PostgresServer):
    """A frozen server keeps a call; it shows as stalled, and the call is done after the thaw."""
    with PostgresServer.start() as server:
        url = server.with_tables()
        async with await PostgresQueue.open(url, clock=ManualClock()) as store:
            await accept(store, "a")
            server.freeze()
            task = asyncio.ensure_future(accept(store, "b"))
            until = time.monotonic() + 20
            while store.maintenance.stalled_s < 0.2 and time.monotonic() < until:
                await anyio.sleep(0.05)
            assert store.maintenance.stalled_s >= 0.2 and not task.done()
            server.freeze(thaw=True)
            with contextlib.suppress(psycopg.Error, StoreUnavailable):
                await task
            await back(store)
            assert len(await store.inbox.rows()) >= 1
