"""The store of attachments: honest kinds, limits, and nothing half written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import stat

import pytest
from pydantic import ValidationError

from agent_core.messages import Attachment
from channels.attachments import (
    AttachmentGone,
    AttachmentsFull,
    AttachmentStore,
    AttachmentsUnavailable,
    AttachmentTooLarge,
)
from gateway.settings import Settings
from tests.doubles.away_folder import AwayFolder, store_over
from tests.pictures import jpeg, png


@pytest.fixture
def store(tmp_path):
    return AttachmentStore(tmp_path)


def files_in(tmp_path):
    return sorted(
        str(path.relative_to(tmp_path)) for path in (tmp_path / "attachments").rglob("*") if path.is_file()
    )


async def pieces(*parts):
    for part in parts:
        yield part


# ── saving ──


async def test_what_is_saved_is_read_back(store, tmp_path):
    """The content in pieces becomes one file under its hash, private, with a safe name beside it."""
    content = os.urandom(700_000)
    kept = await store.save("a/b/notes.TXT", "text/plain; charset=utf-8", pieces(content[:5], content[5:]))
    digest = hashlib.sha256(content).hexdigest()
    assert kept == Attachment(
        name="notes.TXT",
        media_type="text/plain",
        size_bytes=len(content),
        path=f"attachments/{digest[:2]}/{digest}.txt",
        sha256=digest,
    )
    assert store.path(kept).read_bytes() == content
    assert stat.S_IMODE(store.path(kept).stat().st_mode) == 0o600
    assert await store.read(kept, offset=699_990, max_bytes=100) == content[699_990:]
    assert b"".join([block async for block in store.chunks(kept)]) == content
    assert kept.id == digest[:12]


async def test_the_same_content_is_kept_once(store, tmp_path):
    """Saving again changes nothing, whatever it is called, and costs no room."""
    first = await store.save("a.txt", "text/plain", b"same")
    second = await store.save("b.txt", "text/plain", b"same")
    assert first.path == second.path
    assert files_in(tmp_path) == [first.path]


async def test_a_damaged_file_is_replaced(store):
    """A file of the right name and the wrong length is written anew."""
    kept = await store.save("a.txt", "text/plain", b"whole content")
    store.path(kept).write_bytes(b"who")
    await store.save("a.txt", "text/plain", b"whole content")
    assert store.path(kept).read_bytes() == b"whole content"


@pytest.mark.parametrize(
    ("name", "declared", "content", "media_type", "ending"),
    [
        ("evil.png", "image/png", b"<html><script>", "application/octet-stream", ".bin"),
        ("run.exe", "application/x-msdownload", b"MZ\0\0", "application/x-msdownload", ".bin"),
        ("run.sh", "text/x-sh", b"#!/bin/sh", "text/x-sh", ".bin"),
        ("page.html", "text/html", b"<html>", "text/html", ".bin"),
        ("photo.txt", "text/plain", png(), "image/png", ".png"),
        ("photo", "", jpeg(), "image/jpeg", ".jpg"),
        ("table.csv", "", b"a,b", "text/csv", ".csv"),
        ("table.csv", "nonsense\r\nX: y", b"a,b", "text/csv", ".csv"),
        ("x.svg", "image/svg+xml", b"<svg>", "image/svg+xml", ".bin"),
        ("", "", b"", "application/octet-stream", ".bin"),
    ],
)
async def test_the_content_decides_what_a_file_is(store, name, declared, content, media_type, ending):
    """A picture is one by its bytes alone; nothing gets an ending that a system would run."""
    kept = await store.save(name, declared, content)
    assert (kept.media_type, kept.path[kept.path.rindex(".") :]) == (media_type, ending)


async def test_a_file_over_the_limit_is_not_read_to_its_end(store, tmp_path):
    """An endless body is left as soon as the limit is passed, and nothing stays on the disk."""
    given = 0

    async def endless():
        nonlocal given
        while True:
            given += 1
            yield b"x" * 100_000

    with pytest.raises(AttachmentTooLarge) as refused:
        await store.save("big", "", endless(), limit_bytes=1_000_000)
    assert "1 MB" in refused.value.public
    assert given < 20
    assert files_in(tmp_path) == []
    await store.save("fits", "", b"x" * 1_000_000, limit_bytes=1_000_000)


async def test_the_limit_of_the_settings_holds_whatever_a_caller_says(tmp_path):
    """`limit_bytes` can only be narrower."""
    store = AttachmentStore(tmp_path, max_file_bytes=10)
    with pytest.raises(AttachmentTooLarge):
        await store.save("a", "", b"x" * 11, limit_bytes=1000)


async def test_all_files_together_have_a_limit(tmp_path):
    """What does not fit is refused; removed and repeated files do not count."""
    store = AttachmentStore(tmp_path, max_total_bytes=100)
    first = await store.save("a", "", b"a" * 60)
    for _ in range(5):
        with pytest.raises(AttachmentsFull):
            await store.save("b", "", b"b" * 60)
    # Counted anew by the next process.
    store = AttachmentStore(tmp_path, max_total_bytes=100)
    with pytest.raises(AttachmentsFull):
        await store.save("b", "", b"b" * 60)
    await store.save("c", "", b"c" * 40)
    [listed] = [file for file in await store.list_files() if file.path == first.path]
    assert await store.remove([listed]) == 1
    await store.save("b", "", b"b" * 60)


async def test_an_iterator_that_fails_leaves_nothing(store, tmp_path):
    """A wrong hash found at the end, or a lost connection: the exception goes through, the file does not stay."""

    async def broken():
        yield b"x" * 300_000
        raise RuntimeError("wrong hash")

    with pytest.raises(RuntimeError, match="wrong hash"):
        await store.save("a", "", broken())
    assert files_in(tmp_path) == []


@contextlib.contextmanager
def disk_that_takes_only(size):
    """The kernel lets no file of this process grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_takes_no_more_is_temporary_and_leaves_nothing(store, tmp_path):
    """It becomes an error of the channel that is worth another try, told once; the next save works."""
    content, told = os.urandom(400_000), []
    store.on_blocked = told.append
    await store.save("first", "", b"the folders are there")
    assert store.state() == {}
    with disk_that_takes_only(100_000):
        for _ in range(2):
            with pytest.raises(AttachmentsUnavailable) as refused:
                await store.save("a", "", content)
    assert refused.value.temporary
    assert len(files_in(tmp_path)) == 1
    assert told == ["the attachments folder cannot be used: File too large"]
    assert store.state()["attachments"] == f"messages with files wait: {told[0]}"
    await store.save("a", "", content)
    assert store.state() == {}


