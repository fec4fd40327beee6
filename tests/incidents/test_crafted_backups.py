"""
Crafted archives ended `restore` in a traceback. Whatever the file is, it is refused in words, or restored.

Found by changing backups by chance and by hand; what chance found is kept here as a case of its own, and the
fuzzing goes on with a fixed seed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import sqlite3
import tarfile
import tracemalloc
from contextlib import closing

import anyio
import pytest

from gateway.cli.backup import _done, _looked, _story, _summary
from gateway.errors import GatewayError
from gateway.operations.backup.archive import BackupRefused, verify_backup
from gateway.operations.backup.create import HEAD_NAME, MANIFEST_NAME
from gateway.operations.backup.restore import restore
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from tests.backup_world import NOW
from tests.clock import EPOCH, ManualClock

HEAD = {"format": 1, "version": "9", "made_at": EPOCH.isoformat(), "notes": ["a note"]}
ODD = [
    None, True, -1, 5, 10**30, 1.5, 1e308, "", "x", "\ud800", "\x1b]0;x\a", [], [1], [[1, 2]], {}, {"a": 1},
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01",
]  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The bytes of an empty queue."""
    path = tmp_path_factory.mktemp("database") / "gateway.db"

    async def made():
        async with await SqliteQueue.open(path, clock=ManualClock()):
            pass

    anyio.run(made)
    return path.read_bytes()


def pack(members):
    """A tar of names and contents, with whatever a member says of itself."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data, pax in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.pax_headers = pax
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def archive(database, *, head=HEAD, manifest=None, pax=None, more=()):
    """A backup, as it comes out of tar; one thing of it is not as it should be."""
    files = [("gateway.db", database), ("memory/owner/summary.md", b"tea"), *more]
    listed = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files}
    said = {"format": 1, "files": listed, "database": {"running": False}, **(manifest or {})}
    return pack(
        [
            (HEAD_NAME, json.dumps(head).encode(), {}),
            *((f"home/{name}", data, pax or {}) for name, data in files),
            (MANIFEST_NAME, json.dumps(said).encode(), {}),
        ]
    )


def tried(raw, folder, *, moved=False):
    """What comes of restoring these bytes: words for a refusal, or what a person is shown after it."""
    path = folder / "b.tar.gz"
    path.write_bytes(raw)
    number = sum(1 for _ in folder.glob("home*"))
    shown = []

    def agree(looked):
        shown.append(_summary(looked) + json.dumps(_looked(looked)))
        return True

    try:
        done = restore(path, folder / f"home{number}", now=NOW, agreed=agree, moved=moved)
    except GatewayError as error:
        return str(error)
    shown.append(_story(done, [], "squidbot check") + json.dumps(_done(done)))
    "".join(shown).encode()  # it can be printed
    assert "\x1b" not in "".join(shown)
    return "restored"


def test_one_as_it_should_be(database, tmp_path):
    """The control: what all others differ from is restored."""
    assert tried(gzip.compress(archive(database)), tmp_path) == "restored"


def test_beginnings_of_gzip(tmp_path):
    """A header that promises more than there is."""
    for flags in range(32):
        for length in range(9, 30, 3):
            assert tried(
                (b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\3" + b"\xff" * 19)[:length], tmp_path
            )


def test_headers_without_end(tmp_path):
    """Long headers one behind the other, without a file."""
    one = tarfile.TarInfo("x")
    one.type = tarfile.XHDTYPE
    data = b"11 path=ab\n"
    one.size = len(data)
    chain = (one.tobuf(tarfile.USTAR_FORMAT) + data.ljust(512, b"\0")) * 1500
    assert "restored" not in tried(gzip.compress(chain + b"\0" * 1024), tmp_path)


@pytest.mark.parametrize(
    "name", ["mtime", "size", "uid", "path", "GNU.sparse.map", "GNU.sparse.major", "hdrcharset"]
)
def test_what_a_member_says_of_itself(database, tmp_path, name):
    """Times beyond all calendars, sizes that are none."""
    for value in (
        "nan",
        "inf",
        "-inf",
        "1e300",
        "-1e300",
        "-1",
        "99999999999999999999",
        "x",
        "",
        "0,0,1",
        "\n",
    ):
        more = {"GNU.sparse.minor": "0", "GNU.sparse.name": "home/x"} if "sparse" in name else {}
        assert tried(gzip.compress(archive(database, pax={name: value, **more})), tmp_path)


@pytest.mark.parametrize("key", ["format", "version", "made_at", "notes", "secrets"])
def test_what_the_head_says(database, tmp_path, key):
    """Every value that JSON knows, in every place."""
    for value in ODD:
        assert tried(gzip.compress(archive(database, head={**HEAD, key: value})), tmp_path)


@pytest.mark.parametrize("key", ["format", "files", "database"])
def test_what_the_manifest_says(database, tmp_path, key):
    """The same there."""
    for value in ODD:
        assert tried(gzip.compress(archive(database, manifest={key: value})), tmp_path)


def test_files_that_are_folders_too(database, tmp_path):
    """One path is the beginning of another."""
    for more in ([("memory/owner/summary.md/x", b"")], [("squidbot.yaml", b"a: &a [*a]"), ("state/x", b"")]):
        assert tried(gzip.compress(archive(database, more=more)), tmp_path)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM meta", "UPDATE meta SET value = x'ff'", "DROP TABLE meta",
        "DROP TABLE inbox", "DROP TABLE jobs", "PRAGMA user_version = -3", "PRAGMA user_version = 8", "PRAGMA user_version = 999",
        "PRAGMA application_id = 1",
        "DROP TABLE inbox; CREATE TABLE inbox (id TEXT); INSERT INTO inbox VALUES ('x')",
        "DROP TABLE inbox; CREATE TABLE inbox (id BLOB); INSERT INTO inbox VALUES (x'ff')",
        (
            "DROP TABLE outbox; CREATE VIEW outbox AS"
            " WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r) SELECT id FROM r"
        ),
        "CREATE TRIGGER t BEFORE UPDATE ON outbox BEGIN SELECT RAISE(ABORT, 'x'); END",
        "INSERT INTO jobs SELECT 'j', 'job', 't', x'ff', 's', 'a', 'p', 'direct', '{}', 'active', 0, 1, NULL, NULL, 1, ''",
        "INSERT INTO jobs SELECT 'j', 'job', 't', 5, 's', 'a', 'p', 'direct', '{}', 'active', 0, 1, NULL, NULL, 1, ''",
    ],
)  # fmt: skip
def test_what_the_database_holds(database, tmp_path, sql):
    """It is somebody else's file, too."""
    path = tmp_path / "crafted.db"
    path.write_bytes(database)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.executescript(sql)
        db.commit()
    assert tried(gzip.compress(archive(path.read_bytes())), tmp_path)


