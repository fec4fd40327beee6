"""
SIGKILL while the search index is filled, follows a history that was rewritten, or is rebuilt.

The child is killed at one of its statements on the index, or at the removal of one of its files. Afterwards a
search finds what is there or says that it is still filling, never that there is nothing; what was erased from
the history is not found, and once the index has caught up no file of it has the words.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from agent_core.memory_ports import SearchRequest
from agent_core.storage.search_index import search_index as index_module
from agent_core.storage.search_index.indexed_files import Budget
from agent_core.storage.search_index.search_index import SearchIndex
from tests.search_house import BOB, OWNER, Harness

REPOSITORY = Path(__file__).parents[2]
LINES = 230
SECRET = "quicksilver"
KILLS = 8  # of each kind, evenly over its statements
CHILD = """
import os, signal, sqlite3, sys
from pathlib import Path
import anyio
from agent_core.messages import SessionKey
from agent_core.storage.search_index import index_rows as rows
from tests.search_house import BOB, A, B, Harness

home, kind, die_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
seen = 0
counting = False


def step(*_):
    global seen
    seen += counting
    if counting and seen == die_at:
        os.kill(os.getpid(), signal.SIGKILL)


def hook(event, args):
    if event == "os.remove" and "search.db" in str(args[0]):
        step()


connect = sqlite3.connect
def traced(*arguments, **named):
    db = connect(*arguments, **named)
    db.set_trace_callback(step)
    return db
rows.sqlite3.connect = traced
sys.addaudithook(hook)


async def main():
    global counting
    house = Harness(home)
    for number in range(LINES):
        await house.say(A, f"tea of number{number}" + " is quicksilver" * (number == 50))
        await house.say(B, "tea of bob", scope=BOB)
    if kind != "fill":
        await house.index.update_all()
    if kind == "erase":
        path = house.memory.layout.history(SessionKey.parse(A))
        making = path.with_suffix(".new")
        making.write_bytes(path.read_bytes().replace(b" is quicksilver", b""))
        making.replace(path)
    counting = True
    await (house.index.rebuild() if kind == "rebuild" else house.index.update_all())
    print(seen)


anyio.run(main)
""".replace("LINES", str(LINES))


def child(home: Path, kind: str, die_at: int = 0) -> subprocess.CompletedProcess[str]:
    home.mkdir()
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(home), kind, str(die_at)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )


async def faults_after(home: Path, kind: str) -> list[str]:
    """What a search says wrongly after a death, before and after the index has caught up."""
    house = Harness(home)
    faults: list[str] = []
    for caught_up in (False, True):
        if caught_up:
            await house.index.update_all()
        for number in (0, 50, 120, LINES - 1):
            answer = await house.index.search(SearchRequest(OWNER, f"number{number}"))
            if not answer.hits and (answer.complete or caught_up):
                faults.append(f"{number} is said not to be there")
        if not caught_up and kind == "erase" and await house.found(SECRET):
            faults.append("what was erased is found")
        if await house.found("bob", OWNER) or (caught_up and await house.found("bob", BOB) == []):
            faults.append("the words of somebody else")
    await house.index.aclose()
    if kind == "erase":
        faults += [
            f"{path.name} has it" for path in home.glob("search.db*") if SECRET.encode() in path.read_bytes()
        ]
    return faults


@pytest.fixture
def little_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little that most of a history is found in the index alone."""
    monkeypatch.setattr(index_module, "Budget", partial(Budget, 3_000, 3_000))


@pytest.mark.usefixtures("little_is_scanned")
@pytest.mark.parametrize("kind", ["fill", "erase", "rebuild"])
async def test_a_death_never_makes_a_search_say_something_wrong(tmp_path: Path, kind: str) -> None:
    """At any statement; the last one that is counted is the end of it."""
    whole = child(tmp_path / "whole", kind)
    assert whole.returncode == 0, whole.stderr
    steps = json.loads(whole.stdout.splitlines()[-1])
    assert await faults_after(tmp_path / "whole", kind) == []
    wrong = {}
    for number in range(KILLS):
        at = 1 + number * (steps - 1) // (KILLS - 1)
        home = tmp_path / str(at)
        assert child(home, kind, at).returncode == -signal.SIGKILL
        if faults := await faults_after(home, kind):
            wrong[at] = faults
    assert wrong == {}


@pytest.mark.usefixtures("little_is_scanned")
async def test_the_kills_catch_an_index_that_calls_itself_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: one that takes its file for the whole of the histories."""
    monkeypatch.setattr(SearchIndex, "_unread", lambda *_: [])
    assert child(tmp_path / "killed", "fill", 5).returncode == -signal.SIGKILL
    assert await faults_after(tmp_path / "killed", "fill") != []