async def test_a_storage_that_is_away_is_told_once_until_it_is_back(tmp_path):
    """Before, it stood in the status alone. A save that works tells nothing: the control."""
    folder, told = AwayFolder(tmp_path / "shared"), []
    store = store_over(folder, tmp_path / "home")
    store.on_blocked = told.append
    await store.save("a", "", b"one")
    assert told == []
    for times in (1, 2):
        folder.is_unreachable = True
        for content in (b"two", b"three"):
            with pytest.raises(AttachmentsUnavailable):
                await store.save("a", "", content)
        assert len(told) == times
        folder.is_unreachable = False
        await store.save("a", "", b"four")


async def test_leftovers_of_a_crash_are_removed_at_the_first_use(tmp_path):
    """A file that was half written when the process died is gone; finished ones stay."""
    kept = await AttachmentStore(tmp_path).save("a", "", b"done")
    (tmp_path / "attachments/tmp/half").write_bytes(b"x" * 1000)
    await AttachmentStore(tmp_path).save("b", "", b"more")
    assert "attachments/tmp/half" not in files_in(tmp_path)
    assert kept.path in files_in(tmp_path)


# ── reading ──


@pytest.mark.parametrize(
    "path",
    [
        "../squidbot.yaml",
        "attachments/../squidbot.yaml",
        "/etc/passwd",
        "attachments/ab/" + "a" * 64 + ".txt",
        "attachments/aa/" + "a" * 64 + ".txt/x",
        "attachments/aa/" + "a" * 64 + ".txt\n",
        "",
    ],
)
async def test_no_path_leads_out_of_the_folder(store, path):
    """An attachment that was written by somebody else names nothing but attachments."""
    forged = Attachment(name="x", media_type="text/plain", size_bytes=1, path=path)
    with pytest.raises(ValueError, match="not the path"):
        store.path(forged)
    with pytest.raises(AttachmentGone):
        await store.read(forged, max_bytes=10)


async def test_a_link_in_the_place_of_a_file_is_not_followed(store, tmp_path):
    """Reading goes to regular files only."""
    kept = await store.save("a.txt", "text/plain", b"mine")
    (tmp_path / "secret").write_text("not yours")
    store.path(kept).unlink()
    store.path(kept).symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic"):
        await store.read(kept, max_bytes=10)


