"""`squidbot forget`, broken off at any of its steps: the same command does the rest, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_core.storage.layout import Layout
from gateway.operations.privacy.person_erasure import forget_person
from tests.home_world import BOB, ROOM
from tests.integration.test_person_data import CANARIES, NOW, bob, holding, planted

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
async def home(tmp_path):
    return await planted(tmp_path / "home")


@contextmanager
def folder_in_the_way(path):
    """A folder where a file is to be written, read or removed stops the one who does it."""
    aside = path.with_name(f"{path.name}.aside")
    if path.exists():
        path.rename(aside)
    (path / "x").mkdir(parents=True)
    yield
    (path / "x").rmdir()
    path.rmdir()
    if aside.exists():
        aside.rename(path)


def places(root):
    """Where each later step can be stopped."""
    return {
        "the room's history": root / "sessions" / f"{ROOM.file_name}.jsonl.forgetting",
        "the summary of a conversation of his": root / "sessions" / f"{BOB.file_name}.meta.json.x",
        "the room's summary": root / "sessions" / f"{ROOM.file_name}.meta.json.tmp",
        "memory documents": root / "memory" / "AAA" / "MEMORY.history.jsonl",
        "the index": root / "search.db-journal",
    }


@pytest.mark.parametrize("step", places(Path()))
async def test_the_same_command_does_the_rest(home, step):
    """Wherever it was stopped: not a byte of the person is left after the second try, nor a note of what to do."""
    root = home.home.root
    layout = Layout(root, root / "workspace")
    with folder_in_the_way(places(root)[step]), pytest.raises(OSError):
        forget_person(layout, home.home.database, bob(), now=NOW)
    assert holding(root, ["@bob:hs.test"]), "what is to be done stands somewhere"
    forget_person(layout, home.home.database, bob(), now=NOW)
    assert holding(root, CANARIES) == []
    assert not list((root / "state").glob("forgetting-*"))
    assert not list((root / "memory").glob(f"{BOB.file_name}*"))
    assert holding(root, ["I like tea", "hello room", "we meet on friday"])
    again = forget_person(layout, home.home.database, bob(), now=NOW)
    assert sum(again.counts.values()) == 0


@pytest.mark.parametrize(
    "note",
    [
        "{", "[]", "{}", '{"addresses": ["@bob:hs.test"]}',
        '{"addresses": ["@bob:hs.test"], "turns": [], "attachments": [1], "sessions": {}}',
        '{"addresses": ["@bob:hs.test"], "turns": [], "attachments": [], "sessions": {"x": true}}',
        '{"addresses": ["@bob:hs.test"], "turns": [], "attachments": ["squidbot.yaml", "../x"], "sessions": {}}',
    ],
)  # fmt: skip
async def test_a_note_that_is_none_harms_nobody(home, note):
    """It may be damaged, or come out of a backup that somebody has forged: nothing else is removed because of it."""
    root = home.home.root
    (root / "state" / "forgetting-x.json").write_text(note)
    (root.parent / "x").write_text("outside")
    forget_person(Layout(root, root / "workspace"), home.home.database, bob(), now=NOW)
    assert holding(root, CANARIES) == []
    assert (root / "squidbot.yaml").exists() and (root.parent / "x").exists()


async def test_a_kill_at_any_moment_leaves_nothing_for_good(home, tmp_path):
    """SIGKILL while it works, a little later each time, until one comes to its end; the next one does the rest."""
    root = home.home.root
    script = (
        "import sys; from gateway.cli import main;"
        "sys.argv = ['squidbot', 'forget', '@bob:hs.test', '--yes', '--home', sys.argv[1]]; main()"
    )
    killed = 0
    with subprocess.Popen(["cp", "-r", str(root), str(tmp_path / "kept")]) as copying:
        assert copying.wait(120) == 0
    for writes in range(0, 40, 4):
        if root.exists():
            subprocess.run(["rm", "-r", str(root)], check=True)
        subprocess.run(["cp", "-r", str(tmp_path / "kept"), str(root)], check=True)
        tracer = (
            "import os, sys; n = [int(sys.argv.pop(1))];"
            "hook = lambda event, args: event in ('os.rename', 'os.remove', 'shutil.rmtree', 'os.truncate') and"
            " (n.__setitem__(0, n[0] - 1) or n[0] < 0 and os.kill(os.getpid(), 9));"
            f"sys.addaudithook(hook); {script}"
        )
        done = subprocess.run(
            [sys.executable, "-c", tracer, str(writes), str(root)],
            cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        killed += done.returncode == -signal.SIGKILL
        forget_person(Layout(root, root / "workspace"), home.home.database, bob(), now=NOW)
        assert holding(root, CANARIES) == [], writes
        assert holding(root, ["I like tea", "hello room", "we meet on friday"])
        if done.returncode == 0:
            break
    assert killed > 3
    assert done.returncode == 0, done.stderr
