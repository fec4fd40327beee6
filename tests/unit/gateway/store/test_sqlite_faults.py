"""The embedded store on damaged, foreign, older and newer files, and on a disk that says no."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from gateway.store.sqlite import sqlite_schema
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState
from gateway.store.stores import StoreCorrupt, StoreTooNew, StoreUnavailable, StoreUnusable
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, accept, claim, pending, reply
from tests.unit.gateway.store.writer_calls import pragma, together

ROOT = Path(__file__).resolve().parents[4]
_DAMAGED_FROM = 40 * 4096  # beyond the pages of the schema


@pytest.fixture
async def store(tmp_path):
    async with await SqliteQueue.open(
        tmp_path / "gateway.db", clock=ManualClock(), busy_timeout_s=0.05
    ) as opened:
        yield opened


# ── damaged, foreign, older and newer files ──
@pytest.mark.parametrize(
    "content", [b"this is no database at all, " * 40, b"SQLite format 3\0" + b"\xff" * 4096]
)
async def test_a_damaged_file_is_refused_and_not_touched(tmp_path, content):
    """Opening says what to do and leaves the file as it is."""
    path = tmp_path / "gateway.db"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="bring back a backup") as caught:
        await SqliteQueue.open(path, clock=ManualClock())
    assert path.read_bytes() == content
    assert caught.value.fields["path"] == str(path)
    assert caught.value.temporary is False


async def test_damage_inside_is_told_and_does_not_kill(tmp_path):
    """Pages that are broken later make calls fail with `StoreUnavailable`; the threads live."""
    path = tmp_path / "gateway.db"
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        await accept(store, *(f"m{n}" for n in range(300)))
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(_DAMAGED_FROM)
        file.write(b"\xa5" * (size - _DAMAGED_FROM))
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="damaged"):
                await store.inbox.rows(limit=1000)
            with pytest.raises(StoreUnavailable):
                await accept(store, "new1", "new2")


async def test_a_foreign_database_is_refused(tmp_path):
    """A database with other tables is not ours to write into."""
    path = tmp_path / "gateway.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="not one of squidbot"):
        await SqliteQueue.open(path, clock=ManualClock())
    assert path.read_bytes()[100:] == before[100:]  # beyond the header, where the journal mode stands


async def test_a_newer_schema_is_refused(tmp_path):
    """A file of a later version is refused with both numbers."""
    path = tmp_path / "gateway.db"
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        await accept(store, "a")
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {sqlite_schema.VERSION + 1}")
    db.close()
    with pytest.raises(StoreTooNew, match="later version") as caught:
        await SqliteQueue.open(path, clock=ManualClock())
    assert (caught.value.fields["found"], caught.value.fields["known"]) == (
        sqlite_schema.VERSION + 1,
        sqlite_schema.VERSION,
    )


async def test_an_older_schema_is_refused_and_stays_as_it_is(tmp_path):
    """Versions from before the first release are not updated."""
    path = tmp_path / "gateway.db"
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        await accept(store, "a")
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {sqlite_schema.VERSION - 1}")
    with pytest.raises(StoreUnusable, match="before the first release"):
        await SqliteQueue.open(path, clock=ManualClock())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM inbox").fetchone() == (1,)


async def test_a_crash_while_the_file_is_made_leaves_nothing_half(tmp_path):
    """An empty file, as a crash between creation and the first commit leaves it, is simply used."""
    (tmp_path / "gateway.db").touch()
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as store:
        assert len(await accept(store, "a")) == 1


async def test_a_folder_that_is_not_there(tmp_path):
    """A file that cannot be made is `StoreUnavailable`, with its path."""
    with pytest.raises(StoreUnavailable, match="cannot be made") as caught:
        await SqliteQueue.open(tmp_path / "no" / "gateway.db", clock=ManualClock())
    assert caught.value.fields["path"].endswith("gateway.db")


# ── the disk says no ──
async def test_a_full_disk_takes_nothing_and_then_goes_on(store):
    """On SQLITE_FULL nothing of the call has happened; as soon as there is room it works again."""
    await accept(store, "a")
    (pages,) = await pragma(store, "page_count")
    await pragma(store, f"max_page_count = {pages}")
    big = "x" * 50_000
    with pytest.raises(StoreUnavailable, match="the disk is full") as caught:
        await store.inbox.accept("matrix", BOT, [pending("b", text=big)], {"next_batch": "s9"})
    assert caught.value.fields["sqlite"] == "SQLITE_FULL"
    assert caught.value.temporary is True
    assert len(await store.inbox.rows()) == 1
    assert await store.inbox.position("matrix", BOT, "next_batch") == "s1"
    turn = await claim(store)
    with pytest.raises(StoreUnavailable):
        await store.turns.complete(turn, reply(big))
    assert (await store.inbox.rows())[0].state is InboxState.RUNNING
    await pragma(store, "max_page_count = 100000")
    assert len(await store.inbox.accept("matrix", BOT, [pending("b", text=big)], {"next_batch": "s9"})) == 1
    await store.turns.complete(turn, reply(big))
    assert await pragma(store, "integrity_check") == ("ok",)


async def test_on_a_full_disk_the_small_ones_of_a_batch_still_go_through(store):
    """Of calls that come together, only those that find no room fail."""
    await accept(store, "a")
    (pages,) = await pragma(store, "page_count")
    await pragma(store, f"max_page_count = {pages}")
    outcomes = await together(
        store.inbox.accept("matrix", BOT, [pending("big", text="x" * 50_000)], {}),
        store.inbox.accept("matrix", BOT, [], {"next_batch": "s2"}),
    )
    assert isinstance(outcomes[0], StoreUnavailable)
    assert outcomes[1] == []
    assert await store.inbox.position("matrix", BOT, "next_batch") == "s2"


async def test_a_locked_database_is_waited_for_and_then_unavailable(store, tmp_path):
    """While another program writes, a call fails after its limit; afterwards it works."""
    other = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="another program"):
        await accept(store, "a")
    assert await store.inbox.rows() == [], "reading goes on"
    other.execute("ROLLBACK")
    other.close()
    assert len(await accept(store, "a")) == 1


async def test_a_file_that_was_taken_away_is_not_made_anew(store, tmp_path):
    """Without its file the store is unavailable; it does not begin with an empty one behind everybody's back."""
    await accept(store, "a")
    await reconnect(store)
    for file in tmp_path.iterdir():
        file.rename(file.with_name(file.name + ".away"))
    with pytest.raises(StoreUnavailable):
        await accept(store, "b")
    assert not (tmp_path / "gateway.db").exists()
    (tmp_path / "gateway.db").write_bytes(b"")
    with pytest.raises((StoreUnavailable, StoreCorrupt)):
        await accept(store, "b")
    (tmp_path / "gateway.db").unlink()
    for file in list(tmp_path.iterdir()):
        file.rename(file.with_name(file.name.removesuffix(".away")))
    assert [row.message.native_id for row in await accept(store, "a", "b")] == ["b"]


