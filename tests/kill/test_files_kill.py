"""Files under SIGKILL: every change is made once, none is lost, and all can be listed and undone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.tools.files.journaled_files import ChangeAuthor
from tests.file_tools_world import FileDesk
from tests.kill.files_child import STEPS, script

pytestmark = pytest.mark.kill
KILLS = max(60, min(300, int(os.environ.get("SQUIDBOT_KILLS", "60"))))
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lives():
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kill.files_child"],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def live(home, seed, **told):
        process.stdin.write(json.dumps({"home": str(home), "seed": seed, **told}) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield live
    process.stdin.close()
    process.wait()
    process.stdout.close()


def _files(home):
    ws = home / "workspace"
    return {str(path.relative_to(ws)): path.read_text() for path in ws.rglob("*") if path.is_file()}


def _expected(calls):
    """What the files hold when every call was made once. A model of its own, not the code that is tested."""
    files = {}
    for name, told in calls:
        match name:
            case "write_file":
                files[told["path"]] = told["content"]
            case "edit_file":
                files[told["path"]] = files[told["path"]].replace("END", "+END")
            case "move_file":
                files[told["to"]] = files.pop(told["path"])
            case "delete_file":
                del files[told["path"]]
    return files


def _problems(home, seed):
    """What is not as if nobody had been killed."""
    calls, found = script(seed), []
    if _files(home) != _expected(calls):
        found.append(f"files {_files(home)} instead of {_expected(calls)}")
    noted = [json.loads(line) for line in (home / "journal").read_text().splitlines()]
    results = [line for line in noted if "result" in line]
    found += [line["result"] for line in results if line["error"]]
    if len(results) != STEPS:
        found.append(f"{len(results)} results")
    desk = FileDesk(home)
    changes = [desk.journaled.finish_change(change) for change in desk.journaled.journal.changes()]
    if [change.kind for change in reversed(changes)] != [name.removesuffix("_file") for name, _ in calls]:
        found.append(f"listed: {[change.kind for change in reversed(changes)]}")
    if not found:
        for number, change in enumerate(changes, 1):
            desk.journaled.undo(change.id, by=ChangeAuthor())
            if _files(home) != _expected(calls[:-number]):
                found.append(f"undo of {change.id}")
    return found


def _moments(lives, home, seed):
    """Every moment that this turn passes, with how often."""
    trace = home.parent / "trace"
    assert lives(home, seed, trace=str(trace)) == 0
    return trace.read_text().split()


@pytest.mark.timeout(600)
def test_every_change_is_made_once_whenever_the_process_is_killed(lives, tmp_path):
    """Seeded turns, each killed at a named moment, some of them twice, and taken up again."""
    moments = _moments(lives, tmp_path / "trace-home", 0)
    assert {"rename.before", "rename.after", "fsync.before", "unlink.after", "write.after"} <= set(moments)
    chance, struck, cases = random.Random(20261122), 0, 0
    while struck < KILLS:
        seed, home = cases, tmp_path / f"home{cases}"
        cases += 1
        where = f"{chance.choice(moments)}#{chance.randint(1, 40)}"
        codes = [lives(home, seed, where=where)]
        if chance.random() < 0.4:
            codes.append(lives(home, seed, where=f"{chance.choice(moments)}#{chance.randint(1, 6)}"))
        assert all(code in (0, -signal.SIGKILL) for code in codes), (where, codes)
        struck += codes.count(-signal.SIGKILL)
        assert lives(home, seed) == 0
        assert _problems(home, seed) == [], (seed, where)
        assert cases < 10 * KILLS


@pytest.mark.timeout(1200)
def test_a_call_that_has_no_name_is_seen_to_happen_twice(lives, tmp_path):
    """The negative control: tools that do not find their own change again make it a second time, or fail."""
    chance, found = random.Random(7), []
    for seed in range(25):
        home = tmp_path / f"home{seed}"
        where = f"rename.after#{chance.randint(1, 12)}"
        lives(home, seed, where=where, defect="nameless")
        assert lives(home, seed, defect="nameless") == 0
        found += _problems(home, seed)
    assert found
