"""What is out of reach, what a disk can refuse, and what somebody who interferes gets."""

from __future__ import annotations

import errno
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from agent_core.tools.files import journaled_files
from tests.file_tools_world import FileDesk

CALLS = (
    ("read_file", {}),
    ("write_file", {"content": "x"}),
    ("edit_file", {"old": "key", "new": "x"}),
    ("delete_file", {}),
)


@pytest.fixture
def desk(tmp_path):
    """The folder above the home is a root, so that only what is private is refused."""
    desk = FileDesk(tmp_path / "home", more={tmp_path: True})
    (desk.home / "state" / "matrix").mkdir(parents=True)
    (desk.home / "state" / "matrix" / "key").write_text("key")
    (desk.home / "squidbot.yaml").write_text("key: 1")
    (desk.home / "gateway.db").write_text("key")
    (tmp_path / "free").write_text("key")
    return desk


async def test_the_home_is_out_of_reach_whatever_the_roots_say(desk, tmp_path):
    """Configuration, database, keys: not by their path, a link to them, or a root of their own."""
    (tmp_path / "door").symlink_to(desk.home / "state")
    for path in ("home/squidbot.yaml", "home/gateway.db", "home/state/matrix/key", "door/matrix/key"):
        for name, more in CALLS:
            await desk.refused(name, path=str(tmp_path / path), **more)
    assert await desk.refused("list_files", path=str(desk.home))
    assert (
        "key" not in (await desk.ok("search_files", pattern="key", path=str(tmp_path), glob="**/key")).content
    )
    assert (desk.home / "gateway.db").read_text() == "key"
    await desk.ok("read_file", path=str(tmp_path / "free"))  # the control

    inner = FileDesk(
        desk.home, more={desk.home / "state" / "matrix": True, tmp_path / "door" / "matrix": True}
    )
    for root in (desk.home / "state" / "matrix", tmp_path / "door" / "matrix"):
        assert "kept private" in await inner.refused("read_file", path=str(root / "key"))


async def test_a_further_name_of_a_private_file_does_not_help(desk, tmp_path):
    """Hard links to keys and to the configuration are known by what they are; others can be read only."""
    os.link(desk.home / "state" / "matrix" / "key", desk.ws / "innocent")
    os.link(desk.home / "squidbot.yaml", desk.ws / "settings")
    (desk.ws / "one").write_text("key")
    os.link(desk.ws / "one", desk.ws / "two")

    for path in ("innocent", "settings"):
        for name, more in CALLS:
            assert "kept private" in await desk.refused(name, path=path, **more)
    assert "innocent" not in (await desk.ok("search_files", pattern="key")).content
    await desk.ok("read_file", path="two")
    assert "further names" in await desk.refused("edit_file", path="two", old="key", new="x")


async def test_what_the_prompt_is_built_of_is_not_changed_under_another_name(desk, tmp_path):
    """A root above the workspace, a link as the skills folder, a link as the heartbeat list."""
    (desk.ws / "elsewhere").mkdir()
    (desk.ws / "skills").symlink_to(desk.ws / "elsewhere")
    (desk.ws / "todo").write_text("x")
    (desk.ws / "HEARTBEAT.md").symlink_to(desk.ws / "todo")
    outer = FileDesk(tmp_path / "home", more={tmp_path: True, desk.ws.parent.parent / "alias": True})
    (tmp_path / "alias").symlink_to(desk.ws)

    assert await desk.refused("write_file", path="elsewhere/SKILL.md", content="x")
    assert await desk.refused("write_file", path="todo", content="y")
    assert await outer.refused("write_file", path=str(tmp_path / "alias" / "skills" / "x"), content="x")
    assert await outer.refused("write_file", path=str(tmp_path / "alias" / "free"), content="x")
    await desk.ok("write_file", path="beside/SKILL.md", content="x")


