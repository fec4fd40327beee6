"""
Restores that were killed left half a home; so the other commands that change much were looked at, too.

Making the search index anew and mending: killed before each SQL statement,
each change of a name and each opening of a file for writing. The same once more ends it, and all is whole.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from gateway.cli.check.all_checks import check_data
from gateway.system.home import Home
from tests.home_world import ALICE, fill

pytestmark = [pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[2]
KILLS = """
import os, shutil, sqlite3, sys
from pathlib import Path
import anyio
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from gateway.cli.check.all_checks import check_data
from gateway.system.home import Home
operation, like, folder, step = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
left = 0
def count(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), 9)
NAMES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.copyfile"}
def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if event in NAMES or writes:
        count()
class Counted(sqlite3.Connection):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.set_trace_callback(count)
async def reindex(root):
    index = SearchIndex(root / "search.db", Layout(root, root / "workspace"))
    await index.rebuild()
    await index.aclose()
async def mend(root):
    check_data(Home(root), root / "squidbot.yaml", repair=True)
for point in range(0, 100_000, step):
    root = folder / str(point)
    shutil.copytree(like, root)
    if (child := os.fork()) == 0:
        left = point
        connect = sqlite3.connect
        sqlite3.connect = lambda *args, factory=sqlite3.Connection, **more: connect(
            *args, factory=type("CountedToo", (Counted, factory), {}) if factory is not sqlite3.Connection else Counted,
            **more)
        sys.addaudithook(hook)
        anyio.run(globals()[operation], root)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print("ended", status, flush=True)
    if status == 0:
        break
"""


def killed(operation, like, folder, *, step):
    """Copies of a home, in each of which it was killed a little later, but for the last one."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLS, operation, str(like), str(folder), str(step)],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    *ends, last = (int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("ended "))
    assert (set(ends), last) == ({signal.SIGKILL}, 0), done.stderr
    assert len(ends) > 5, "it changes less than was thought"
    return [folder / str(number * step) for number in range(len(ends) + 1)]


def again(operation, like, root):
    """The same once more, in the same place, to its end."""
    folder = root.with_name(f"{root.name}-again")
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-c", KILLS.replace("left = point", "left = 10**9"), operation, str(root), str(folder), "1"],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    return folder / "0"


def whole(root):
    report = check_data(Home(root), root / "squidbot.yaml")
    assert report.exit_code == 0, report.as_text()


@pytest.fixture
def home(tmp_path):
    return anyio.run(fill, tmp_path / "home").home.root


def test_reindexing(home, tmp_path):
    """The index is a cache: half of one is none, and finds everything once it is followed up."""
    roots = killed("reindex", home, tmp_path / "homes", step=3)
    for root in roots:
        whole(root)
    done = again("reindex", home, roots[len(roots) // 2])
    with closing(sqlite3.connect(done / "search.db")) as db:
        assert db.execute("SELECT COUNT(*) FROM lines").fetchone()[0] > 2


def test_mending(home, tmp_path):
    """At each point; no byte that could not be read is lost."""
    history = home / "sessions" / f"{ALICE.file_name}.jsonl"
    history.write_bytes(b"DAMAGE-1 {\n" + history.read_bytes())
    next((home / "attachments").rglob("*.txt")).write_bytes(b"DAMAGE-2")
    roots = killed("mend", home, tmp_path / "homes", step=2)
    for root in roots:
        check_data(Home(root), root / "squidbot.yaml", repair=True)
        whole(root)
        everything = b"\0".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
        assert b"DAMAGE-1" in everything and b"DAMAGE-2" in everything, root.name