async def test_pictures_are_given_within_limits(store):
    """The content of a picture; none that is too long, has too many pixels, or is no picture."""
    kept = await store.save("a.png", "image/png", png(30, 20))
    limits = {"max_bytes": 10_000, "max_pixels": 600, "max_side": 30}
    assert await store.picture(kept, **limits) == ("image/png", png(30, 20))
    for narrower in ({"max_pixels": 599}, {"max_bytes": kept.size_bytes - 1}, {"max_side": 29}):
        with pytest.raises(ValueError, match="too large"):
            await store.picture(kept, **limits | narrower)
    text = await store.save("a.txt", "text/plain", b"text")
    lying = text.model_copy(update={"media_type": "image/png"})
    assert await store.picture(lying, **limits) is None


async def test_a_damaged_file_is_as_good_as_gone(store):
    """One that has lost its end is not handed on."""
    kept = await store.save("a.txt", "text/plain", b"whole content")
    store.path(kept).write_bytes(b"who")
    with pytest.raises(AttachmentGone):
        await store.read(kept, max_bytes=100)


# ── copies of local files ──


async def test_a_file_of_a_folder_is_copied_as_it_is_now(store, tmp_path):
    """What was kept does not change with the file."""
    workspace = tmp_path / "workspace"
    (workspace / "deep").mkdir(parents=True)
    (workspace / "deep/plan.md").write_text("first")
    kept = await store.keep_file(workspace, "deep/plan.md", max_bytes=100)
    (workspace / "deep/plan.md").write_text("second")
    assert kept.name == "plan.md"
    assert await store.read(kept, max_bytes=100) == b"first"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../secret", ValueError),
        ("deep/../../secret", ValueError),
        ("/etc/passwd", ValueError),
        ("link", ValueError),
        ("linked/secret", ValueError),
        ("deep", ValueError),
        ("pipe", ValueError),
        ("large", ValueError),
        ("no\0thing", ValueError),
        ("", ValueError),
        ("missing", LookupError),
    ],
)
async def test_nothing_else_is_copied(store, tmp_path, path, error):
    """No way up, no link at any step, no folder, no pipe that would block, nothing too large."""
    workspace = tmp_path / "workspace"
    (workspace / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (workspace / "link").symlink_to(tmp_path / "secret")
    (workspace / "linked").symlink_to(tmp_path)
    (workspace / "large").write_bytes(b"x" * 101)
    os.mkfifo(workspace / "pipe")
    with pytest.raises(error):
        await store.keep_file(workspace, path, max_bytes=100)
    # The same bytes by an honest path are taken.
    (workspace / "honest").write_text("secret")
    assert (await store.keep_file(workspace, "honest", max_bytes=100)).size_bytes == 6


async def test_nothing_is_copied_out_of_the_home_by_another_path(tmp_path):
    """The home folder is known by what it is: a link beside it, or the folder above it, leads nowhere."""
    home = tmp_path / "home"
    (home / "state").mkdir(parents=True)
    (home / "workspace").mkdir()
    (home / "state" / "key").write_text("key")
    (home / "squidbot.yaml").write_text("key")
    (home / "workspace" / "plan").write_text("plan")
    (tmp_path / "alias").symlink_to(home / "state")
    store = AttachmentStore(home)
    for folder, path in (
        (tmp_path, "home/state/key"),
        (tmp_path, "home/squidbot.yaml"),
        (tmp_path, "alias/key"),
    ):
        with pytest.raises(ValueError):
            await store.keep_file(folder, path, max_bytes=100)
    assert (await store.keep_file(home / "workspace", "plan", max_bytes=100)).size_bytes == 4


# ── settings ──


def test_the_settings_have_sound_defaults_and_say_what_cannot_work():
    """25 MB for a file, 2 GB for all, half a year; a total below one file is an error with its place."""
    defaults = Settings().attachments
    assert (defaults.max_file_mb, defaults.max_total_mb, defaults.keep_days) == (25, 2000, 180)
    with pytest.raises(ValidationError, match="not even one file would fit"):
        Settings.model_validate({"attachments": {"max_file_mb": 30, "max_total_mb": 20}})
    with pytest.raises(ValidationError, match="keep_days"):
        Settings.model_validate({"attachments": {"keep_days": 0}})
