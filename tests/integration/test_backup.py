"""A backup is whole and consistent, whether or not the daemon runs, and what comes out of it is what went in."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import stat
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from agent_core.messages import InboundMessage, Sender
from agent_core.models import Message
from agent_core.storage.jsonl_memory import JsonlMemory
from gateway.errors import AlreadyRunning
from gateway.operations.backup.contents import BackupSelection, known_backups, note_backup
from gateway.operations.backup.create import (
    BackupFailed,
    BackupSource,
    backup_name,
    make_backup,
    prune_backups,
)
from gateway.operations.backup.restore import HomeInUse, restore
from gateway.operations.operation_context import OperationContext
from gateway.routing.access import Access
from gateway.routing.conversations import Conversations
from gateway.routing.intake import AcceptGate, ChannelInbox
from gateway.store.rollback_guard import Extent, RollbackGuard, read_high_water_mark
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import Completion, NewOutbound, Pending
from gateway.system.home import Home
from gateway.system.lock import hold_home
from tests.backup_world import NOW, made, source_of
from tests.clock import EPOCH, ManualClock
from tests.home_world import ALICE, BOB, BOT, ROOM, fill, tree


@pytest.fixture
async def filled(tmp_path):
    return await fill(tmp_path / "home")


@pytest.mark.smoke
async def test_what_comes_out_is_what_went_in(filled, tmp_path):
    """Every file of sessions, memory, workspace, attachments and state, byte for byte; the database row for row."""
    done = await made(filled, tmp_path)
    assert stat.S_IMODE(done.path.stat().st_mode) == 0o600
    assert done.bytes == done.path.stat().st_size
    restore(done.path, tmp_path / "new", now=NOW, moved=True)
    before, after = tree(filled.home.root), tree(tmp_path / "new")
    left_out = {name for name in before if name.startswith(("run/", "gateway.db", "state/matrix/"))}
    for name in before.keys() - left_out - {"squidbot.yaml"}:
        assert after[name] == before[name], name
    assert not [name for name in after if name.startswith("state/matrix")]
    assert os.access(tmp_path / "new" / "workspace" / "run.sh", os.X_OK)
    for table in ("inbox", "outbox", "positions", "usage", "meta"):
        query = f"SELECT * FROM {table}"
        rows = []
        for root in (filled.home.root, tmp_path / "new"):
            with closing(sqlite3.connect(root / "gateway.db")) as db:
                rows.append(db.execute(query).fetchall())
        assert rows[0] == rows[1]
        assert rows[0]
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (tmp_path / "new").rglob("*"))


@pytest.mark.parametrize("with_secrets", [False, True])
async def test_secrets_are_in_it_only_when_wished_for(filled, tmp_path, with_secrets):
    """The password of the configuration and the folder of secrets; keys of the device never."""
    (filled.home.root / "secrets").mkdir()
    (filled.home.root / "secrets" / "key").write_text("k3y-0f-s0mething")
    done = await made(filled, tmp_path, choose={"with_secrets": with_secrets})
    plain = gzip.decompress(done.path.read_bytes())
    for secret in (b"c0rrect-horse", b"k3y-0f-s0mething"):
        assert (secret in plain) is with_secrets
    assert b"DEVICE-" not in plain
    assert b"noted: tea" in plain


@pytest.mark.parametrize("with_secrets", [False, True])
async def test_logins_are_in_it_only_when_wished_for(filled, tmp_path, with_secrets):
    """Those at MCP servers and at mail providers; a login that is not there is asked for again."""
    state = filled.home.root / "state"
    tokens = {"mcp/calendar.login": "m-t0ken", "mail/oauth.json": "e-t0ken"}
    for name, text in {
        **tokens,
        "mcp/calendar.told": "",
        "mcp/calendar.try": "",
        "mcp/calendar.json": "{}",
    }.items():
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(text)
    done = await made(filled, tmp_path, choose={"with_secrets": with_secrets})
    restore(done.path, tmp_path / "new", now=NOW, moved=True)
    there = {name for name in tree(tmp_path / "new") if "/calendar." in name or "oauth" in name}
    kept = {"state/mcp/calendar.json"}
    logins = {"state/mcp/calendar.login", "state/mcp/calendar.told", "state/mail/oauth.json"}
    assert there == (kept | logins if with_secrets else kept)
    plain = gzip.decompress(done.path.read_bytes())
    assert [text.encode() in plain for text in tokens.values()] == [with_secrets, with_secrets]


async def test_a_running_daemon_is_copied_at_one_moment(tmp_path):
    """
    Turns go on while it is made: every line the journal of the copy has let go is in the copied file, and no
    file holds a line of a turn that the copy does not know. Copying the files as they are breaks the second.
    """
    root = tmp_path / "home"
    filled = await fill(root)
    memory = JsonlMemory(root, clock=filled.clock)
    store = await SqliteQueue.open(filled.home.database, clock=filled.clock)
    stop = anyio.Event()
    answered = 0

    async def work():
        nonlocal answered
        while not stop.is_set():
            answered += 1
            message = InboundMessage(
                channel="matrix", account=BOT, native_id=f"$x{answered}", session=ROOM,
                sender=Sender(address="@alice:hs.test", verified=True), text="x", received_at=EPOCH,
            )  # fmt: skip
            await store.inbox.accept("matrix", BOT, [Pending(message)], {})
            turn = await store.turns.claim(ROOM)
            line = Message(role="user", content="x" * 500, id=f"{turn.id}.0", turn=turn.id)
            await store.turns.complete(turn, Completion(history=(line,)))
            await memory.append_message(str(ROOM), line, durable=True)
            await store.journal.delete_filed_lines([one.id for one in await store.journal.lines(ROOM)])

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            for number in range(5):
                while answered < 20 * (number + 1):
                    await anyio.sleep(0.001)
                answer = await OperationContext(store, memory).call("backup_snapshot", {})
                before = answered
                while answered < before + 10:
                    await anyio.sleep(0.001)
                choice = BackupSelection(root, root / "workspace")
                source = BackupSource(choice, lambda folder=answer: folder)
                done = await anyio.to_thread.run_sync(
                    lambda source=source, number=number: make_backup(
                        tmp_path / f"{number}.tar.gz", source, now=NOW
                    )
                )
                naive = (root / "sessions" / f"{ROOM.file_name}.jsonl").read_bytes()
                restored = restore(done.path, tmp_path / f"r{number}", now=NOW, moved=True)
                assert agrees(restored.home, None)
                assert not agrees(restored.home, naive)
            stop.set()
    finally:
        await store.aclose()


def agrees(root, history):
    """Whether the database and the history of the room say the same."""
    with closing(sqlite3.connect(root / "gateway.db")) as db:
        known = {turn for (turn,) in db.execute("SELECT turn FROM inbox WHERE turn IS NOT NULL")}
        answered = {
            turn
            for (turn,) in db.execute(
                "SELECT turn FROM inbox WHERE session = ? AND state IN ('answered', 'settled')", (str(ROOM),)
            )
        }
        waiting = {json.loads(line)["turn"] for (line,) in db.execute("SELECT line FROM history_journal")}
    raw = history if history is not None else (root / "sessions" / f"{ROOM.file_name}.jsonl").read_bytes()
    filed = {json.loads(line)["turn"] for line in raw.splitlines()}
    return answered <= filed | waiting and filed <= known


async def test_only_an_empty_home_or_an_agreed_one(filled, tmp_path):
    """A home with something in it is refused; with ``replace`` what is there is put aside whole; never beside a daemon."""
    done = await made(filled, tmp_path)
    target = tmp_path / "other"
    other = await fill(target)
    (target / "workspace" / "mine.txt").write_text("mine")
    was = tree(target)
    with pytest.raises(HomeInUse):
        restore(done.path, target, now=NOW)
    with hold_home(Home(target)), pytest.raises(AlreadyRunning):
        restore(done.path, target, now=NOW, replace=True)
    assert restore(done.path, target, now=NOW, replace=True, agreed=lambda _: False) is None
    assert {name: text for name, text in tree(target).items() if not name.startswith("run/")} == {
        name: text for name, text in was.items() if not name.startswith("run/")
    }
    back = restore(done.path, target, now=NOW, replace=True)
    assert (back.put_aside / "workspace" / "mine.txt").read_text() == "mine"
    assert not (target / "workspace" / "mine.txt").exists()
    assert other.home.root == target


async def test_nothing_is_answered_twice_after_a_restore(filled, tmp_path):
    """
    An answer on its way is looked for before it is sent again; a question that waited, and one of the time
    between backup and restore, wait for a person; one from later is taken. With ``moved`` all goes on.
    """
    await filled.say(ALICE, "@alice:hs.test", "and now?", None, native_id="$open")
    async with await SqliteQueue.open(filled.home.database, clock=filled.clock) as store:
        await store.outbox.post([NewOutbound("matrix", BOT, BOB, "on its way")])
        await store.outbox.post([NewOutbound("matrix", BOT, BOB, "a draft", hold=True)])
    done = await made(filled, tmp_path)

    async def opened(**options):
        root = tmp_path / f"new{len(list(tmp_path.iterdir()))}"
        restored = restore(done.path, root, now=NOW + timedelta(hours=8), **options)
        clock = ManualClock(NOW + timedelta(hours=9))
        async with await SqliteQueue.open(root / "gateway.db", clock=clock) as store:
            await store.maintenance.recover()
            keeper = RollbackGuard(Home(root).high_water_mark, lambda: extent(store), clock)
            await keeper.check()
            await keeper.note()
            await keeper.check()  # the second start knows as much
            inbox = ChannelInbox(
                SimpleNamespace(name="matrix", account=BOT), store=store,
                conversations=Conversations(Access((), {"matrix": ("@alice:hs.test",)})),
                intake=AcceptGate(keeper.may_have_answered), report=lambda *_: None,
            )  # fmt: skip
            for name, at in (("$gap", 2), ("$later", 10)):
                message = InboundMessage(
                    channel="matrix", account=BOT, native_id=name, session=ALICE, text=name,
                    sender=Sender(address="@alice:hs.test", verified=True),
                    received_at=NOW + timedelta(hours=at),
                )  # fmt: skip
                await inbox.accept([message], {})
            rows = {row.message.native_id: row.state for row in await store.inbox.rows(limit=50)}
            outs = {row.message.text: row.state for row in await store.outbox.rows(limit=50)}
        return restored, rows, outs

    async def extent(store):
        return Extent.from_counts(store.maintenance.identity, *await store.maintenance.last_ids())

    restored, rows, outs = await opened()
    assert (rows["$open"], rows["$gap"], rows["$later"]) == (
        InboxState.QUARANTINED,
        InboxState.QUARANTINED,
        InboxState.READY,
    )
    assert outs["on its way"] is OutboxState.UNCERTAIN
    assert outs["a draft"] is OutboxState.HELD
    assert (restored.parked.answers, restored.parked.questions) == (1, 1)
    assert "may have been answered" in read_high_water_mark(Home(restored.home).high_water_mark).told

    _, rows, _ = await opened(until=NOW + timedelta(hours=1))
    assert rows["$gap"] is InboxState.READY

    _, rows, outs = await opened(moved=True)
    assert (rows["$open"], rows["$gap"]) == (InboxState.READY, InboxState.READY)
    assert outs["on its way"] is OutboxState.PENDING


async def test_names_on_the_disk_of_any_kind_survive(filled, tmp_path):
    """A name that is no text, one with a line break, one of 200 characters; a link is left out and told."""
    workspace = filled.home.root / "workspace"
    for name in (b"\xff\xfe", b"a\nb", b"n" * 200, "é".encode()):
        (Path(os.fsdecode(os.fsencode(workspace) + b"/" + name))).write_bytes(name)
    (workspace / "link").symlink_to("/etc/passwd")
    done = await made(filled, tmp_path)
    assert [name for name in done.left_out if "workspace/link" in name]
    restore(done.path, tmp_path / "new", now=NOW)
    before, after = tree(workspace), tree(tmp_path / "new" / "workspace")
    assert before == after


async def test_a_file_of_holes_does_not_hold_up_a_backup(filled, tmp_path):
    """A terabyte that takes no space is left out and named; one with a small hole (the control) comes back whole."""
    workspace = filled.home.root / "workspace"
    for name, length in (("huge.img", 10**12), ("small.img", 10**6)):
        with (workspace / name).open("wb") as file:
            file.write(b"begins")
            file.truncate(length)
            file.seek(length // 2)
            file.write(b"goes on")
    (workspace / "zeros.bin").write_bytes(bytes(10**6))
    with anyio.fail_after(60):
        done = await made(filled, tmp_path)
    assert done.left_out == ("workspace/huge.img (it is 1000.0 GB long and mostly empty)",)
    restore(done.path, tmp_path / "new", now=NOW)
    (workspace / "huge.img").unlink()
    assert tree(workspace) == tree(tmp_path / "new" / "workspace")


async def test_a_backup_is_never_half_there_and_never_overwritten(filled, tmp_path):
    """A file that exists is left alone; one whose making fails leaves nothing behind."""
    done = await made(filled, tmp_path)
    was = done.path.read_bytes()
    with pytest.raises(BackupFailed, match="exists"):
        await made(filled, tmp_path)
    assert done.path.read_bytes() == was
    source = await source_of(filled)
    stage = Path(source.snapshot()["folder"])
    (stage / "gateway.db").unlink()
    with pytest.raises(BackupFailed):
        make_backup(tmp_path / "second.tar.gz", source, now=NOW)
    assert not [path for path in tmp_path.iterdir() if "second" in path.name]
    assert not stage.exists()


def test_only_old_backups_are_pruned(tmp_path):
    """The newest stay, and files of other names whatever their age."""
    names = [backup_name(EPOCH + timedelta(days=n), encrypted=bool(n % 2)) for n in range(5)]
    for name in [*names, "notes.tar.gz", "squidbot-20200101T000000Z.tar.gz.part"]:
        (tmp_path / name).touch()
    assert sorted(path.name for path in prune_backups(tmp_path, 2)) == sorted(names[:3])
    assert len(list(tmp_path.iterdir())) == 4


def test_backups_are_remembered_while_they_are_there(tmp_path):
    """What was made is listed until it is gone."""
    (tmp_path / "state").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).touch()
        note_backup(tmp_path, tmp_path / name, now=EPOCH)
    assert [path.name for _, path in known_backups(tmp_path)] == ["a", "b"]
    (tmp_path / "a").unlink()
    assert [path.name for _, path in known_backups(tmp_path)] == ["b"]
