"""A backup is whole and consistent, whether or not the daemon runs, and what comes out of it is what went in."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sqlite3
import stat
import tarfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from agent_core.messages import InboundMessage, Sender
from agent_core.models import Message
from agent_core.storage.jsonl import JsonlMemory
from gateway.access import Access
from gateway.backup.config import kept_config
from gateway.backup.files import Choice
from gateway.backup.listing import known_backups, note_backup
from gateway.backup.making import BackupFailed, BackupSource, backup_name, make_backup, prune_backups
from gateway.backup.reading import BackupRefused, look_into
from gateway.backup.restoring import HomeInUse, restore
from gateway.backup.sealing import SealBroken, Sealing, Unsealing, WrongPassphrase
from gateway.errors import AlreadyRunning
from gateway.home import Home
from gateway.lock import hold_home
from gateway.mark import Extent, MarkKeeper, read_mark
from gateway.operations import Operations
from gateway.router import ChannelInbox, Intake
from gateway.work.migrations import VERSION
from gateway.work.port import Completion, NewOutbound, Pending
from gateway.work.sqlite import SqliteWorkStore
from gateway.work.states import InboxState, OutboxState
from tests.clock import EPOCH, ManualClock
from tests.home_world import ALICE, BOB, BOT, ROOM, fill, tree

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CHEAP = 4
"""The cost of guessing, in tests."""


async def source_of(filled, *, with_secrets=False):
    """A backup of a home that no daemon works on."""
    kept = kept_config(filled.home.root, filled.home.config_file, with_secrets=with_secrets)
    folder = None

    async def snapshot():
        async with await SqliteWorkStore.open(filled.home.database, clock=filled.clock) as store:
            return await Operations(store, None).call("backup_snapshot", {})

    folder = await snapshot()
    choice = Choice(filled.home.root, kept.workspace, with_secrets=with_secrets)
    return BackupSource(choice, lambda: folder, kept.text, {"notes": list(kept.notes)})


@pytest.fixture
async def filled(tmp_path):
    return await fill(tmp_path / "home")


async def made(filled, tmp_path, name="b.tar.gz", **options):
    source = await source_of(filled, **options.pop("choose", {}))
    return make_backup(tmp_path / name, source, now=NOW, **options)


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


async def test_a_running_daemon_is_copied_at_one_moment(tmp_path):
    """
    Turns go on while it is made: every line the journal of the copy has let go is in the copied file, and no
    file holds a line of a turn that the copy does not know. Copying the files as they are breaks the second.
    """
    root = tmp_path / "home"
    filled = await fill(root)
    memory = JsonlMemory(root, clock=filled.clock)
    store = await SqliteWorkStore.open(filled.home.database, clock=filled.clock)
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
            await store.accept("matrix", BOT, [Pending(message)], {})
            turn = await store.claim(ROOM)
            line = Message(role="user", content="x" * 500, id=f"{turn.id}.0", turn=turn.id)
            await store.complete(turn, Completion(history=(line,)))
            await memory.append_message(str(ROOM), line, durable=True)
            await store.journal_done([one.id for one in await store.journal(ROOM)])

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            for number in range(5):
                while answered < 20 * (number + 1):
                    await anyio.sleep(0.001)
                answer = await Operations(store, memory).call("backup_snapshot", {})
                before = answered
                while answered < before + 10:
                    await anyio.sleep(0.001)
                choice = Choice(root, root / "workspace")
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


async def test_the_right_passphrase_opens_it_and_no_other(filled, tmp_path):
    """Nothing of it can be read without; a wrong one is told as that; a damaged byte, a cut end and swapped chunks too."""
    done = await made(filled, tmp_path, passphrase="open sesame", log_n=CHEAP)
    raw = done.path.read_bytes()
    assert b"tea" not in raw
    assert look_into(done.path, passphrase="open sesame").files
    with pytest.raises(WrongPassphrase):
        look_into(done.path, passphrase="open sesam")
    with pytest.raises(BackupRefused, match="encrypted"):
        look_into(done.path)
    for number, broken in enumerate(
        (raw[:-1], raw[:-20], raw[:200], raw[:100] + bytes([raw[100] ^ 1]) + raw[101:], raw + b"\0" * 40)
    ):
        (tmp_path / f"broken{number}").write_bytes(broken)
        with pytest.raises(SealBroken):
            look_into(tmp_path / f"broken{number}", passphrase="open sesame")


def test_chunks_cannot_be_moved_or_left_out():
    """Three chunks in another order, or without the last one, are refused; in their order they are what they were."""
    content = os.urandom(65536 * 3 + 17)
    out = io.BytesIO()
    sealing = Sealing(out, "p", log_n=CHEAP)
    sealing.write(content[:100])
    sealing.write(content[100:])
    sealing.finish()
    raw = out.getvalue()
    assert io.BufferedReader(Unsealing(io.BytesIO(raw), "p")).read() == content
    head, size = raw[:56], 65536 + 16
    chunks = [raw[56 + size * n : 56 + size * (n + 1)] for n in range(4)]
    for order in ([1, 0, 2, 3], [0, 1, 2], [0, 1, 1, 2, 3], [0, 2, 3]):
        moved = io.BytesIO(head + b"".join(chunks[n] for n in order))
        with pytest.raises(SealBroken):
            io.BufferedReader(Unsealing(moved, "p")).read()


async def test_a_damaged_backup_changes_nothing(filled, tmp_path):
    """A byte in the middle, the end cut off, another file's content: refused before the home is touched."""
    done = await made(filled, tmp_path)
    raw = done.path.read_bytes()
    plain = bytearray(gzip.decompress(raw))
    at = plain.index(b"noted: tea")
    plain[at] ^= 1
    for number, broken in enumerate((raw[: len(raw) // 2], b"", b"no backup", gzip.compress(bytes(plain)))):
        path = tmp_path / f"broken{number}"
        path.write_bytes(broken)
        with pytest.raises(BackupRefused):
            restore(path, tmp_path / "new", now=NOW)
        assert not (tmp_path / "new").exists()


def forged(path, *members, manifest=None):
    """A backup that somebody else has made."""
    head = {"format": 1, "version": "9", "made_at": EPOCH.isoformat()}
    listed = {}
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:

        def add(name, data, **more):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
            if name.startswith("home/"):
                listed[name[5:]] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

        add("squidbot-backup.json", json.dumps(head).encode())
        for name, data, more in members:
            add(name, data, **more)
        add("manifest.json", json.dumps(manifest or {"format": 1, "files": listed}).encode())
    return path


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("home/../evil", {}),
        ("home/sessions/../../evil", {}),
        ("/etc/evil", {}),
        ("home//etc/evil", {}),
        ("home/run/control.sock", {}),
        ("home/sessions", {}),
        ("home/gateway.db/x", {}),
        ("home/workspace/link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("home/workspace/hard", {"type": tarfile.LNKTYPE, "linkname": "home/gateway.db"}),
        ("home/workspace/device", {"type": tarfile.CHRTYPE}),
        ("home/workspace/pipe", {"type": tarfile.FIFOTYPE}),
        ("home/workspace/folder", {"type": tarfile.DIRTYPE}),
        ("home/workspace/sparse", {"pax_headers": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}}),
        ("home/workspace/" + "n" * 256, {}),
    ],
)
def test_names_and_kinds_that_no_backup_has_are_refused(tmp_path, name, more):
    """Nothing leads out of the home, nothing but files is made; a plain file of the same kind passes this far."""
    data = b"1\n0\n512\n" if "pax_headers" in more else b""
    path = forged(tmp_path / "x.tar.gz", (name, data, more))
    with pytest.raises(BackupRefused, match=r"name that no backup has|no file|damaged"):
        look_into(path)
    fine = forged(tmp_path / "y.tar.gz", ("home/workspace/fine", b"", {}), ("home/gateway.db", b"", {}))
    assert "workspace/fine" in look_into(fine).files
    assert not (tmp_path / "evil").exists()


def test_bombs_are_refused(tmp_path):
    """More content than there is room, and a name of gigabytes, are refused without being unpacked."""
    path = forged(tmp_path / "x.tar.gz", ("home/workspace/zeros", b"\0" * 5_000_000, {}))
    assert path.stat().st_size < 50_000
    with pytest.raises(BackupRefused, match="more than fits"):
        look_into(path, most_bytes=1_000_000)
    long = forged(tmp_path / "y.tar.gz", ("home/workspace/" + "d/" * 100_000 + "x", b"", {}))
    with pytest.raises(BackupRefused, match="too long"):
        look_into(long)


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
    async with await SqliteWorkStore.open(filled.home.database, clock=filled.clock) as store:
        await store.post([NewOutbound("matrix", BOT, BOB, "on its way")])
        await store.post([NewOutbound("matrix", BOT, BOB, "a draft", hold=True)])
    done = await made(filled, tmp_path)

    async def opened(**options):
        root = tmp_path / f"new{len(list(tmp_path.iterdir()))}"
        restored = restore(done.path, root, now=NOW + timedelta(hours=8), **options)
        clock = ManualClock(NOW + timedelta(hours=9))
        async with await SqliteWorkStore.open(root / "gateway.db", clock=clock) as store:
            await store.recover()
            keeper = MarkKeeper(Home(root).store_mark, lambda: extent(store), clock)
            await keeper.look()
            await keeper.note()
            await keeper.look()  # the second start knows as much
            inbox = ChannelInbox(
                "matrix", BOT, store=store, dispatcher=_Nobody(),
                access=Access((), {"matrix": ("@alice:hs.test",)}),
                intake=Intake(keeper.perhaps_answered), report=lambda *_: None,
            )  # fmt: skip
            for name, at in (("$gap", 2), ("$later", 10)):
                message = InboundMessage(
                    channel="matrix", account=BOT, native_id=name, session=ALICE, text=name,
                    sender=Sender(address="@alice:hs.test", verified=True),
                    received_at=NOW + timedelta(hours=at),
                )  # fmt: skip
                await inbox.accept([message], {})
            rows = {row.message.native_id: row.state for row in await store.inbox(limit=50)}
            outs = {row.message.text: row.state for row in await store.outbox(limit=50)}
        return restored, rows, outs

    async def extent(store):
        return Extent.of(store.identity, *await store.last_ids())

    restored, rows, outs = await opened()
    assert (rows["$open"], rows["$gap"], rows["$later"]) == (
        InboxState.QUARANTINED,
        InboxState.QUARANTINED,
        InboxState.READY,
    )
    assert outs["on its way"] is OutboxState.UNCERTAIN
    assert outs["a draft"] is OutboxState.HELD
    assert (restored.parked.answers, restored.parked.questions) == (1, 1)
    assert "may have been answered" in read_mark(Home(restored.home).store_mark).told

    _, rows, _ = await opened(until=NOW + timedelta(hours=1))
    assert rows["$gap"] is InboxState.READY

    _, rows, outs = await opened(moved=True)
    assert (rows["$open"], rows["$gap"]) == (InboxState.READY, InboxState.READY)
    assert outs["on its way"] is OutboxState.PENDING


class _Nobody:
    def wake(self, session, *, after_s=0.0, first=False):
        """Nobody works."""


async def test_a_backup_of_a_later_version_is_refused(filled, tmp_path):
    """A schema that this version does not know: told in plain words, nothing is changed."""
    with closing(sqlite3.connect(filled.home.database)) as db:
        db.execute(f"PRAGMA user_version = {VERSION}")
    done = await made(filled, tmp_path)
    plain = gzip.decompress(done.path.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        database = tar.extractfile("home/gateway.db").read()
    newer = tmp_path / "newer.db"
    newer.write_bytes(database)
    with closing(sqlite3.connect(newer)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    path = forged(tmp_path / "later.tar.gz", ("home/gateway.db", newer.read_bytes(), {}))
    with pytest.raises(BackupRefused, match="later version"):
        restore(path, tmp_path / "new", now=NOW)
    assert not (tmp_path / "new" / "gateway.db").exists()
    same = forged(tmp_path / "same.tar.gz", ("home/gateway.db", database, {}))
    assert restore(same, tmp_path / "new", now=NOW) is not None


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
    names = [backup_name(EPOCH + timedelta(days=n), sealed=bool(n % 2)) for n in range(5)]
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