async def reconnect(store: SqliteQueue) -> None:
    """Make the writer need a new connection, as after an I/O error."""

    def break_it(db: sqlite3.Connection) -> None:
        store.database.writer._disconnect()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    with pytest.raises(StoreUnavailable, match="reports an error"):
        await store.database.writer.call("break", break_it)


async def test_after_an_io_error_the_connection_is_replaced(store):
    """An I/O error fails the calls in hand, and the next ones find a new connection."""
    await accept(store, "a")
    await reconnect(store)
    assert len(await accept(store, "b")) == 1


async def test_writing_beyond_a_limit_of_the_system(tmp_path):
    """A write that the system refuses (a file size limit, in a process of its own) loses nothing and heals."""
    code = """
        import anyio, json, resource, sys
        from pathlib import Path
        from gateway.system.clock import SystemClock
        from gateway.store.stores import StoreUnavailable
        from gateway.store.sqlite.sqlite_queue import SqliteQueue
        from tests.contract.queue_data import BOT, pending

        async def main():
            store = await SqliteQueue.open(Path(sys.argv[1]) / "gateway.db", clock=SystemClock())
            taken, refused = [], []
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            async def give(number):
                try:
                    await store.inbox.accept("matrix", BOT, [pending(f"m{number}", text="x" * 9000)], {"p": str(number)})
                    taken.append(number)
                except StoreUnavailable as error:
                    refused.append(error.fields["sqlite"])
            for number in range(60):
                await give(number)
            kept = [row.message.native_id for row in await store.inbox.rows(limit=1000)]
            before = list(taken)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await give(100)
            position = await store.inbox.position("matrix", BOT, "p")
            check = await store.database.writer.call("check", lambda db: db.execute("PRAGMA integrity_check").fetchone())
            await store.aclose()
            print(json.dumps([before, kept[::-1], refused, taken[-1], position, check]))

        anyio.run(main)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    taken, kept, refused, last, position, check = json.loads(done.stdout.splitlines()[-1])
    assert refused
    assert set(refused) <= {"SQLITE_IOERR_WRITE", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_IOERR_SHMSIZE"}
    assert kept == [f"m{number}" for number in taken]
    assert (last, position, check) == (100, "100", ["ok"])
