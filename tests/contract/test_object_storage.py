"""What an object store does besides: it is away, refuses, hangs, does not answer a removal, and tells lies."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime

import anyio
import anyio.to_thread
import obstore
import pytest

from channels.attachments import (
    AttachmentDamaged,
    AttachmentStore,
    AttachmentsUnavailable,
    StorageUnreachable,
    object_storage,
)
from channels.attachments.attachment_storage import Damaged
from channels.attachments.file_storage import read_pieces
from channels.attachments.object_storage import ObjectFiles
from tests.contract.attachment_places import path_of, put, read
from tests.doubles.object_server import KEYS


@pytest.fixture
def objects(object_server, gate, tmp_path):
    """A storage behind a gate."""
    return object_server.storage(tmp_path.name, url=gate.url, limit_s=1)


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("away", "cannot be reached"),
        ("stuck", "cannot be reached"),
        ("failing", "cannot do it now (status 500)"),
        ("busy", "cannot do it now (status 503)"),
        ("refusing", "does not accept the credentials (status 403); correct attachments.s3"),
    ],
)
async def test_a_store_that_is_away_is_temporary(objects, gate, tmp_path, way, told, caplog):
    """Whatever it does, saving waits for another try and reading is no loss; afterwards all is as before."""
    store = AttachmentStore(tmp_path / "home", storage=objects)
    kept = await store.save("a", "", b"first")
    gate.way = way
    gate.asked.clear()
    with pytest.raises(AttachmentsUnavailable) as away:
        await store.save("b", "", b"second")
    assert away.value.temporary
    with pytest.raises(StorageUnreachable) as unread:
        await store.read(kept, max_bytes=10)
    waits = store.state()["attachments"]
    for text in (str(away.value), str(unread.value), waits):
        assert f"the object store s3://files/{tmp_path.name} {told}" in text
        assert KEYS["secret_access_key"] not in text + caplog.text
        assert KEYS["access_key_id"] not in text + caplog.text
    assert 2 <= sum(gate.asked.values()) <= 6, "repetitions are bounded"
    gate.way = "open"
    assert await store.read(kept, max_bytes=10) == b"first"
    await store.save("b", "", b"second")
    assert store.state() == {}
    assert list((tmp_path / "home/attachments").glob("??/*")) == [], "nothing stays on this machine"


def test_what_is_saved_again_is_as_new(objects, gate, tmp_path):
    """Its time is that of the last save, so a sweeper that has listed it before leaves it; the control is swept."""
    for content in (b"again", b"not again"):
        put(objects, content, tmp_path)
        gate.aged.add(path_of(content).removeprefix("attachments/"))
    listed = {file.path: file for file in objects.list_files()}
    assert not put(objects, b"again", tmp_path)
    assert (datetime.now(UTC).timestamp() - objects.find(path_of(b"again")).saved_at) < 86_400
    assert not objects.remove(listed[path_of(b"again")])
    assert objects.remove(listed[path_of(b"not again")])
    obstore.put(objects._client(), path_of(b"again"), b"aga")
    assert put(objects, b"again", tmp_path), "it was not whole"
    assert read(objects, b"again") == b"again"


def test_saving_and_removing_one_content_take_turns(objects, monkeypatch, tmp_path):
    """Who saves while a removal is under way waits for it, and writes afterwards; another content does not wait."""
    put(objects, b"content", tmp_path)
    [listed] = objects.list_files()
    real, savers = obstore.delete, []

    def delete(client, key):
        savers.append(threading.Thread(target=put, args=(objects, b"content", tmp_path)))
        savers[0].start()
        put(objects, b"another", tmp_path)
        savers[0].join(0.5)
        assert savers[0].is_alive()
        real(client, key)

    monkeypatch.setattr(obstore, "delete", delete)
    assert objects.remove(listed)
    savers[0].join()
    assert read(objects, b"content") == b"content"


def test_a_removal_without_an_answer_is_neither_repeated_nor_overtaken(objects, gate, tmp_path, monkeypatch):
    """It could be carried out after a save that had an answer: that content is saved when it is too late for it."""
    put(objects, b"content", tmp_path)
    [listed] = objects.list_files()
    gate.way = "late"
    gate.asked.clear()
    with pytest.raises(StorageUnreachable):
        objects.remove(listed)
    assert gate.asked["removal"] == 1
    gate.way = "open"
    with pytest.raises(StorageUnreachable, match="has not said whether it removed this file"):
        put(objects, b"content", tmp_path)
    assert put(objects, b"another", tmp_path)
    monkeypatch.setattr(object_storage, "_LATE_S", 0.0)
    assert put(objects, b"content", tmp_path)
    assert read(objects, b"content") == b"content"


async def test_a_store_that_lies_is_noticed(objects, gate, tmp_path):
    """A body that breaks off is tried again, a short one is damaged; a wrong one is never taken for the content by a check or an export."""
    store = AttachmentStore(tmp_path / "home", storage=objects)
    content = os.urandom(100_000)
    kept = await store.save("a", "", content)
    gate.way = "broken"
    with pytest.raises(StorageUnreachable):
        await store.read(kept, max_bytes=100_000)
    gate.way = "short"
    with pytest.raises(AttachmentDamaged):
        await store.read(kept, max_bytes=100_000)
    gate.way = "wrong"
    with pytest.raises(Damaged):
        list(read_pieces(objects, kept.path, kept.size_bytes))
    gate.way = "open"
    assert b"".join(read_pieces(objects, kept.path, kept.size_bytes)) == content
    obstore.put(objects._client(), kept.path, b"short")
    with pytest.raises(AttachmentDamaged):
        await store.read(kept, max_bytes=10)


async def test_nobody_else_waits_for_a_store_that_hangs(objects, gate, tmp_path):
    """The event loop turns, and threads of others are free, while every thread for the store hangs."""
    store = AttachmentStore(tmp_path / "home", storage=objects)
    kept = await store.save("a", "", b"first")
    gate.way = "stuck"
    failed = []

    async def one():
        with pytest.raises(StorageUnreachable):
            await store.read(kept, max_bytes=10)
        failed.append(1)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(one)
            await anyio.sleep(0.1)
            await anyio.to_thread.run_sync(lambda: None)
            assert len(failed) < 20
            gate.way = "away"
    assert len(failed) == 20


def test_a_bucket_that_does_not_exist_is_no_missing_file(object_server, tmp_path):
    """A wrong name of the bucket says so; it does not say that files are gone."""
    wrong = ObjectFiles("no-such-bucket", "", options={"endpoint": object_server.url, **KEYS}, limit_s=3)
    for call in (
        lambda: read(wrong, b"x"),
        lambda: put(wrong, b"x", tmp_path),
        lambda: wrong.find(path_of(b"x")),
        lambda: list(wrong.list_files()),
        lambda: wrong.owner("a"),
        wrong.probe,
        wrong.prepare,
    ):
        with pytest.raises(StorageUnreachable, match=r"does not exist.*correct attachments\.store"):
            call()


def test_a_probe_that_was_cut_off_is_removed_later(objects, gate):
    """After a day; the control is young, and may be somebody's who looks just now."""
    for name in ("old", "young"):
        obstore.put(objects._client(), f"attachments/probe/{name}", b"x")
    gate.aged.add("probe/old")
    objects.prepare()
    left = [one["path"] for page in obstore.list(objects._client(), "attachments/probe") for one in page]
    assert left == ["attachments/probe/young"]
