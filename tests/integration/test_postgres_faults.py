"""The queue in PostgreSQL when the server, the way to it or a message is not as it should be."""

from __future__ import annotations

import dataclasses

import anyio
import psycopg
import pytest

from agent_core.messages import Sender
from gateway.store.postgres import pool
from gateway.store.postgres.pool import all_facts
from gateway.store.postgres.postgres_connection import Transaction, connect
from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.sql.engine import NOTHING, ConnectionPort
from gateway.store.sql.signals import Signals
from gateway.store.stores import Queue, StoreUnavailable
from gateway.store.wakeups import Wakeups, Work
from tests.clock import ManualClock
from tests.contract.queue_data import accept, pending
from tests.postgres_server import ROLE, PostgresServer

pytestmark = [pytest.mark.integration]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.with_tables()


class Harness:
    """A queue whose signals are heard."""

    def __init__(self, store: PostgresQueue, wakeups: Wakeups) -> None:
        self.store = store
        self.heard: dict[str, list[object]] = {}
        for name, signal in vars(wakeups).items():
            signal.connect(self.heard.setdefault(name, []).append)

    async def until(self, signal: str, count: int = 1) -> list[object]:
        """What a signal has said, as soon as it has said so much."""
        with anyio.fail_after(60):
            while len(self.heard[signal]) < count:
                await anyio.sleep(0.01)
        return self.heard[signal]


@pytest.fixture
async def house(url: str):
    wakeups = Wakeups()
    async with await PostgresQueue.open(url, clock=ManualClock(), wakeups=wakeups) as store:
        yield Harness(store, wakeups)


async def said(store: Queue, key: str, text: str, sender: Sender) -> None:
    """A message with this text and sender was accepted."""
    new = pending(key, sender=sender)
    message = new.message.model_copy(update={"text": text})
    with anyio.fail_after(60):
        await store.inbox.accept(
            message.channel, message.account, [dataclasses.replace(new, message=message)], {}
        )


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x1c", "\x0b", "\n", "\r"])
async def test_a_sender_whose_address_has_a_line_separator_is_told(house: Harness, sign: str):
    """Its line among the noted facts ends where the line feed is, which JSON never holds."""
    await said(house.store, "a", "Hello", Sender(address=f"a{sign}b@x.org", verified=True))
    [work] = await house.until("session")
    assert isinstance(work, Work) and (work.sender, work.verified) == (f"a{sign}b@x.org", True)


async def test_a_fact_that_cannot_be_read_keeps_no_caller_waiting(
    house: Harness, monkeypatch: pytest.MonkeyPatch
):
    """The call has its result, the other facts are told, and the queue can be closed."""

    def write(db: Transaction) -> None:
        db.execute(
            "SELECT set_config('squidbot.facts', 'not JSON' || chr(10) || '[\"outbox\", \"m\"]', true)"
        )

    with anyio.fail_after(60):
        await house.store.database.writer.call("damage", write, locks=NOTHING)
        assert await house.until("outbox") == ["m"]
    # Whatever is wrong with who is told.
    monkeypatch.setattr(Signals, "fire", lambda *_: 1 / 0)
    with anyio.fail_after(60):
        await accept(house.store, "a")
        await house.store.aclose()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_many_rows_at_once_are_told_as_all_that_waits(
    house: Harness, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
):
    """
    Notes are copied with each other one, so thousands would take longer than a statement may. Everything that
    waits is told instead; if the server is gone by then, when it is back. The call has happened once.
    """
    asked = 0

    def facts(db: ConnectionPort) -> str:
        nonlocal asked
        asked += 1
        if is_lost and asked == 1:
            db._db.close()  # type: ignore[attr-defined]
            raise psycopg.OperationalError("the connection is lost")
        return all_facts(db)

    monkeypatch.setattr(pool, "all_facts", facts)

    def write(db: ConnectionPort) -> int:
        return db.execute(
            "INSERT INTO inbox (channel, account, native_id, session, kind, payload, state, accepted_at)"
            " SELECT 'matrix', 'bot', 'n' || number, 'matrix/' || number % 3, 'message', '{}', 'ready', 0"
            " FROM generate_series(1, 20000) AS number"
        ).rowcount

    with anyio.fail_after(60):
        assert await house.store.database.writer.call("flood", write, locks=NOTHING) == 20_000
        told = await house.until("session", 3)
    assert {str(work.session) for work in told if isinstance(work, Work)} == {f"matrix/{n}" for n in range(3)}
    assert (len(told), asked) == (3, 2 if is_lost else 1)
    await accept(house.store, "a")  # what is little is told one by one again
    assert len(await house.until("session", 4)) == 4
    assert asked == (2 if is_lost else 1)


