"""`squidbot migrate --to`: all of a queue, its histories and its memory, or nothing, and never two that answer."""

from __future__ import annotations

import base64
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import anyio
import psycopg
import pytest

from agent_core.memory_ports import SearchRequest
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage.jsonl_memory import JsonlMemory
from gateway.errors import AlreadyRunning, ConfigInvalid
from gateway.operations.migration import migrate_operation
from gateway.store.copied_home import EmbeddedTables
from gateway.store.lease import DAEMON, LeaseTaken
from gateway.store.opening import memory_in_database, opened_queue
from gateway.store.postgres.postgres_queue import PostgresQueue, migrate
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import OTHER, ROOM, accept, answer, claim, step
from tests.integration.test_postgres_refusals import squidbot
from tests.postgres_server import PASSWORD, PostgresServer

pytestmark = [pytest.mark.integration]
BOB = MemoryScope(ScopeKind.PERSON, "bob@hs.test")
LONG = MemoryScope(ScopeKind.PERSON, f"{'x' * 200}@hs.test")
THIRD = SessionKey("matrix", "!third:hs.test")
REPOSITORY = Path(__file__).resolve().parents[2]
WAYS_IN = [
    ["run"],
    ["status"],
    ["send", "matrix:@a:b", "text"],
    ["backup", "copy.tar.gz"],
    ["check", "--data"],
    ["export", "@alice:hs.test"],
    ["forget", "--dry-run", "@alice:hs.test"],
    ["forget", "--yes", "@alice:hs.test"],
]
BROKEN = b'{"id":"torn","role":"us\xff\xfe\0'


async def filled(root: Path) -> Home:
    """A home with rows in every state, histories with damage in them, and memory."""
    home, clock = open_home(root), ManualClock()
    async with await SqliteQueue.open(home.database, clock=clock) as store:
        await accept(store, "a", "b", "c")
        turn = await claim(store)
        await store.turns.record_step_start(turn, step(0))
        await answer(store, turn)
        await claim(store)
        await accept(store, "d\0e", session=OTHER)
        await accept(store, "f", session=THIRD)
        await answer(store, await claim(store, THIRD))
        for row in await store.outbox.rows():
            if row.message.session == THIRD:
                await store.outbox.sending(row)
        await store.state.write("topic", '{"a": 1}')
    memory = JsonlMemory(root, clock=clock)
    lines = [
        Message(
            id=f"{n}.0", role="user", content=text, timestamp=EPOCH + timedelta(minutes=n), scope=str(LONG)
        )
        for n, text in enumerate(["one", "nul \0 and half \ud800", "x" * 10_000_000, "four"])
    ]
    await memory.append_message(str(ROOM), *lines[:3], durable=True)
    path = memory.layout.history(ROOM)
    with path.open("ab") as file:
        file.write(BROKEN)  # torn: the next line ends it
    memory = JsonlMemory(root, clock=clock)
    await memory.append_message(str(ROOM), lines[3], durable=True)
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines(keepends=True)[0])  # an id for the second time
    await memory.save_consolidation(str(ROOM), summary="they said one", cursor=2, private={"a"})
    await memory.append_message(str(OTHER), lines[0], durable=True)
    for text in ("- tea", "- tea, no sugar"):
        await memory.save_global_memory(BOB, text, turn="7")
        await memory.save_global_memory(LONG, text)
    (root / "workspace" / "MEMORY.md").write_text("- by hand\n")
    return home


def rows_of(file: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the embedded database, but for leases and the note of the move."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: sorted(map(tuple, db.execute(f"SELECT * FROM {name}")), key=repr)
            for name in names
            if name not in {"leases", "sqlite_sequence", "meta"}
        }


