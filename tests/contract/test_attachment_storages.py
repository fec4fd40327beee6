"""What every storage of attachments promises: files of a home, of a folder elsewhere, objects."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from channels.attachments import (
    AttachmentGone,
    AttachmentStore,
    AttachmentsUnavailable,
    Damaged,
    LocalFiles,
    StorageUnreachable,
    StoredFile,
    attachment_store,
)
from channels.attachments.file_storage import place_problem, storage_at
from tests.contract.attachment_places import KINDS, any_storage, path_of, put, read, storage_maker  # noqa: F401
from tests.doubles.away_folder import AwayFolder

# ── the port ──


@pytest.mark.parametrize("size", [0, 1, 300_000, 9_000_000])
def test_what_is_put_is_read_back_in_parts(storage, tmp_path, size):
    """Small and large contents, the empty one, ranges beyond the end; whoever puts it again learns that it was there."""
    content = os.urandom(size)
    assert put(storage, content, tmp_path)
    assert not put(storage, content, tmp_path)
    assert read(storage, content) == content
    assert read(storage, content, offset=size // 2, max_bytes=10) == content[size // 2 :][:10]
    assert read(storage, content, offset=size + 5, max_bytes=10) == b""
    found = storage.find(path_of(content))
    assert (found.path, found.size_bytes) == (path_of(content), size)
    assert [file.path for file in storage.list_files()] == [path_of(content)]


def test_what_is_not_there_is_missing_and_what_has_another_size_is_damaged(storage, tmp_path):
    """Two different answers; a damaged content is replaced by the next one that is put."""
    with pytest.raises(FileNotFoundError):
        read(storage, b"nothing")
    assert storage.find(path_of(b"nothing")) is None
    assert not storage.erase(path_of(b"nothing"))
    put(storage, b"content", tmp_path)
    for size in (3, 7_000):
        with pytest.raises(Damaged):
            storage.read(path_of(b"content"), size, offset=0, max_bytes=size)
        with pytest.raises(Damaged):
            storage.read(path_of(b"content"), size, offset=size - 1, max_bytes=10)


@pytest.mark.parametrize(
    "path", ["../x", "attachments/../x", "/etc/passwd", "attachments/ab/" + "a" * 64 + ".txt", "", "x"]
)
def test_no_other_path_is_taken(storage, tmp_path, path):
    """A path that is not made of a hash reaches nothing."""
    with pytest.raises(ValueError):
        storage.read(path, 1, offset=0, max_bytes=1)
    with pytest.raises(ValueError):
        storage.erase(path)
    with pytest.raises(ValueError):
        storage.find(path)
    with pytest.raises(ValueError):
        storage.remove(StoredFile(path, 0.0, 1))
    with pytest.raises(ValueError):
        storage.save(0, tmp_path / "x", path, 1)


def test_what_was_saved_again_is_not_removed(storage, tmp_path):
    """A listing from before is no reason; the control is a listing from now. What is not whole is replaced."""
    put(storage, b"content", tmp_path)
    [listed] = storage.list_files()
    before = StoredFile(listed.path, listed.saved_at - 86_400, listed.size_bytes)
    assert not storage.remove(before)
    assert read(storage, b"content") == b"content"
    assert storage.remove(listed)
    assert not storage.remove(listed)
    assert storage.find(listed.path) is None
    put(storage, b"content", tmp_path)
    assert storage.erase(listed.path)
    assert list(storage.list_files()) == []


def test_a_storage_belongs_to_the_first_one_that_asks(storage):
    """And to nobody else afterwards; that is no content."""
    assert storage.owner("a" * 32) == "a" * 32
    assert storage.owner("b" * 32) == "a" * 32
    assert list(storage.list_files()) == []


def test_a_probe_leaves_nothing(storage):
    """It writes, reads and removes."""
    storage.probe()
    assert list(storage.list_files()) == []


# ── the store over it ──


@pytest.fixture(params=KINDS)
def opened(request, make, tmp_path):
    storage = make(request.param)
    return AttachmentStore(tmp_path / "home", max_total_bytes=20_000_000, storage=storage), storage


async def test_a_store_over_any_storage(opened):
    """Saved, read in parts and in pieces, listed, removed; gone is gone."""
    store, _ = opened
    content = os.urandom(5_000_000)
    kept = await store.save("a.txt", "text/plain", content)
    assert kept.path == path_of(content, ".txt")
    assert await store.read(kept, max_bytes=10, offset=4_500_000) == content[4_500_000:4_500_010]
    assert await store.read(kept, max_bytes=len(content)) == content
    assert b"".join([piece async for piece in store.chunks(kept)]) == content
    empty = await store.save("empty", "", b"")
    assert await store.read(empty, max_bytes=10) == b""
    assert [piece async for piece in store.chunks(empty) if piece] == []
    files = await store.list_files()
    assert await store.remove(files) == len(files)
    for gone in (kept, empty):
        with pytest.raises(AttachmentGone, match="no longer kept"):
            await store.read(gone, max_bytes=10)


# ── a store that is away, or lies ──


def test_a_folder_that_is_not_mounted_is_away(tmp_path):
    """Its files are not gone, and nothing is written to where it should be."""
    storage = LocalFiles(tmp_path / "mnt", elsewhere=True)
    (tmp_path / "mnt").mkdir()
    for call in (
        lambda: read(storage, b"x"),
        lambda: storage.find(path_of(b"x")),
        lambda: list(storage.list_files()),
        lambda: put(storage, b"x", tmp_path),
        storage.probe,
        storage.prepare,
    ):
        with pytest.raises(StorageUnreachable, match="mounted"):
            call()
    assert list((tmp_path / "mnt").iterdir()) == []


async def test_a_folder_that_is_away_is_temporary(tmp_path):
    """Saving waits for another try and reading is no loss; afterwards all is as before."""
    folder = AwayFolder(tmp_path / "mnt")
    store = AttachmentStore(tmp_path / "home", storage=folder)
    kept = await store.save("a", "", b"first")
    folder.is_unreachable = True
    with pytest.raises(AttachmentsUnavailable, match="mounted") as away:
        await store.save("b", "", b"second")
    assert away.value.temporary
    with pytest.raises(StorageUnreachable):
        await store.read(kept, max_bytes=10)
    assert "mounted" in store.state()["attachments"]
    folder.is_unreachable = False
    assert await store.read(kept, max_bytes=10) == b"first"
    await store.save("b", "", b"second")
    assert store.state() == {}


async def test_nobody_else_waits_for_a_folder_that_hangs(make, tmp_path, monkeypatch):
    """Each call ends at its deadline; a bounded number hangs in threads of its own, and others are refused."""
    monkeypatch.setattr(attachment_store, "_LIMIT_S", 0.2)
    storage, goes_on, hung = make("folder"), threading.Event(), []
    store = AttachmentStore(tmp_path / "home", storage=storage)
    kept = await store.save("a", "", b"first")
    storage.read = lambda *_, **__: hung.append(1) or goes_on.wait(60)
    failed = []

    async def one():
        with pytest.raises(StorageUnreachable):
            await store._asked(lambda: storage.read(kept.path), 0.2)
        failed.append(1)

    try:
        with anyio.fail_after(60):
            for _ in range(5):
                async with anyio.create_task_group() as tasks:
                    for _ in range(10):
                        tasks.start_soon(one)
                await anyio.to_thread.run_sync(lambda: None)
        assert (len(failed), len(hung) <= 24) == (50, True)
    finally:
        goes_on.set()


# ── which storage ──


def test_a_setting_names_a_storage():
    """A bucket with a prefix, an absolute folder, or the home; anything else is a problem with a sentence."""
    for good in ("", "s3://bucket", "s3://bucket/", "s3://my-bucket/a/b-c", "/mnt/files"):
        assert place_problem(good) is None
    for bad in (
        "s3://",
        "s3://B",
        "s3://bucket/a/../b",
        "s3://bucket//a",
        "s3://key:secret@bucket/x",
        "s3://bucket/a?b=c",
        "files",
        "/a/../b",
        "http://x/y",
    ):
        assert place_problem(bad), bad
    assert not storage_at(Path("/home")).is_elsewhere
    assert storage_at(Path("/home"), "/mnt").is_elsewhere
    assert storage_at(Path("/home"), "s3://bucket/x/").name == "the object store s3://bucket/x"