async def test_a_database_without_its_tables_is_unavailable_and_no_connection_stays(
    postgres: PostgresServer, house: Harness, url: str
):
    """Somebody restores a dump: the schema goes, and connections with it."""
    name = url.rpartition("/")[2]
    of_ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    await accept(house.store, "a")
    with postgres.admin(name) as db:
        db.execute("ALTER SCHEMA squidbot RENAME TO aside")
        db.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
            " AND pid <> pg_backend_pid()",
            (name,),
        )
        for key in ("b", "c"):
            with pytest.raises(StoreUnavailable):
                await accept(house.store, key)
        with anyio.fail_after(60):
            while db.execute(of_ours, (name,)).fetchone() != (0,):
                await anyio.sleep(0.05)
        db.execute("ALTER SCHEMA aside RENAME TO squidbot")
    with anyio.fail_after(60):
        while True:
            try:
                await accept(house.store, "d")
                break
            except StoreUnavailable:
                await anyio.sleep(0.05)
    assert len(await house.store.inbox.rows()) == 2


async def test_isolation_and_limits_are_ours_whatever_the_database_says(postgres: PostgresServer, url: str):
    """
    Under another isolation the locks protect nothing (a snapshot is older than the lock), and shorter limits fail
    calls. The control is a transaction of anybody else.
    """
    name = url.rpartition("/")[2]
    ours = {
        "transaction_isolation": "read committed",
        "statement_timeout": "10s",
        "lock_timeout": "5s",
        "idle_in_transaction_session_timeout": "15s",
    }
    theirs = {
        "default_transaction_isolation": "serializable",
        "statement_timeout": "2s",
        "lock_timeout": "1s",
        "idle_in_transaction_session_timeout": "3s",
    }
    with postgres.admin() as db:
        for setting, value in theirs.items():
            db.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    with psycopg.connect(url) as db:
        assert {each: db.execute(f"SHOW {each}").fetchone() for each in ours} != {
            each: (value,) for each, value in ours.items()
        }
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        found = await store.writer.call(
            "settings", lambda db: {each: db.execute(f"SHOW {each}").fetchone()[0] for each in ours}, locks=()
        )
        assert found == ours
        await said(store, "m", "hello", Sender(address="ann"))
        [(session, _)] = await store.turns.open_sessions()
        assert await store.turns.claim(session) is not None


@pytest.mark.parametrize(("set_to", "is_then"), [("off", "on"), ("remote_apply", "remote_apply")])
async def test_a_commit_is_synced_whatever_the_role_says(
    postgres: PostgresServer, url: str, set_to: str, is_then: str
):
    """``synchronous_commit`` may be off for the role; a stricter value than ours stays."""
    name = url.rpartition("/")[2]
    with postgres.admin() as db:
        db.execute(f"ALTER ROLE {ROLE} IN DATABASE {name} SET synchronous_commit = '{set_to}'")
    ask = "SELECT current_setting('synchronous_commit')"
    with connect(url) as db:
        assert db.execute(ask).fetchone() == (set_to,)
        assert Transaction(db, 1).execute(ask).fetchone() == (is_then,)
        db.execute("ROLLBACK")
        assert db.execute(ask).fetchone() == (set_to,)
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        assert await store.database.writer.call(
            "look", lambda db: db.execute(ask).fetchone(), locks=["a"]
        ) == (is_then,)


@pytest.mark.parametrize("text", ["nul\0nul", "half \ud83d of a pair", "written: \\u0000", "plain"])
async def test_whatever_a_message_holds_its_sender_is_told(house: Harness, text: str):
    """PostgreSQL reads no NUL in JSON, and the place of the owner hangs on the sender."""
    text = text.encode("utf-8", "replace").decode()
    await said(house.store, "a", text, Sender(address="owner@x.org", verified=True))
    [work] = await house.until("session")
    assert isinstance(work, Work) and (work.sender, work.verified) == ("owner@x.org", True)
