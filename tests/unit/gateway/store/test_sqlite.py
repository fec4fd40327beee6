"""The embedded store where it is SQLite: its file, its threads, its queries, its imports."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path

import anyio
import pytest

from gateway.store.sql import engine, maintenance_statements
from gateway.store.sql.engine import NOTHING
from gateway.store.sqlite import sqlite_connection
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import AcceptedBatch, LostTurn, Pending, StoreUnavailable
from tests.clock import ManualClock
from tests.contract.queue_data import (
    BOT,
    OTHER,
    ROOM,
    accept,
    answer,
    claim,
    message,
    out,
    pending,
    reply,
)
from tests.unit.gateway.store.writer_calls import pragma, together

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
async def store(tmp_path):
    async with await SqliteQueue.open(
        tmp_path / "gateway.db", clock=ManualClock(), busy_timeout_s=0.05
    ) as opened:
        yield opened


# ── the file ──
async def test_only_the_owner_can_read_it(tmp_path):
    """The database and its log are 0600, also where the file was more open before."""
    path = tmp_path / "gateway.db"
    path.touch(0o644)
    path.chmod(0o644)
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        await accept(store, "a")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "gateway.db-wal" in modes


async def test_bodies_of_ignored_messages_are_nowhere_in_the_file(tmp_path):
    """Neither the database nor its log ever holds the text of an ignored message."""
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as store:
        await store.inbox.accept("matrix", BOT, [pending("a", ignore="no", text="SECRETWORD")], {})
        await store.inbox.accept("matrix", BOT, [pending("b", text="PLAINWORD")], {})
        kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"SECRETWORD" not in kept
    assert b"PLAINWORD" in kept


async def test_it_is_written_ahead_and_synced_where_it_matters(store):
    """The journal mode is WAL; commits that must last are FULL, mere claims are NORMAL."""
    assert await pragma(store, "journal_mode") == ("wal",)
    await accept(store, "a")
    assert store.database.writer._level == "FULL"
    turn = await claim(store)
    assert store.database.writer._level == "NORMAL"
    await answer(store, turn)
    assert store.database.writer._level == "FULL"


async def test_normal_never_asks_for_full(tmp_path):
    """With ``synchronous="normal"`` no commit is synced."""
    async with await SqliteQueue.open(
        tmp_path / "gateway.db", clock=ManualClock(), synchronous="normal"
    ) as store:
        await accept(store, "a")
        assert store.database.writer._level == "NORMAL"


# ── the threads ──
async def test_one_bad_call_takes_nobody_along(store):
    """Calls that are committed together succeed and fail one by one, in their order."""
    await accept(store, "a")
    await accept(store, "x", session=OTHER)
    old = await claim(store)
    await store.maintenance.recover()
    new = await claim(store)
    other = await claim(store, OTHER)
    outcomes = await together(
        store.turns.complete(old, reply("old")),
        store.turns.complete(new, reply("new")),
        accept(store, "b"),
        store.turns.complete(new, reply("twice")),
        store.turns.complete(other, reply("x", session=OTHER)),
    )
    assert [type(outcome) for outcome in outcomes] == [LostTurn, list, AcceptedBatch, LostTurn, list]
    assert {row.message.text for row in await store.outbox.rows()} == {"new", "x"}


async def test_many_calls_share_a_commit(store):
    """Calls that come while the disk is busy become durable together."""
    begun = await pragma(store, "data_version")
    batches: list[int] = []
    serve = store.database.writer._serve
    store.database.writer._serve = lambda db, calls: (batches.append(len(calls)), serve(db, calls))[1]
    await together(*(accept(store, f"m{number}") for number in range(600)))
    assert sum(batches) == 600
    assert max(batches) <= sqlite_connection.BATCH
    assert len(batches) < 100
    assert await pragma(store, "data_version") == begun


async def test_a_claim_whose_caller_went_away_is_undone(store):
    """A cancelled claim leaves no row running without an owner, whether it had begun or not."""
    await accept(store, "a")
    for _ in range(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.turns.claim, ROOM)
            await anyio.sleep(0)
            await anyio.sleep(0)
            tasks.cancel_scope.cancel()
    turn = await claim(store)
    assert turn.attempts == 1


async def test_a_call_that_was_cancelled_in_the_queue_does_not_happen(store):
    """Who goes away before the writer has begun leaves nothing behind."""
    ready, go = anyio.Event(), threading.Event()
    loop_token = anyio.lowlevel.current_token()

    def hold(db):
        anyio.from_thread.run_sync(ready.set, token=loop_token)
        go.wait(5)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.database.writer.call, "hold", hold)
        await ready.wait()
        assert store.maintenance.stalled_s >= 0
        async with anyio.create_task_group() as inner:
            inner.start_soon(accept, store, "a")
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            inner.cancel_scope.cancel()
        go.set()
    assert await store.inbox.rows() == []
    assert store.maintenance.stalled_s == 0.0


async def test_too_many_calls_wait_for_room(store, monkeypatch):
    """Beyond the bound a caller waits, and is refused when no room comes in time."""
    monkeypatch.setattr(engine, "WITHIN_S", 0.05)
    store.database.writer._calls_under_way = engine.CallLimit("here", 2)
    go = threading.Event()
    outcomes = []

    async def call():
        try:
            outcomes.append(await store.database.writer.call("wait", lambda db: go.wait(5)))
        except StoreUnavailable as error:
            outcomes.append(str(error))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(call)
        while len(outcomes) < 2:
            await anyio.sleep(0.01)
        go.set()
    assert outcomes == ["too many calls wait"] * 2 + [True] * 2
    assert len(await accept(store, "a")) == 1


async def test_closing_finishes_what_was_begun(tmp_path):
    """What was queued before `aclose` is committed; later calls are refused; closing twice is fine."""
    store = await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock())
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(accept, store, f"m{number}")
        await anyio.lowlevel.checkpoint()
        await store.aclose()
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="closed"):
        await accept(store, "late")
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as again:
        assert len(await again.inbox.rows(limit=100)) == 50
    assert {file.name for file in tmp_path.iterdir()} == {"gateway.db"}


async def test_a_reader_does_not_wait_for_the_writer(store):
    """Looking something up works while the writer hangs at the disk."""
    go = threading.Event()
    await accept(store, "a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.database.writer.call, "hold", lambda db: go.wait(5))
        await anyio.sleep(0.01)
        assert len(await store.inbox.rows()) == 1
        go.set()


async def test_the_hot_queries_use_their_indexes(store):
    """Claiming and sending never scan the tables."""
    queries = [
        "SELECT id FROM inbox WHERE state = 'ready' AND session = 'x' ORDER BY id LIMIT 5",
        "UPDATE inbox SET fence = 1 WHERE state = 'running' AND session = 'x' AND turn = 'y' AND fence = 2",
        (
            "SELECT MIN(id) FROM outbox WHERE channel = 'a' AND account = 'b' AND state IN"
            " ('pending', 'sending', 'uncertain') GROUP BY session"
        ),
        "SELECT 1 FROM outbox WHERE inbox_id = 1 AND turn = 'y' AND state <> 'sent' LIMIT 1",
        "SELECT key FROM outbox WHERE provider_id = 'x' AND channel = 'a' AND account = 'b'",
        "SELECT id FROM outbox WHERE key = 'x' ORDER BY id DESC LIMIT 1",
        "SELECT id FROM inbox WHERE channel = 'a' AND account = 'b' AND native_id = 'x'",
        (
            "SELECT id FROM inbox WHERE state = 'ignored' AND turn IS NOT NULL AND accepted_at >= 1"
            " ORDER BY accepted_at DESC LIMIT 200"
        ),
    ]
    for query in queries:
        plan = await store.database.reader.call(
            "plan", lambda db, q=query: db.execute(f"EXPLAIN QUERY PLAN {q}").fetchall()
        )
        text = " ".join(row[3] for row in plan)
        assert "INDEX" in text or "PRIMARY KEY" in text, text
        assert "SCAN" not in text, text
        assert "TEMP B-TREE" not in text, text


async def test_forgetting_goes_by_the_id(store):
    """Looking for what can be forgotten reads a range of rows, never all rows of a state."""
    for table, ended in (
        ("inbox", maintenance_statements.INBOX_ENDED),
        ("outbox", maintenance_statements.OUTBOX_ENDED),
    ):
        query = f"EXPLAIN QUERY PLAN SELECT id FROM {table} WHERE id BETWEEN 1 AND 2 AND {ended}"
        first, *_ = await store.database.reader.call(
            "plan", lambda db, q=query: db.execute(q, (0,)).fetchall()
        )
        assert "INTEGER PRIMARY KEY" in first[3]


async def test_what_json_cannot_say_is_kept_as_text(store):
    """A context with odd objects does not keep a message from being accepted."""
    odd = message(
        "a",
        context={"route": {"when": ManualClock().now(), "raw": b"\xff\x00", "set": {1}, "half": "\udc80"}},
    )
    await store.inbox.accept("matrix", BOT, [Pending(odd)], {})
    kept = (await claim(store)).head.message.context
    assert set(kept.route) == {"when", "raw", "set", "half"}


# ── what it costs ──
def test_the_embedded_store_imports_no_engine():
    """Importing the store pulls in neither the scaled adapter's libraries nor the model's."""
    code = """
        import sys
        import gateway.store.sqlite.sqlite_queue, gateway.turns.dispatcher
        print(sorted(name for name in sys.modules if name.partition('.')[0] in
              {"psycopg", "procrastinate", "litellm", "nio", "aiohttp", "openai"}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == "[]"


async def test_forgetting_takes_no_statement_for_each_row(tmp_path):
    """The statements of the writer for 500 rows are hardly more than those for 50; each is a round trip elsewhere."""
    counts = []
    for rows in (50, 500):
        clock = ManualClock()
        async with await SqliteQueue.open(tmp_path / f"{rows}.db", clock=clock) as store:
            talk = [pending(f"t{number}", ignore="not_addressed") for number in range(rows)]
            await store.inbox.accept("matrix", BOT, talk, {})
            await accept(store, "last")
            for row in await store.outbox.post([out(f"{number}") for number in range(rows)]):
                await store.outbox.sending(row)
                await store.outbox.record_send(row, f"id{row.id}")
            clock.advance(400 * 86_400)
            seen: list[str] = []
            trace = partial(_traced, seen)
            await store.database.writer.call("trace", trace, locks=NOTHING)
            assert await store.maintenance.prune(older_than_s=86_400) == 2 * rows
            told = [text for text in seen if not text.startswith("INSERT INTO seen")]
            counts.append(len(told))
            assert len(seen) - len(told) == rows  # in one executemany, which is one round trip elsewhere
            assert await accept(store, "t7", ignore="not_addressed") == []
    assert counts[1] <= counts[0] + 20, counts


def _traced(seen: list[str], db: sqlite3.Connection) -> None:
    db.set_trace_callback(seen.append)