@pytest.mark.parametrize("was_there", [False, True])
def test_what_is_refused_leaves_nothing_behind(tmp_path, was_there):
    """It agrees with its manifest and is no database: known only after it was unpacked."""
    home = tmp_path / f"home{int(was_there)}"
    if was_there:
        (home / "workspace").mkdir(parents=True)
    assert "restored" not in tried(gzip.compress(archive(b"no database" * 100)), tmp_path)
    left = sorted(each.name for each in home.iterdir()) if home.exists() else None
    assert left == (["run", "workspace"] if was_there else None)


def test_a_listing_of_what_is_not_there_takes_no_memory(database, tmp_path):
    """Sixty megabytes of empty lists became more than a gigabyte of objects before they were compared."""
    more = {"database": [[] for _ in range(1_000_000)]}
    crafted = tmp_path / "crafted.tar.gz"
    crafted.write_bytes(gzip.compress(archive(database, manifest=more), 1))
    del more
    tracemalloc.start()
    try:
        with pytest.raises(BackupRefused, match="lists more than it contains"):
            verify_backup(crafted)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000, "the objects alone would be 64 MB"
    told = tried(gzip.compress(archive(database, more=[("workspace/a,[{" + "," * 50, b"x")])), tmp_path)
    assert told == "restored", "the control: odd names count for nothing"


def test_a_database_with_bytes_changed_by_chance(database, tmp_path):
    """A page, a pointer, a length: refused, or it works."""
    chance = random.Random(13)
    for _ in range(20):
        raw = bytearray(database)
        for _ in range(chance.randint(1, 8)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        assert tried(gzip.compress(archive(bytes(raw)), 1), tmp_path)


def test_archives_changed_by_chance(tmp_path):
    """Before and after gzip: bytes changed, pieces moved, left out and doubled."""
    chance = random.Random(17)
    good = archive(b"no database", more=[(f"sessions/{n}", b"x" * n) for n in range(3)])
    for number in range(200):
        raw = bytearray(good if number % 3 else gzip.compress(good))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(raw))
            # The headers are where it is interesting.
            at = at - at % 512 + chance.randrange(160) if number % 3 and chance.random() < 0.7 else at
            at = min(at, len(raw) - 1)
            match chance.randrange(4):
                case 0:
                    raw[at] = chance.randrange(256)
                case 1:
                    raw[at : at + chance.choice([1, 12, 512])] = b""
                case 2:
                    raw[at:at] = bytes(raw[at : at + chance.choice([1, 12, 512])])
                case _:
                    raw[at : at + 12] = chance.choice(
                        [b"99999999999\0", b"\x80" + b"\xff" * 11, b"-0000000001\0"]
                    )
            raw = raw or bytearray(b"x")
        assert tried(gzip.compress(bytes(raw), 1) if number % 3 else bytes(raw), tmp_path)
