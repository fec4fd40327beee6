"""What every storage of attachments promises: files of a home, a shared folder, objects of an S3-compatible store."""

from __future__ import annotations

import os
import threading
from pathlib import PurePosixPath
from types import SimpleNamespace

import anyio
import obstore
import obstore.exceptions
import pytest

from channels.attachments import (
    AttachmentDamaged,
    AttachmentGone,
    AttachmentStore,
    AttachmentsUnreachable,
    Damaged,
    LocalFiles,
    StorageUnreachable,
    StoredFile,
)
from channels.attachments.file_storage import place_problem, storage_at
from tests.contract.attachment_places import KINDS, any_storage, path_of, put, read, storage_maker  # noqa: F401
from tests.doubles.object_server import KEYS

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


def test_a_store_without_conditional_writes(object_server, gate, tmp_path):
    """It says 501 once. What is there stays: the owner, marks, a young content; a part of a content is replaced."""
    gate.way = "unconditional"
    first, second = (object_server.storage(tmp_path.name, url=gate.url, limit_s=3) for _ in range(2))
    assert put(first, b"content", tmp_path)
    asked = gate.asked["condition"]
    assert asked > 0
    assert not put(first, b"content", tmp_path)
    assert first.mark("a" * 32, "one.bin")
    assert not first.mark("a" * 32, "one.bin")
    assert first.owner("a" * 32) == "a" * 32
    assert first.owner("b" * 32) == "a" * 32
    assert gate.asked["condition"] == asked
    assert second.owner("b" * 32) == "a" * 32
    obstore.put(first._store(), path_of(b"content"), b"con")
    assert put(second, b"content", tmp_path)
    assert read(second, b"content") == b"content"
    gate.way = "failing"  # the control: that says nothing about conditions
    other = object_server.storage(tmp_path.name, url=gate.url, limit_s=3)
    with pytest.raises(StorageUnreachable):
        other.mark("a" * 32, "two.bin")
    gate.way = "open"
    assert other._knows_conditions


def test_marks_are_kept_found_and_removed(storage):
    """Whose share a file counts on: each pair once, removed by file or by person."""
    assert storage.mark("a" * 32, "one.bin")
    assert not storage.mark("a" * 32, "one.bin")
    assert storage.mark("b" * 32, "one.bin")
    assert storage.mark("b" * 32, "two.bin")
    assert sorted(mark[:2] for mark in storage.marks()) == [
        ("a" * 32, "one.bin"),
        ("b" * 32, "one.bin"),
        ("b" * 32, "two.bin"),
    ]
    storage.unmark("a" * 32, "one.bin")
    storage.unmark("a" * 32, "one.bin")
    assert sorted(mark[:2] for mark in storage.marks()) == [("b" * 32, "one.bin"), ("b" * 32, "two.bin")]
    storage.forget("b" * 32)
    assert list(storage.marks()) == []
    storage.forget("c" * 32)


def test_a_storage_belongs_to_the_first_one_that_asks(storage):
    """And to nobody else afterwards; that is no content."""
    assert storage.owner("a" * 32) == "a" * 32
    assert storage.owner("b" * 32) == "a" * 32
    assert list(storage.list_files()) == []


def test_a_probe_leaves_nothing(storage):
    """It writes, reads and removes."""
    storage.probe()
    assert list(storage.list_files()) == []
    assert list(storage.marks()) == []


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


@pytest.mark.parametrize("count", [1, 7])
async def test_a_sweep_lists_the_marks_once(opened, count):
    """However many files it removes; afterwards their room is free again."""
    store, storage = opened
    message = SimpleNamespace(sender=SimpleNamespace(address="@bob:hs.test"))
    for number in range(count):
        await store.save(f"{number}.txt", "", f"content {number}".encode(), message=message)
    files = await store.list_files()
    real, listed = storage.marks, []
    storage.marks = lambda: listed.append(1) or real()
    assert await store.remove(files) == count
    assert listed == [1]
    assert list(real()) == []
    assert (store._used_bytes, sum(store._shares._used.values())) == (0, 0)
    assert await store.remove([]) == await store.remove(files) == 0