async def test_roots_are_told_apart_by_parts_and_may_be_read_only(tmp_path):
    """``/data`` is not ``/data-evil``; the innermost root counts; `ro` is not written to, nor undone into."""
    for name in ("data/inner", "data-evil"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("text")
    desk = FileDesk(tmp_path / "home", more={tmp_path / "data": False, tmp_path / "data" / "inner": True})

    assert "outside" in await desk.refused("read_file", path=str(tmp_path / "data-evil" / "file"))
    await desk.ok("read_file", path=str(tmp_path / "data" / "inner" / "file"))
    assert "only be read" in await desk.refused("write_file", path=str(tmp_path / "data" / "x"), content="x")
    await desk.ok("edit_file", path=str(tmp_path / "data" / "inner" / "file"), old="text", new="new")
    assert "only be read" in await desk.refused(
        "move_file", path=str(tmp_path / "data" / "inner" / "file"), to=str(tmp_path / "data" / "x")
    )


async def test_pipes_devices_and_links_are_never_opened_for_writing(desk):
    """Nobody waits for a pipe, and what a link points at stays as it is."""
    outside = desk.home.parent / "outside"
    outside.write_text("key")
    os.mkfifo(desk.ws / "pipe")
    (desk.ws / "link").symlink_to(outside)
    (desk.ws / "dangling").symlink_to(desk.home.parent / "new")
    (desk.ws / "folder").mkdir()
    for path in ("pipe", "link", "dangling", "folder"):
        for name, more in CALLS:
            await desk.refused(name, path=path, **more)
    assert outside.read_text() == "key"
    assert not (desk.home.parent / "new").exists()


async def test_whoever_exchanges_files_for_links_meanwhile_changes_nothing_outside(desk, tmp_path):
    """A file, a symbolic and a hard link to a file outside are swapped without pause while it is edited."""
    outside = tmp_path / "outside"
    outside.write_text("a")
    (desk.ws / "soft").symlink_to(outside)
    os.link(outside, desk.ws / "hard")
    (desk.ws / "file").write_text("a")
    code = """
import os, sys
os.chdir(sys.argv[1])
while True:
    for other in ("soft", "hard"):
        try:
            os.rename("file", "aside"); os.rename(other, "file")
            os.rename("file", other); os.rename("aside", "file")
        except OSError:
            pass
        for a, b in (("aside", "file"),):
            if os.path.lexists(a) and not os.path.lexists(b):
                os.rename(a, b)
"""
    swapper = subprocess.Popen([sys.executable, "-c", code, str(desk.ws)])
    try:
        done = 0
        for number in range(120):
            result = (
                await desk("edit_file", path="file", old="a", new="b")
                if number % 2
                else await desk("edit_file", path="file", old="b", new="a")
            )
            done += not result.is_error
    finally:
        swapper.send_signal(signal.SIGKILL)
        swapper.wait()
    assert outside.read_text() == "a"
    # The control: without anybody who interferes the same edits are made.
    calm = FileDesk(tmp_path / "calm")
    (calm.ws / "file").write_text("a")
    await calm.ok("edit_file", path="file", old="a", new="b")


async def test_a_folder_that_becomes_a_link_on_the_way_leads_nowhere(desk, tmp_path):
    """The parent of a file is swapped for a link to a folder outside: nothing appears there."""
    for folder in (tmp_path / "trap", desk.ws / "sub"):
        folder.mkdir()
        for number in range(60):
            (folder / str(number)).write_text("a")
    (desk.ws / "link").symlink_to(tmp_path / "trap")
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            os.rename(desk.ws / "sub", desk.ws / "aside")
            os.rename(desk.ws / "link", desk.ws / "sub")
            os.rename(desk.ws / "sub", desk.ws / "link")
            os.rename(desk.ws / "aside", desk.ws / "sub")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        results = [await desk("edit_file", path=f"sub/{number}", old="a", new="b") for number in range(60)]
    finally:
        stop.set()
        thread.join()
    assert {file.read_text() for file in (tmp_path / "trap").iterdir()} == {"a"}
    assert len(list((tmp_path / "trap").iterdir())) == 60
    changed = [file for file in (desk.ws / "sub").iterdir() if file.read_text() == "b"]
    assert len(changed) == sum(not result.is_error for result in results)


@pytest.mark.parametrize("moment", ["version", "content"])
async def test_a_full_disk_is_a_plain_sentence_and_changes_nothing(desk, moment):
    """The limit of a file's size stands for the full disk: file and history stay whole, and later it works."""
    await desk.ok("write_file", path="a", content="small")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if moment == "version":
        (desk.ws / "a").write_text("y" * 200_000)
        await desk.ok("read_file", path="a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        told = await desk.refused("write_file", path="a", content="z" * 150_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert "nothing was changed" in told
    assert (desk.ws / "a").read_text() == ("y" * 200_000 if moment == "version" else "small")
    assert [path.name for path in desk.ws.iterdir()] == ["a"]
    assert len(desk.journaled.journal.changes()) == 1
    await desk.ok("write_file", path="a", content="z" * 150_000)


async def test_a_workspace_that_cannot_be_written_to_says_so(desk, monkeypatch):
    """Read-only disk, quota: a sentence each, by the errors that the system gives."""
    real = os.open
    for number, said in ((30, "the disk is read-only"), (122, "the disk is full"), (28, "the disk is full")):

        def refuse(path, flags, *rest, number=number, **named):
            if flags & os.O_CREAT and str(path).startswith(".squidbot-"):
                raise OSError(number, "refused")
            return real(path, flags, *rest, **named)

        monkeypatch.setattr(journaled_files.os, "open", refuse)
        assert said in await desk.refused("write_file", path="a", content="x")
        monkeypatch.undo()
    await desk.ok("write_file", path="a", content="x")


@pytest.mark.slow
async def test_a_hundred_thousand_files_are_listed_and_searched(tmp_path):
    """Listing shows a bounded part and says how many there are; searching ends, whole or with a note."""
    desk = FileDesk(tmp_path / "home")
    folder = desk.ws / "many"
    folder.mkdir()
    (folder / "000000").write_text("needle")
    for number in range(1, 100_000):
        os.link(folder / "000000", folder / f"{number:06}") if number % 50_000 == 0 else os.symlink(
            "x", folder / f"{number:06}"
        )
    os.unlink(folder / "050000")

    told = (await desk.ok("list_files", path="many")).content
    found = (await desk.ok("search_files", pattern="needle", path="many")).content

    assert "more; use search_files" in told
    assert len(told) < 16_000
    assert "many/000000:1: needle" in found or "took too long and was stopped" in found
    shutil.rmtree(folder)


async def test_handles_are_given_back(desk):
    """Nothing stays open after a hundred calls of every kind."""
    await desk.ok("write_file", path="a", content="0")
    await desk("search_files", glob="*")
    gc.collect()  # what earlier tests have left open is closed now, and not in between
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        await desk("read_file", path="a")
        await desk("write_file", path="a", content=str(number + 1))
        await desk("move_file", path="a", to="b")
        await desk("move_file", path="b", to="a")
        await desk("write_file", path="none/../x", content="")
        await desk("delete_file", path="none")
    await desk("search_files", glob="*")
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_move_to_another_disk_that_fails_at_its_end_leaves_no_copy(desk, monkeypatch):
    """It is told that nothing was changed, and a receipt says so: then nothing must be."""
    (desk.ws / "a.md").write_text("x")
    rename, unlink, begun = os.rename, os.unlink, []

    def other_disk(source, target, **where):
        if not str(source).startswith(".squidbot-"):
            raise OSError(errno.EXDEV, "other disk")
        rename(source, target, **where)

    def refusing(name, **where):
        if name == "a.md":
            begun.append(name)
            raise OSError(errno.EACCES, "no")
        unlink(name, **where)

    monkeypatch.setattr(journaled_files.os, "rename", other_disk)
    monkeypatch.setattr(journaled_files.os, "unlink", refusing)
    assert "nothing was changed" in await desk.refused("move_file", path="a.md", to="b.md")
    assert begun
    assert [path.name for path in desk.ws.iterdir()] == ["a.md"]
