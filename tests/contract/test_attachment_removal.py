"""Removing from every storage of attachments while others save the same, over kills: nothing is lost that was saved."""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import obstore
import obstore.exceptions
import pytest

from channels.attachments import StorageUnreachable, object_storage
from tests.contract.attachment_places import any_storage, path_of, put, read, storage_maker  # noqa: F401


def test_what_was_saved_again_is_not_removed(storage, tmp_path):
    """The sweeper removes what it has listed, and not what somebody saved meanwhile."""
    put(storage, b"old", tmp_path)
    [listed] = storage.list_files()
    time.sleep(1.1)  # a store counts seconds
    put(storage, b"old", tmp_path)
    assert not storage.remove(listed)
    assert read(storage, b"old") == b"old"
    [again] = storage.list_files()
    assert storage.remove(again)
    assert not storage.remove(again)
    assert list(storage.list_files()) == []
    assert put(storage, b"old", tmp_path)


def test_saving_and_sweeping_at_once_in_a_folder_lose_nothing(make, tmp_path):
    """Whoever comes first: what was saved again after the sweeper's look is there."""
    saver, sweeper = make("folder"), make("folder")
    saver.prepare()
    put(saver, b"again", tmp_path)
    for _ in range(150):
        [listed] = sweeper.list_files()
        thread = threading.Thread(target=sweeper.remove, args=(listed,))
        thread.start()
        put(saver, b"again", tmp_path)
        thread.join()
        assert read(saver, b"again") == b"again"
    assert list((tmp_path / "one/attachments/tmp").iterdir()) == []


@pytest.mark.parametrize("looks", [True, False])
def test_saving_between_the_sweepers_look_and_its_removal(make, tmp_path, monkeypatch, looks):
    """The one who saves sees that it is being removed, and writes again. The control: without a look it is lost."""
    saver, sweeper = make("s3"), make("s3")
    put(saver, b"again", tmp_path)
    [listed] = sweeper.list_files()
    if not looks:
        monkeypatch.setattr(saver, "_is_being_removed", lambda _: False)
    real, savers = obstore.delete, []

    def delete(store, key):
        if key == listed.path and not savers:
            savers.append(threading.Thread(target=put, args=(saver, b"again", tmp_path)))
            savers[0].start()
            savers[0].join(1.5)
        real(store, key)

    monkeypatch.setattr(obstore, "delete", delete)
    assert sweeper.remove(listed)
    savers[0].join()
    assert (sweeper.find(listed.path) is not None) == looks


@pytest.mark.parametrize("waits", [True, False])
def test_saving_between_the_sweepers_look_and_its_removal_at_home(make, tmp_path, monkeypatch, waits):
    """Two threads of one process. The control: if neither waits for the other it is lost."""
    home = make("home")
    home.prepare()
    put(home, b"again", tmp_path)
    [listed] = home.list_files()
    if not waits:
        home._alone = nullcontext()
    real, savers = Path.unlink, []

    def unlink(path, *args, **more):
        if path.name == Path(listed.path).name and not savers:
            savers.append(threading.Thread(target=put, args=(home, b"again", tmp_path)))
            savers[0].start()
            savers[0].join(0.5)
        real(path, *args, **more)

    monkeypatch.setattr(Path, "unlink", unlink)
    assert home.remove(listed)
    savers[0].join()
    assert (home.find(listed.path) is not None) == waits


class Killed(BaseException):
    """What a kill leaves on the disk is there; nothing that would come afterwards is done."""