async def test_no_save_waits_for_a_long_listing(make, tmp_path, monkeypatch):
    """Counting anew is done beside saving; what is saved meanwhile counts, whether the listing has it or not."""
    storage = make("folder")
    other = AttachmentStore(tmp_path / "other", storage=make("folder"), max_total_bytes=20_000)
    store = AttachmentStore(tmp_path / "home", storage=storage, max_total_bytes=20_000)
    await store.save("a", "", b"a" * 700)
    await other.save("b", "", b"b" * 900)
    real, begun, goes_on = storage.list_files, threading.Event(), threading.Event()

    def stored():
        found = list(real())
        begun.set()
        goes_on.wait(30)
        return iter(found)

    storage.list_files = stored
    monkeypatch.setattr("channels.attachments.attachment_store._COUNT_EVERY_S", 0.01)
    message = SimpleNamespace(sender=SimpleNamespace(address="@bob:hs.test"))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.count_until_cancelled)
            await anyio.to_thread.run_sync(begun.wait)
            await store.save("c", "", b"c" * 300, message=message)
            assert store._used_bytes == 1000
            storage.list_files = real
            goes_on.set()
            while store._used_bytes != 1900:
                await anyio.sleep(0.01)
            assert sum(store._shares._used.values()) == 300
            tasks.cancel_scope.cancel()


async def test_files_of_the_home_are_counted_once(tmp_path):
    """Nobody else adds any."""
    await AttachmentStore(tmp_path).count_until_cancelled()
    assert list(tmp_path.iterdir()) == []


async def test_two_processes_see_each_others_files_and_shares(make, tmp_path):
    """What one has saved the other reads, counts, and gives back when it removes it."""
    for kind in ("folder", "s3"):
        place = f"shared-{kind}"
        first, second = (
            AttachmentStore(
                tmp_path / f"{kind}{n}", max_total_bytes=4000, max_file_bytes=1000, storage=make(kind, place)
            )
            for n in (1, 2)
        )
        kept = await first.save("a", "", b"x" * 700)
        assert await second.read(kept, max_bytes=1000) == b"x" * 700
        await second.save("b", "", b"y" * 900)
        assert second._used_bytes == 1600
        await first.save("c", "", b"z" * 100)
        assert first._used_bytes == 800
        await first._count()
        assert first._used_bytes == 1700


# ── a store that is away, or lies ──


@pytest.fixture
def behind(object_server, gate, tmp_path):
    """A store over a storage behind a gate."""
    storage = object_server.storage(tmp_path.name, url=gate.url, limit_s=1)
    return AttachmentStore(tmp_path / "home", storage=storage)


@pytest.mark.parametrize("way", ["away", "failing", "refusing", "stuck"])
async def test_a_store_that_is_away_is_temporary(behind, gate, way, caplog):
    """Whatever it does, saving waits for another try and reading is no loss; afterwards all is as before."""
    kept = await behind.save("a", "", b"first")
    gate.way = way
    gate.asked.clear()
    with pytest.raises(AttachmentsUnreachable) as away:
        await behind.save("b", "", b"second")
    assert away.value.temporary
    with pytest.raises(OSError) as unread:
        await behind.read(kept, max_bytes=10)
    assert isinstance(unread.value, StorageUnreachable)
    state = behind.state()["attachments"]
    assert state["away"]
    for text in (str(away.value), str(unread.value), state["away"], caplog.text):
        assert KEYS["secret_access_key"] not in text
        assert KEYS["access_key_id"] not in text
    assert sum(gate.asked.values()) <= 8, "repetitions are bounded"
    gate.way = "open"
    assert await behind.read(kept, max_bytes=10) == b"first"
    await behind.save("b", "", b"second")
    assert behind.state()["attachments"]["away"] is None