def one_text(value: object) -> object:
    """What PostgreSQL can have of a value."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def rows_there(url: str, tables: dict[str, list[tuple[object, ...]]]) -> dict[str, list[tuple[object, ...]]]:
    """The same of a database, read by SQL of the test's own."""
    found = {}
    with psycopg.connect(url) as db:
        for name in tables:
            rows = db.execute(f"SELECT to_jsonb(t) - 'home' FROM squidbot.all_{name} AS t").fetchall()
            names = [
                column
                for (column,) in db.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND"
                    " attname <> 'home' ORDER BY attnum",
                    (f"squidbot.{name}",),
                )
            ]
            found[name] = sorted((tuple(row[each] for each in names) for (row,) in rows), key=repr)
    return found


def command(home: Home, *arguments: str) -> tuple[int, str]:
    """Run a command on a home with an embedded queue."""
    home.config_file.write_text("gateway: {}\n")
    done = subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", *arguments, "--home", str(home.root)],
        cwd=home.root, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr + done.stdout


def moved(home: Home, url: str) -> migrate_operation.Moved:
    return migrate_operation.to_postgres(home, home.root / "workspace", url, ManualClock())


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url(postgres.new_database())


async def test_everything_is_there_and_goes_on(url: str, tmp_path: Path):
    """Rows with their numbers and states, lines in place with the broken one's bytes, cursor, versions."""
    home = await filled(tmp_path / "home")
    before, raw = rows_of(home.database), JsonlMemory(home.root, clock=ManualClock()).layout.history(ROOM)
    history = raw.read_bytes()
    told = moved(home, url)
    assert (told.sessions, told.lines, told.documents, told.versions) == (2, 7, 3, 5), told.notes
    there = rows_there(url, before)
    for name, rows in before.items():
        for one, other in zip(there[name], rows, strict=True):
            assert one == tuple(one_text(value) for value in other), name
    assert "1 rows have a NUL in a text" in told.notes[0]
    assert rows_of(home.database) == before
    assert {row[7] for row in before["inbox"]} >= {"ready", "running", "answered"}
    assert "sending" in {row[8] for row in before["outbox"]}
    assert raw.read_bytes() == history
    with psycopg.connect(url) as db:
        lines = [
            line.encode()
            for (line,) in db.execute(
                "SELECT line FROM squidbot.all_history WHERE session = %s ORDER BY seq", (str(ROOM),)
            )
        ]
    kept = b'{"bytes_of_a_broken_line":"%s"}' % base64.b64encode(BROKEN)
    assert lines == [kept if line == BROKEN else line for line in history.splitlines()]
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        beside = memory_in_database(store)
        assert beside is not None
        tail, was = await beside.memory.load_history(str(ROOM)), JsonlMemory(home.root, clock=ManualClock())
        there = await was.load_history(str(ROOM))
        assert [message.content for message in tail.messages] == [each.content for each in there.messages]
        assert (tail.summary, tail.cursor, tail.private) == ("they said one", 2, frozenset({"a"}))
        for scope in (BOB, LONG, MemoryScope(ScopeKind.OWNER)):
            assert await beside.memory.memory_versions(scope) == await was.memory_versions(scope)
        assert (await beside.memory.load_global_memory(MemoryScope(ScopeKind.OWNER))).text == "- by hand\n"
        found = await beside.search.search(SearchRequest(LONG, "four"))
        assert found.hits
        [row] = await accept(store, "new", session=OTHER)
        assert not await accept(store, "d\0e", "a", session=OTHER)
        assert row.id == max(int(str(each[0])) for each in before["inbox"]) + 1


async def test_the_source_does_not_start_any_more(url: str, tmp_path: Path):
    home = await filled(tmp_path / "home")
    moved(home, url)
    with pytest.raises(ConfigInvalid, match=r"was moved to postgresql://127.*restore the backup"):
        await opened_queue(home.database, None, clock=ManualClock())
    assert moved(home, url).already
    other = url.replace("/test_", "/other_test_")
    with pytest.raises(ConfigInvalid, match="not to postgresql"):
        moved(home, other)
    with EmbeddedTables.open(home.database) as tables:
        tables.set_marker(None)  # as in a home of before the move
    with pytest.raises(ConfigInvalid, match="an earlier copy of this queue"):
        moved(home, url)