def cut_off(sweeper, saver, tmp_path, where, monkeypatch):
    """A removal of what is saved again meanwhile, up to a kill; gives what the sweeper had listed."""
    put(saver, b"again", tmp_path)
    [listed] = sweeper.list_files()
    os.utime(tmp_path / "one" / listed.path)  # a saver's
    real_link, real_lstat = os.link, Path.lstat

    def link(*given):
        if where == "before":
            raise Killed
        real_link(*given)
        raise Killed

    def lstat(path):  # the sweeper has looked before
        found = real_lstat(path)
        if not path.name.endswith(".bin"):
            return found
        return SimpleNamespace(st_mtime=listed.saved_at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", link)
        patched.setattr(Path, "lstat", lstat)
        with pytest.raises(Killed):
            sweeper.remove(listed)
    return listed


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("how", ["read", "find", "stored", "put", "lost"])
def test_a_removal_that_a_kill_has_cut_off_loses_nothing(make, tmp_path, monkeypatch, how, where):
    """Whoever asks first finds it, also after days of cleaning. The control: if nobody puts it back it is lost."""
    listed = cut_off(make("folder"), make("folder"), tmp_path, where, monkeypatch)
    aside = tmp_path / "one/attachments/tmp"
    [left] = aside.iterdir()
    os.utime(left, (1, 1))
    later = make("folder")
    later.prepare()
    if how == "lost":
        monkeypatch.setattr(later, "_put_back", lambda _: False)
        assert (later.find(listed.path) is None) == (where == "before")
        return
    if how == "read":
        assert read(later, b"again") == b"again"
    elif how == "find":
        assert later.find(listed.path) is not None
    elif how == "put":
        put(later, b"again", tmp_path)
    assert [file.path for file in later.list_files()] == [listed.path]
    assert read(later, b"again") == b"again"
    assert list(aside.iterdir()) == []


@pytest.mark.parametrize("where", ["before", "after"])
def test_what_is_erased_does_not_come_back_from_a_removal_that_was_cut_off(
    make, tmp_path, monkeypatch, where
):
    listed = cut_off(make("folder"), make("folder"), tmp_path, where, monkeypatch)
    later = make("folder")
    assert later.erase(listed.path)
    assert list(later.list_files()) == []
    assert not later.erase(listed.path)


@pytest.mark.parametrize("stays", [True, False])
def test_a_removal_that_is_carried_out_later_than_it_is_answered(make, tmp_path, monkeypatch, stays):
    """
    Nobody knows what became of it, so its note stays, and whoever saves the same waits until it does not count any
    more. The control: without the note it is lost.
    """
    saver, sweeper = make("s3"), make("s3")
    put(saver, b"again", tmp_path)
    [listed] = sweeper.list_files()
    real = obstore.delete

    def delete(store, key):
        if key == listed.path:
            raise obstore.exceptions.GenericError("the connection broke")
        real(store, key)

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "delete", delete)
        with pytest.raises(StorageUnreachable):
            sweeper.remove(listed)
    assert saver._is_being_removed(listed.path)
    if not stays:
        obstore.delete(sweeper._store(), sweeper._note(listed.path))
    monkeypatch.setattr(object_storage, "_REMOVING_WAIT_S", 0.3)
    if stays:
        with pytest.raises(StorageUnreachable, match="is removing this file right now"):
            put(saver, b"again", tmp_path)
    else:
        put(saver, b"again", tmp_path)
    obstore.delete(sweeper._store(), listed.path)  # now it comes
    if stays:
        monkeypatch.setattr(object_storage, "_REMOVING_FOR_S", 0.0)
        put(saver, b"again", tmp_path)
    assert (saver.find(listed.path) is not None) == stays


@pytest.mark.parametrize(("way", "tries"), [("away", 1), ("failing", 1), ("busy", 3)])
def test_a_removal_is_repeated_only_if_it_was_not_done(
    object_server, gate, tmp_path, monkeypatch, way, tries
):
    """
    An attempt without an answer could be carried out after a later one. The control: the library repeats it by
    itself.
    """
    monkeypatch.setattr(object_storage, "_DELETE_AGAIN_S", 0.0)
    storage = object_server.storage(tmp_path.name, url=gate.url, limit_s=3)
    gate.way = way
    with pytest.raises(StorageUnreachable):
        storage.unmark("somebody", "a.bin")
    assert gate.asked.total() == tries
    gate.asked.clear()
    with pytest.raises(obstore.exceptions.BaseError):
        obstore.delete(storage._store(), "a.bin")
    assert gate.asked.total() == 3


def test_old_notes_of_removals_are_thrown_away(make, monkeypatch):
    """A young one (the control) is not."""
    one = make("s3")
    obstore.put(one._store(), one._note(path_of(b"x")), b"")
    one.prepare()
    assert one._is_being_removed(path_of(b"x"))
    monkeypatch.setattr(object_storage, "_NOTE_LEFT_AFTER_S", -60.0)
    one.prepare()
    assert not one._is_being_removed(path_of(b"x"))


@pytest.mark.parametrize("looks", [[False], [True, False, False], [True, True, False, False]])
def test_whoever_has_seen_a_note_writes_again_when_it_is_gone(make, tmp_path, monkeypatch, looks):
    """Whichever look sees that it is gone."""
    one, writes, seen = make("s3"), [], list(looks)
    real = one._write
    monkeypatch.setattr(object_storage, "_REMOVAL_CHECK_S", 0.0)
    monkeypatch.setattr(one, "_write", lambda *given: writes.append(1) or real(*given))
    monkeypatch.setattr(one, "_is_being_removed", lambda _: seen.pop(0))
    assert put(one, b"x", tmp_path)
    assert len(writes) == 1 + looks[0]
    assert seen == []