async def test_nobody_else_waits_for_a_store_that_hangs(behind, gate):
    """The event loop turns, and threads of others are free, while every thread for the store hangs."""
    kept = await behind.save("a", "", b"first")
    gate.way = "stuck"
    failed = 0

    async def one():
        nonlocal failed
        with pytest.raises(OSError):
            await behind.read(kept, max_bytes=10)
        failed += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(one)
        turns = 0
        while failed < 50:
            await anyio.to_thread.run_sync(lambda: None)
            await anyio.sleep(0.01)
            turns += 1
            if turns == 100:
                assert failed < 50
                gate.way = "away"
    assert turns >= 100


async def test_a_body_that_breaks_off_is_temporary(behind, gate):
    """A connection that is lost in the middle is tried again; it says nothing about the file."""
    kept = await behind.save("a", "", os.urandom(100_000))
    gate.way = "broken"
    with pytest.raises(StorageUnreachable):
        await behind.read(kept, max_bytes=100_000)


@pytest.mark.parametrize("way", ["short", "wrong"])
async def test_a_store_that_lies_is_noticed(behind, gate, way):
    """What is cut, or has another byte, is not handed on; of a large one the last piece never is."""
    small = await behind.save("cat.png", "", os.urandom(100_000))
    content = os.urandom(5_000_000)
    large = await behind.save("film", "", content)
    gate.way = way
    for kept in (small, large):
        with pytest.raises(AttachmentDamaged, match="is damaged"):
            await behind.read(kept, max_bytes=10)
        got = bytearray()
        with pytest.raises(AttachmentDamaged):
            async for piece in behind.chunks(kept):
                got += piece
        assert len(got) < kept.size_bytes
    gate.way = "open"
    assert await behind.read(large, max_bytes=len(content)) == content


async def test_one_wrong_answer_is_asked_for_once_more(behind, gate):
    """A proxy that spoiled one answer costs a second request and no file."""
    kept = await behind.save("a", "", b"as it was")
    real = behind._storage.read
    answers = [b"as it is!"]
    behind._storage.read = lambda *args, **more: answers.pop() if answers else real(*args, **more)
    assert await behind.read(kept, max_bytes=100) == b"as it was"
    assert not answers


def test_a_bucket_that_does_not_exist_is_no_missing_file(object_server):
    """A wrong name of the bucket says so; it does not say that files are gone."""
    from channels.attachments.object_storage import ObjectFiles

    wrong = ObjectFiles("no-such-bucket", "", options={"endpoint": object_server.url, **KEYS}, limit_s=3)
    for call in (
        lambda: read(wrong, b"x"),
        lambda: wrong.find(path_of(b"x")),
        lambda: list(wrong.list_files()),
        lambda: wrong.mark("a", "b"),
        wrong.probe,
        wrong.prepare,
    ):
        with pytest.raises(StorageUnreachable, match="does not exist"):
            call()


def test_a_shared_folder_that_is_not_mounted_is_away(tmp_path):
    """Its files are not gone, and nothing is written to where it should be."""
    storage = LocalFiles(tmp_path / "mnt", is_shared=True)
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


def test_errors_say_nothing_of_the_servers_words(object_server, gate, tmp_path):
    """What a server says of itself stays out of logs and of what people read."""
    gate.way = "refusing"
    storage = object_server.storage("x", url=gate.url, limit_s=1)
    with pytest.raises(StorageUnreachable) as refused:
        storage.probe()
    assert (
        refused.value.strerror == "the object store s3://files/x does not accept the credentials (status 403)"
    )


# ── which storage ──


def test_a_setting_names_a_storage():
    """A bucket with a prefix, an absolute folder, or the home; anything else is a problem with a sentence."""
    for good in ("", "s3://bucket", "s3://my-bucket/a/b-c", "/mnt/files"):
        assert place_problem(good) is None
    for bad in (
        "s3://",
        "s3://B",
        "s3://bucket/a/../b",
        "s3://key:secret@bucket/x",
        "s3://bucket/a?b=c",
        "files",
        "/a/../b",
        "http://x/y",
    ):
        assert place_problem(bad), bad
    assert not storage_at(PurePosixPath("/home")).is_shared
    assert storage_at(PurePosixPath("/home"), "/mnt").is_shared
    assert storage_at(PurePosixPath("/home"), "s3://bucket/x/").name == "the object store s3://bucket/x"
