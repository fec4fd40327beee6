"""Backups that are not unpacked: a wrong passphrase, damage, foreign names and kinds, bombs, a later version."""

from __future__ import annotations

import gzip
import io
import os
import sqlite3
import tarfile
from contextlib import closing

import pytest

from gateway.operations.backup.archive import BackupRefused, verify_backup
from gateway.operations.backup.archive_encryption import (
    BackupDamaged,
    DecryptingReader,
    EncryptingWriter,
    WrongPassphrase,
)
from gateway.operations.backup.restore import restore
from gateway.store.sql.tables import VERSION
from tests.backup_world import NOW, forged, made
from tests.home_world import fill

CHEAP = 4
"""The cost of guessing, in tests."""


@pytest.fixture
async def filled(tmp_path):
    return await fill(tmp_path / "home")


async def test_the_right_passphrase_opens_it_and_no_other(filled, tmp_path):
    """Nothing of it can be read without; a wrong one is told as that; a damaged byte, a cut end and swapped chunks too."""
    done = await made(filled, tmp_path, passphrase="open sesame", log_n=CHEAP)
    raw = done.path.read_bytes()
    assert b"tea" not in raw
    assert verify_backup(done.path, passphrase="open sesame").files
    with pytest.raises(WrongPassphrase):
        verify_backup(done.path, passphrase="open sesam")
    with pytest.raises(BackupRefused, match="encrypted"):
        verify_backup(done.path)
    for number, broken in enumerate(
        (raw[:-1], raw[:-20], raw[:200], raw[:100] + bytes([raw[100] ^ 1]) + raw[101:], raw + b"\0" * 40)
    ):
        (tmp_path / f"broken{number}").write_bytes(broken)
        with pytest.raises(BackupDamaged):
            verify_backup(tmp_path / f"broken{number}", passphrase="open sesame")


def test_chunks_cannot_be_moved_or_left_out():
    """Three chunks in another order, or without the last one, are refused; in their order they are what they were."""
    content = os.urandom(65536 * 3 + 17)
    out = io.BytesIO()
    writer = EncryptingWriter(out, "p", log_n=CHEAP)
    writer.write(content[:100])
    writer.write(content[100:])
    writer.finish()
    raw = out.getvalue()
    assert io.BufferedReader(DecryptingReader(io.BytesIO(raw), "p")).read() == content
    head, size = raw[:56], 65536 + 16
    chunks = [raw[56 + size * n : 56 + size * (n + 1)] for n in range(4)]
    for order in ([1, 0, 2, 3], [0, 1, 2], [0, 1, 1, 2, 3], [0, 2, 3]):
        moved = io.BytesIO(head + b"".join(chunks[n] for n in order))
        with pytest.raises(BackupDamaged):
            io.BufferedReader(DecryptingReader(moved, "p")).read()


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
    with pytest.raises(BackupRefused, match=r"does not belong in a backup|not a file|damaged"):
        verify_backup(path)
    fine = forged(tmp_path / "y.tar.gz", ("home/workspace/fine", b"", {}), ("home/gateway.db", b"", {}))
    assert "workspace/fine" in verify_backup(fine).files
    assert not (tmp_path / "evil").exists()


def test_bombs_are_refused(tmp_path):
    """More content than there is room, and a name of gigabytes, are refused without being unpacked."""
    path = forged(tmp_path / "x.tar.gz", ("home/workspace/zeros", b"\0" * 5_000_000, {}))
    assert path.stat().st_size < 50_000
    with pytest.raises(BackupRefused, match="does not fit here"):
        verify_backup(path, most_bytes=1_000_000)
    long = forged(tmp_path / "y.tar.gz", ("home/workspace/" + "d/" * 100_000 + "x", b"", {}))
    with pytest.raises(BackupRefused, match="too long"):
        verify_backup(long)


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
