"""Processes that talk in one conversation and consolidate it at the same time: no message is lost or doubled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import anyio

from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.doubles.consolidation import S

REPOSITORY = Path(__file__).parents[4]
TURNS = 60
CHILD = """
import sys
from pathlib import Path
import anyio
from agent_core.models import Message
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.doubles.consolidation import S, TokenKeeper, manager_of

home, first, turns = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
memory = JsonlMemory(home, clock=ManualClock())

async def main():
    for number in range(first, first + 2 * turns, 2):
        await memory.append_message(
            S,
            Message(role="user", content=f"m{number}", id=str(number), turn=str(number)),
            Message(role="assistant", content=f"m{number + 1}", id=str(number + 1), turn=str(number)),
        )
        if number % 3 == 0:
            await manager_of(memory, TokenKeeper(), threshold=4, ratio=0.5).consolidate_if_due(S)

anyio.run(main)
"""


def test_three_processes_that_talk_and_consolidate_lose_and_double_nothing(tmp_path: Path) -> None:
    """Each line has a position of its own, and each message is in the summary once or behind the cursor."""
    firsts = (1000, 2000, 3000)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(first), str(TURNS)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.DEVNULL,
        )
        for first in firsts
    ]
    assert [child.wait(80) for child in children] == [0, 0, 0]

    tail = anyio.run(JsonlMemory(tmp_path, clock=ManualClock()).load_history, S)
    there = re.findall(r"\bm\d+\b", tail.summary or "") + [message.content for message in tail.messages]
    said = [f"m{number}" for first in firsts for number in range(first, first + 2 * TURNS)]
    assert sorted(there) == sorted(said)
    assert tail.cursor > TURNS
    (history,) = (tmp_path / "sessions").glob("*.jsonl")
    numbers = [json.loads(line)["n"] for line in history.read_text().splitlines()]
    assert numbers == list(range(len(said)))
