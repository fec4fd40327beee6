"""State that version 1 has written: today's code opens it, goes on from it, and refuses what comes after today."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage.jsonl import JsonlMemory
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from gateway.queue.sql.tables import VERSION
from gateway.queue.sqlite.migrations import copy_name
from gateway.queue.sqlite.store import SqliteQueue
from gateway.queue.stores import StoreTooNew
from tests.clock import ManualClock

DATA = Path(__file__).parents[3] / "data"
ROOM = str(SessionKey("matrix", "!room:hs.test"))
MAIL = str(SessionKey("email", f"<{'x' * 200}@mail.test>", "bob@mail.test"))
OWNER = MemoryScope(ScopeKind.OWNER)


@pytest.fixture
def home(tmp_path):
    """Histories, records, summaries, memory documents and the database of version 1."""
    shutil.copytree(DATA / "home-v1", tmp_path / "home")
    shutil.copyfile(DATA / "gateway-v1.db", tmp_path / "home" / "gateway.db")
    return tmp_path / "home"


async def test_histories_and_summaries_go_on(home):
    """Positions, cursor and summary are what they were; a torn line costs nothing; new lines come after it."""
    memory = JsonlMemory(home, clock=ManualClock())
    assert sorted(await memory.sessions()) == sorted([ROOM, MAIL])
    tail = await memory.load_history(ROOM)
    assert (tail.cursor, tail.summary) == (20, "They spoke of numbers.")
    assert [message.content for message in tail.messages] == [
        "question 10 grün", "answer 10", "question 11 grün", "answer 11",
    ]  # fmt: skip
    assert {message.scope for message in tail.messages} == {"owner"}
    before = (home / "sessions" / f"{SessionKey.parse(ROOM).file_name}.jsonl").read_bytes()
    await memory.append_message(
        ROOM,
        Message(role="user", content="and now", id="n.0", turn="n", sender="@alice:hs.test"),
        durable=True,
    )
    after = (home / "sessions" / f"{SessionKey.parse(ROOM).file_name}.jsonl").read_bytes()
    assert after.startswith(before)
    assert (await memory.load_history(ROOM)).messages[-1].content == "and now"
    await memory.save_consolidation(ROOM, summary="More numbers.", cursor=22, base_cursor=20)
    assert (await memory.load_history(ROOM)).summary == "More numbers."


async def test_memory_and_its_versions_are_there(home):
    """Documents of the owner and of another person, with every version, and the next one is counted on."""
    memory = JsonlMemory(home, clock=ManualClock())
    document = await memory.load_global_memory(OWNER)
    assert (document.text, document.version) == ("likes tea and rum", 2)
    assert [version[0].text for version in await memory.memory_versions(OWNER)] == [
        "likes tea",
        "likes tea and rum",
    ]
    bob = MemoryScope(ScopeKind.PERSON, "bob@mail.test")
    assert (await memory.load_global_memory(bob)).text == "is Bob"
    saved = await memory.save_global_memory(OWNER, "likes cocoa", base_version=2)
    assert saved.version == 3


async def test_everything_said_is_found(home):
    """The index is made from the old histories; what was said to somebody else stays hidden."""
    index = SearchIndex(home / "search.db", Layout(home, home / "workspace"))
    await index.update_all()
    found = await index.search(OWNER, "grün", max_results=20)
    assert len(found.hits) > 0
    assert not (await index.search(OWNER, "mail")).hits
    await index.aclose()


async def test_the_database_is_brought_up_to_date_beside_a_copy(home):
    """Today's schema, a copy of what it was, and work goes on; a later schema is refused in plain words."""
    database = home / "gateway.db"
    async with await SqliteQueue.open(database, clock=ManualClock()) as store:
        await store.maintenance.recover()
        assert await store.turns.open_sessions()
    for path, version in ((database, VERSION), (copy_name(database, 1), 1)):
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (version,)
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with closing(sqlite3.connect(database)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    was = database.read_bytes()
    with pytest.raises(StoreTooNew, match="later version of squidbot"):
        await SqliteQueue.open(database, clock=ManualClock())
    assert database.read_bytes() == was
