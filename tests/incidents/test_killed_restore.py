"""
A restore was killed half-way. The home had no database, and the daemon began an empty one and was "ready".

The restore is killed before each of its renames in turn. After each kill the home is either as it was before,
or no daemon starts on it and the message names the command that finishes the restore.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from gateway.cli.check.all_checks import check_data
from gateway.errors import AlreadyRunning
from gateway.operations.backup.restore import finish_restore, restore
from gateway.system.home import Home
from gateway.system.lock import hold_home
from gateway.system.restore_marker import RestoreMarker
from tests.backup_world import NOW
from tests.command_fork import run_command
from tests.home_world import ALICE, fill, tree

pytestmark = [pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[2]
# One process forks a child per kill point; the child is killed when it is about to rename for the n-th time.
KILLS = """
import os, shutil, sys
from datetime import UTC, datetime
from pathlib import Path
from gateway.operations.backup.restore import restore, finish_restore
backup, folder, like, options = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), eval(sys.argv[4])
folder.mkdir()
left = 0
def hook(event, _):
    global left
    if event in ("os.rename", "os.rmdir"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
for point in range(100) if sys.argv[5] == "all" else [int(sys.argv[5])]:
    root = folder / str(point)
    shutil.copytree(like, root)
    if (child := os.fork()) == 0:
        left = point
        sys.addaudithook(hook)
        if options.pop("finish", False):
            finish_restore(root)
        else:
            restore(backup, root, now=datetime.now(UTC), **options)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(status)
    if status == 0:
        break
"""


def kill_each(backup, roots, *, like, **options):
    """Restore into copies of a home, killed at the copy's number; returns how many were killed before one ended."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(backup), str(roots), str(like), repr(options), "all"],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    *killed, last = map(int, done.stdout.split())
    assert (set(killed), last) == ({signal.SIGKILL}, 0)
    return len(killed)


def kill_at(point, backup, folder, *, like, **options):
    """Restore into a copy of a home, killed at this rename; returns the copy."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(backup), str(folder), str(like), repr(options), str(point)],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert int(done.stdout) == signal.SIGKILL
    assert is_refused(folder / str(point))
    return folder / str(point)


def squidbot(*arguments):
    return run_command(*map(str, arguments), env=os.environ)


def is_refused(root):
    """Whether nobody may work on this home, told with the command that finishes it."""
    try:
        with hold_home(Home(root)):
            return False
    except RestoreMarker as error:
        assert error.exit_code == 78
        assert f"squidbot restore --finish --home {root}" in str(error)
        return True


def filled(root):
    return anyio.run(fill, root).home.root


@pytest.fixture
def backup(tmp_path):
    """A backup of one home, and what it holds of sessions and memory."""
    home = filled(tmp_path / "original")
    file = tmp_path / "b.tar.gz"
    assert squidbot("backup", file, "--with-secrets", "--home", home).returncode == 0
    return file, {
        name: data for name, data in tree(home).items() if name.startswith(("sessions/", "memory/"))
    }


@pytest.fixture
def other(tmp_path):
    """A home with content of its own."""
    root = tmp_path / "other"
    shutil.copytree(tmp_path / "original", root)
    (root / "workspace" / "mine.txt").write_text("only here")
    (root / "sessions" / f"{ALICE.file_name}.jsonl").write_bytes(b"")
    return root


@pytest.mark.parametrize("content", [True, False], ids=["in place of another", "into an empty home"])
def test_killed_at_every_rename(backup, other, tmp_path, content):
    """Untouched, or refused until the restore is finished; then it is whole, and what was there is put aside."""
    file, wanted = backup
    roots, empty = tmp_path / "homes", tmp_path / "empty"
    empty.mkdir()
    kills = kill_each(file, roots, like=other if content else empty, replace=content, moved=True)
    assert kills >= (15 if content else 8), "it renames less than was thought: is the kill still effective?"
    refused = 0
    for point in range(kills):
        root = roots / str(point)
        if is_refused(root):
            refused += 1
            finish_restore(root)
        elif not refused and content:
            assert (root / "gateway.db").exists(), point
            assert (root / "workspace" / "mine.txt").read_text() == "only here"
            continue
        elif not refused:
            restore(file, root, now=NOW, moved=True)  # nothing was changed: it can be done again
        assert not is_refused(root)
        assert wanted.items() <= tree(root).items(), point
        report = check_data(Home(root), root / "squidbot.yaml")
        assert report.exit_code == 0, (point, report.as_text())
        if content:
            (aside,) = root.glob("before-restore-*")
            assert (aside / "workspace" / "mine.txt").read_text() == "only here"
            assert (aside / "gateway.db").exists()
    assert refused >= kills - 8, "the last ones are folders that are emptied when all is done"


def test_killed_while_it_is_finished(backup, other, tmp_path):
    """What finishes a restore may be killed as well, at each of its renames."""
    file, wanted = backup
    roots = tmp_path / "homes"
    # in the middle of putting aside
    broken_off = kill_at(6, file, tmp_path / "once", like=other, replace=True, moved=True)
    kills = kill_each(file, roots, like=broken_off, finish=True)
    assert kills > 5
    for point in range(kills):
        root = roots / str(point)
        if is_refused(root):
            finish_restore(root)
        assert wanted.items() <= tree(root).items(), point
        (aside,) = root.glob("before-restore-*")
        assert (aside / "workspace" / "mine.txt").read_text() == "only here"


def test_what_the_commands_say(backup, other, tmp_path):
    """`run` and every command that would work on the home refuse; `check` tells it; one command finishes it."""
    file, wanted = backup
    root = kill_at(8, file, tmp_path / "homes", like=other, replace=True, moved=True)
    finish = f"squidbot restore --finish --home {root}"
    for command in (
        ("run",), ("status",), ("chat",), ("forget", "@a:b.c", "--yes"), ("backup", tmp_path / "x.tar.gz"),
    ):  # fmt: skip
        done = squidbot(*command, "--home", root)
        assert done.returncode == 78, (command, done.stderr)
        assert finish in done.stderr, (command, done.stderr)
    checked = squidbot("check", "--data", "--home", root)
    assert checked.returncode != 0
    assert finish in checked.stdout + checked.stderr
    done = squidbot("restore", "--finish", "--home", root)
    assert done.returncode == 0, done.stderr
    assert "before-restore-" in done.stdout
    assert wanted.items() <= tree(root).items()
    again = squidbot("restore", "--finish", "--home", root)
    assert (again.returncode, "nothing" in again.stderr) == (1, True)


def test_the_same_once_more_finishes_it(backup, tmp_path):
    """Whoever types the same command again needs no other word, also into a home that was empty."""
    file, wanted = backup
    empty = tmp_path / "empty"
    empty.mkdir()
    root = kill_at(5, file, tmp_path / "homes", like=empty, moved=True)
    done = restore(file, root, now=NOW, moved=True)
    assert done is not None
    assert done.put_aside is None
    assert wanted.items() <= tree(root).items()


@pytest.fixture
def broken_off(backup, other, tmp_path):
    """A home into which a restore was broken off."""
    return kill_at(7, backup[0], tmp_path / "homes", like=other, replace=True, moved=True)


def test_two_at_once(broken_off):
    """While the home is held nobody finishes anything."""
    with hold_home(Home(broken_off), while_unfinished=True), pytest.raises(AlreadyRunning):
        finish_restore(broken_off)


def test_what_was_unpacked_is_gone(broken_off):
    """Then nothing is called finished."""
    shutil.rmtree(next(path for path in broken_off.glob(".restore-*") if path.is_dir()))
    with pytest.raises(RestoreMarker, match="gone"):
        finish_restore(broken_off)
    assert is_refused(broken_off)


def test_a_note_that_leads_elsewhere(broken_off):
    """The note is not believed: root may be the one who finishes it."""
    note = broken_off / ".restore-unfinished.json"
    sound = json.loads(note.read_text())
    for change in (
        {"stage": "../elsewhere"}, {"aside": "/tmp"}, {"put_aside": ["../x"]}, {"brings": ["a/b"]}, {"stage": 5},
    ):  # fmt: skip
        note.write_text(json.dumps({**sound, **change}))
        before = tree(broken_off)
        with pytest.raises(RestoreMarker, match="cannot be used"):
            finish_restore(broken_off)
        assert tree(broken_off) == before, change
    note.write_text(json.dumps(sound))
    finish_restore(broken_off)