async def test_a_move_is_undone_by_the_backup_from_before_it(url: str, tmp_path: Path):
    """As docs/postgres.md says; the database keeps its copy."""
    home = await filled(tmp_path / "home")
    rows = rows_of(home.database)
    backup = str(tmp_path / "before.tar.gz")
    code, said = await anyio.to_thread.run_sync(command, home, "backup", backup)
    assert code == 0, said
    moved(home, url)
    code, said = await anyio.to_thread.run_sync(command, home, "restore", backup, "--replace", "--yes")
    assert code == 0, said
    assert rows_of(home.database).keys() == rows.keys()
    assert len(rows_of(home.database)["inbox"]) == len(rows["inbox"])
    await (await opened_queue(home.database, None, clock=ManualClock())).aclose()
    async with await PostgresQueue.open(url, clock=ManualClock()):
        pass


async def test_what_somebody_works_on_is_not_moved(url: str, tmp_path: Path):
    """A daemon on either side, another queue in the target; nothing is changed."""
    home = await filled(tmp_path / "home")
    with hold_home(home), pytest.raises(AlreadyRunning):
        moved(home, url)
    migrate(url)
    async with await PostgresQueue.open(url, clock=ManualClock()) as there:
        await there.maintenance.lease(DAEMON, holder="elsewhere/17/abc", ttl_s=30)
        with pytest.raises(LeaseTaken, match="process 17 on elsewhere"):
            moved(home, url)
        await there.maintenance.release_lease(DAEMON, holder="elsewhere/17/abc")
        await accept(there, "z")
    with pytest.raises(ConfigInvalid, match="is not empty: it has another queue"):
        moved(home, url)
    await (await opened_queue(home.database, None, clock=ManualClock())).aclose()


def test_the_command_says_what_to_change(url: str, tmp_path: Path):
    """Through the command, as somebody types it."""
    home = open_home(tmp_path / "home")
    code, said = squidbot(home.root, url, "migrate", "--to", url)
    assert code == 78
    assert "names a database already" in said
    code, said = command(home, "migrate", "--to", url)
    assert code == 78
    assert "nothing to move" in said
    anyio.run(filled, home.root)
    code, said = command(home, "migrate", "--to", url)
    assert code == 0, said
    assert "2 conversations with 7 lines" in said
    assert "Change the configuration now: gateway: {store:" in said
    assert PASSWORD not in said
    for name in WAYS_IN:
        code, said = command(home, *name)
        assert (code, "was moved to postgresql://" in said) == (1 if name[0] == "check" else 78, True), said
    code, said = squidbot(home.root, url, "status")
    assert code == 0, said


async def test_rows_that_postgresql_cannot_keep_apart_are_told(url: str, tmp_path: Path):
    """One sentence, and both sides are as they were."""
    home = await filled(tmp_path / "home")
    async with await SqliteQueue.open(home.database, clock=ManualClock()) as store:
        await accept(store, "d\ufffde")
    rows = rows_of(home.database)
    with pytest.raises(
        ConfigInvalid, match=r"^two rows differ only in signs .* nothing was moved: Key .*d\ufffde"
    ):
        moved(home, url)
    with closing(sqlite3.connect(home.database)) as db, db:
        db.execute("DELETE FROM inbox WHERE native_id = ?", ("d\ufffde",))
        db.execute("UPDATE inbox SET session = 'matrix/' || hex(randomblob(9000)) WHERE state = 'ready'")
    with pytest.raises(ConfigInvalid, match=r"^a conversation or a message has a name that is too long"):
        moved(home, url)
    assert len(rows_of(home.database)["inbox"]) == len(rows["inbox"]) - 1
    await (await opened_queue(home.database, None, clock=ManualClock())).aclose()
