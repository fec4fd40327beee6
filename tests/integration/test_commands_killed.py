"""Commands that are killed while they write: nothing is lost, nothing half-made is taken for whole, and the next try works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from gateway.cli.check.all_checks import check_data
from gateway.operations.backup.archive import verify_backup
from gateway.operations.backup.create import backup_name
from gateway.operations.backup.restore import restore
from gateway.system.home import Home
from tests.backup_world import NOW
from tests.doubles.killed_writes import KILLED_AT_A_WRITE
from tests.home_world import ALICE, fill, tree

REPOSITORY = Path(__file__).resolve().parents[2]
KILLED = f"""{KILLED_AT_A_WRITE}
from gateway.cli import main
import cyclopts, anyio, pydantic
sys.addaudithook(hook)
sys.argv[0] = "squidbot"
main()
"""


def squidbot(*arguments, kill_at=None):
    """A command in a process of its own; killed when it is about to write for this many times."""
    code = [] if kill_at is None else ["-c", KILLED, str(kill_at)]
    return subprocess.run(
        [sys.executable, *(code or ["-m", "gateway"]), *map(str, arguments)],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


POINTS = (0, 6, 12, 20, 32, 1000)
"""When it is killed, told in writes; the last one is never reached."""


def killed(done, point):
    """Whether it was; if not, it has come to a good end."""
    if done.returncode == -signal.SIGKILL:
        return True
    assert done.returncode == 0, (point, done.stderr)
    return False


def state_of(root, *, repair=False):
    """`check --data` here: its exit code and its words."""
    report = check_data(Home(root), root / "squidbot.yaml", repair=repair)
    return report.exit_code, report.as_text()


@pytest.fixture
def home(tmp_path):
    return anyio.run(fill, tmp_path / "home").home.root


def test_a_backup(home, tmp_path):
    """What has the name of a backup is whole; what was left half-way goes with the next one."""
    folder = tmp_path / "backups"
    folder.mkdir()
    before = {name: data for name, data in tree(home).items() if not name.startswith(("run/", "gateway.db"))}
    done = [
        killed(squidbot("backup", folder / f"{point}.tar.gz", "--home", home, kill_at=point), point)
        for point in POINTS
    ]
    assert (done[0], done[1], done[-1]) == (True, True, False)
    for path in folder.iterdir():
        assert path.name.endswith(".tar.gz"), "nothing half-made stays"
        assert verify_backup(path).files
    assert before.items() <= tree(home).items()
    assert state_of(home)[0] == 0, state_of(home)[1]


def test_what_is_being_written_is_not_swept(home, tmp_path):
    """Only what nobody writes any more, and only what looks like ours."""
    folder = tmp_path / "backups"
    folder.mkdir()
    name = backup_name(NOW, encrypted=False)
    left, written, foreign = (folder / f".{name}.{pid}.part" for pid in (1, 2, "x"))
    for path in (left, written, foreign):
        path.write_text("x")
    os.mkfifo(folder / f".{name}.4.part")  # nobody waits for what could block
    with subprocess.Popen(["flock", str(written), "sleep", "60"]) as holding:
        try:
            while subprocess.run(["flock", "-n", str(written), "true"], check=False).returncode == 0:
                assert holding.poll() is None
            assert squidbot("backup", folder, "--home", home).returncode == 0
        finally:
            holding.kill()
            subprocess.run(["pkill", "-P", str(holding.pid)], check=False)
    assert (left.exists(), written.exists(), foreign.exists()) == (False, True, True)


def test_a_restore(home, tmp_path):
    """The same once more brings it back whole; what was in the home before is all there, put aside."""
    backup = tmp_path / "b.tar.gz"
    assert squidbot("backup", backup, "--with-secrets", "--home", home).returncode == 0
    wanted = {name: data for name, data in tree(home).items() if name.startswith(("sessions/", "memory/"))}
    count = 0
    for point in POINTS:
        root = tmp_path / f"r{point}"
        shutil.copytree(home, root)
        (root / "workspace" / "mine.txt").write_text("only here")
        (root / "sessions" / f"{ALICE.file_name}.jsonl").write_text("changed since\n")
        arguments = ("restore", backup, "--replace", "--moved", "--yes", "--home", root)
        count += killed(squidbot(*arguments, kill_at=point), point)
        restore(backup, root, now=NOW, replace=True, moved=True)
        restore(backup, root, now=NOW, replace=True, moved=True)  # also twice within a second
        assert wanted.items() <= tree(root).items()
        kept = b"\0".join(data for name, data in tree(root).items() if name.startswith("before-restore-"))
        assert b"only here" in kept and b"changed since" in kept
        assert not list(root.glob(".restore-*"))
        assert state_of(root)[0] == 0, state_of(root)[1]
    assert 3 <= count < len(POINTS)


def test_mending(home, tmp_path):
    """`check --data --repair`: every byte that could not be read is kept somewhere, and the next try ends it."""
    history = home / "sessions" / f"{ALICE.file_name}.jsonl"
    lines = history.read_bytes().splitlines(keepends=True)
    history.write_bytes(lines[0] + b"DAMAGE-1 {\n" + b"".join(lines[1:]) + b"DAMAGE-2 \xff\n")
    attachment = next((home / "attachments").rglob("*.txt"))
    attachment.write_bytes(b"DAMAGE-3")
    (home / "search.db").write_bytes(b"DAMAGE-4" * 600)
    assert state_of(home)[0] == 1
    count = 0
    for point in POINTS:
        root = tmp_path / f"m{point}"
        shutil.copytree(home, root)
        count += killed(squidbot("check", "--data", "--repair", "--home", root, kill_at=point), point)
        state_of(root, repair=True)
        assert state_of(root)[0] == 0, state_of(root)[1]
        everything = b"\0".join(tree(root).values())
        for number in (1, 2, 3, 4):
            assert f"DAMAGE-{number}".encode() in everything, number
        assert lines[0] in (root / "sessions" / history.name).read_bytes()
    assert 3 <= count < len(POINTS)
