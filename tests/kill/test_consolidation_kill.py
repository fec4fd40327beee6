"""
SIGKILL while a conversation is consolidated: at every file operation of a visit, and between answer and record.

The child consolidates a conversation and is killed just before its nth operation on a file below ``sessions`` or
``memory`` (an audit hook sees them all, renames included). A second child then finishes the work. Afterwards
each message is in the summary once, or after the cursor, and the history is byte for byte what it was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MESSAGES = 24
CHILD = """
import json, os, signal, sys
from pathlib import Path
import anyio
from agent_core.memory.manager import MemoryManager
from agent_core.models import Message
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.doubles.consolidation import TokenKeeper

S = "matrix/!room%3ahs.test"
home, mode, die_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
memory = JsonlMemory(home, clock=ManualClock())


class TwoSteps(MemoryManager):
    async def _save(self, session_id, segment, summary):
        await self._storage.save_session_summary(session_id, summary)
        await self._storage.save_consolidated_cursor(session_id, segment.end)


seen = []
def hook(event, args):
    if event not in ("open", "os.rename", "os.remove", "os.mkdir"):
        return
    path = str(args[0])
    if "/sessions" not in path and "/memory/" not in path:
        return
    seen.append(f"{event} {Path(path).name}")
    if len(seen) == die_at:
        os.kill(os.getpid(), signal.SIGKILL)


async def main():
    if mode == "talk":
        for number in range(int(sys.argv[3])):
            role = "user" if number % 2 == 0 else "assistant"
            await memory.append_message(S, Message(role=role, content=f"m{number}", id=str(number), turn=str(number // 2)))
        await memory.sync_history(S)
        await memory.save_consolidation(S, summary="m0 m1", cursor=2)
        return
    manager = (TwoSteps if mode == "naive" else MemoryManager)(
        memory, llm=TokenKeeper(), consolidation_threshold=10, keep_recent_ratio=0.3
    )
    sys.addaudithook(hook)
    await manager.consolidate_if_due(S)
    print(json.dumps(seen))


anyio.run(main)
"""


def child(home: Path, mode: str, number: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(home), mode, str(number)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def state(home: Path) -> tuple[bytes, dict[str, object]]:
    (history,) = (home / "sessions").glob("*.jsonl")
    (record,) = (home / "sessions").glob("*.meta.json")
    return history.read_bytes(), json.loads(record.read_bytes())


def sound(record: dict[str, object]) -> bool:
    """Exactly what is before the cursor is in the summary, once and in order."""
    return str(record["summary"]).split() == [
        f"m{number}" for number in range(int(str(record["last_consolidated"])))
    ]


def killed_and_finished(tmp_path: Path, mode: str, *, first_only: bool = False) -> list[str]:
    """Kill at every operation in turn; returns at which ones the result was wrong, or the first of them."""
    first = tmp_path / "whole"
    assert child(first, "talk", MESSAGES).returncode == 0
    done = child(first, mode)
    operations = [line for line in done.stdout.splitlines() if line.startswith("[")]
    names: list[str] = json.loads(operations[-1])
    assert state(first)[1]["last_consolidated"] == MESSAGES - 4
    wrong = []
    for number, name in enumerate(names, 1):
        home = tmp_path / str(number)
        child(home, "talk", MESSAGES)
        before, _ = state(home)
        assert child(home, mode, number).returncode == -signal.SIGKILL
        at_death = state(home)[1]
        assert child(home, mode).returncode == 0
        after, record = state(home)
        (copy,) = (home / "memory").glob("*/summary.md")
        good = sound(at_death) and sound(record) and record["last_consolidated"] == MESSAGES - 4
        if not good or after != before or copy.read_text() != record["summary"]:
            wrong.append(f"{number}: {name}")
            if first_only:
                break
    return wrong


def test_a_death_at_any_operation_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Between answer and record, in the middle of the record's rename, between record and readable copy."""
    assert killed_and_finished(tmp_path, "real") == []


def test_the_kills_catch_two_writes(tmp_path: Path) -> None:
    """Negative control: with summary and cursor in two writes some death doubles a segment."""
    assert killed_and_finished(tmp_path, "naive", first_only=True) != []
