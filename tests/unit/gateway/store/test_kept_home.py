"""A home folder that an earlier commit has left behind: today's code opens it, goes on from it, and finds nothing wrong."""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from agent_core.memory_ports import SearchRequest
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from gateway.cli.check.all_checks import check_data
from gateway.cli.check.check_report import FindingLevel
from gateway.store.model import JobState, RunOutcome
from gateway.store.postgres import postgres_schema as server
from gateway.store.sql.tables import VERSION
from gateway.store.sqlite import sqlite_schema
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState, OutboxState
from gateway.system.home import Home
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, claim, pending
from tests.home_world import ALICE, ROOM
from tests.state_writer import fixture_of


def tables(path):
    """What a database is made of, however its words are spaced and quoted."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        found = db.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        ).fetchall()
    return {(kind, name): re.sub(r"\s+|\"", "", sql or "") for kind, name, sql in found}


@pytest.fixture
def home(tmp_path):
    """A copy, as its own user has it: nobody else may read it."""
    root = tmp_path / "home"
    shutil.copytree(fixture_of(VERSION), root)
    for path in (root, *root.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    (root / "workspace" / "run.sh").chmod(0o700)
    return Home(root)


def test_the_schema_has_not_changed_behind_its_number(tmp_path):
    """
    What is kept of today's version is what today's code makes from nothing: whoever changes a table gives the schema
    a new number. Another column is noticed.
    """
    path = tmp_path / "gateway.db"
    sqlite_schema.create_file(path)
    db = sqlite_schema.open_writer(path, busy_timeout_s=1)
    sqlite_schema.prepare(db, path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept = tables(fixture_of(VERSION) / "gateway.db")
    assert tables(path) == kept
    db.execute("ALTER TABLE jobs ADD COLUMN color TEXT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    assert tables(path) != kept


def test_nor_have_the_tables_in_postgresql():
    """There is one form of them, and no way from another one: whoever changes it gives it a new number."""
    made = hashlib.sha256("\n".join(sorted(server.statements())).encode()).hexdigest()
    assert (server.VERSION, made[:16]) == (15, "d9a7fc20961698a6")


def test_nothing_is_wrong_with_it(home):
    """`squidbot check --data` walks through all of it without a complaint."""
    report = check_data(home, home.config_file)
    assert [
        one.text for one in report.findings if one.verdict in (FindingLevel.FAILED, FindingLevel.WARNING)
    ] == []


async def test_every_row_is_read_and_goes_on(home):
    """All states of questions and answers, with their texts; each can go where its state may go."""
    async with await SqliteQueue.open(home.database, clock=ManualClock()) as store:
        found = [*await store.inbox.rows(limit=100), *await store.inbox.rows(states=[InboxState.IGNORED])]
        assert {row.state for row in found} == set(InboxState)
        assert {row.state for row in await store.outbox.rows(limit=100)} == set(OutboxState)
        told = {
            row.message.native_id: row.message.text for row in found if row.state is not InboxState.IGNORED
        }
        assert told["$waits"] == "text of $waits"
        await store.maintenance.recover()
        seen = await store.inbox.accept(
            "matrix", BOT, [pending("$long-ago"), pending("$waits"), pending("$new")], {}
        )
        assert [row.message.native_id for row in seen] == ["$new"]
        runs = await claim(store, SessionKey("matrix", "!runs:hs.test"))
        assert [step.result for step in await store.turns.steps(runs)] == [{"done": True}]
        assert [question.name for question in await store.approvals.questions()] == ["a3f2c9"]
        (held,) = await store.outbox.rows(states=[OutboxState.HELD])
        assert (await store.outbox.approve(held.id)).state is OutboxState.PENDING
        (kept,) = [row for row in found if row.state is InboxState.QUARANTINED]
        assert await store.inbox.admit(kept.id) == kept.message.session
        assert [line.message.content for line in await store.journal.lines()] == ["yes"]
        assert sum(row.usage.calls for row in await store.usage.rows(days=100_000)) > 2


async def test_plans_are_there(home):
    """Jobs in every state, every line of the ledger, and what waits for the digest."""
    async with await SqliteQueue.open(home.database, clock=ManualClock()) as store:
        assert {job.state for job in await store.jobs.jobs(done=True)} == set(JobState)
        assert {entry.outcome for entry in await store.jobs.ledger()} == set(RunOutcome)
        assert [one.text for one in await store.jobs.list_collected_alerts()] == ["an alert"]


async def test_histories_memory_and_search_are_there(home):
    """Who said what, what was consolidated, every version of every document, and all of it is found by its owner."""
    memory = JsonlMemory(home.root, clock=ManualClock())
    tail = await memory.load_history(str(ALICE))
    assert (tail.summary, tail.cursor, tail.messages[-1].content) == ("They spoke of tea.", 1, "noted: tea")
    assert (await memory.load_history(str(ROOM))).messages[-2].attachments[0].name == "b.txt"
    owner = MemoryScope(ScopeKind.OWNER)
    assert [one[0].text for one in await memory.memory_versions(owner)] == ["likes tea", "likes tea and rum"]
    assert (await memory.load_global_memory(MemoryScope(ScopeKind.PERSON, "@bob:hs.test"))).text == "is Bob"
    assert (await memory.load_global_memory(MemoryScope(ScopeKind.ROOM, str(ROOM)))).text == "a room"
    index = SearchIndex(home.root / "search.db", Layout(home.root, home.root / "workspace"))
    await index.update_all()
    assert (await index.search(SearchRequest(owner, "tea", max_results=5))).hits
    await index.aclose()
