"""Edits that make a question of what was said to others, over a SIGKILL within each call to the store."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.kill.edits_child import EDITS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200, func_only=True)]
CALLS = 10
"""Those of a life that nothing ends: four batches, three claims, and a claim, an answer and a last look."""


def life(folder: Path, call: int, after_s: float, *defect: str) -> int:
    command = [sys.executable, "-m", "tests.kill.edits_child", str(folder), str(call), str(after_s), *defect]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("call", range(CALLS + 1))
def test_an_edited_question_is_answered_once(tmp_path: Path, call: int) -> None:
    """One question, one answer, and that to the newest text; 0 is the life that nothing ends."""
    chance = random.Random(call)
    if call:
        assert life(tmp_path, call, chance.uniform(0, 0.01)) == -signal.SIGKILL
        assert life(tmp_path, chance.randint(1, 2), chance.uniform(0, 0.01)) in (-signal.SIGKILL, 0)
    assert life(tmp_path, 0, 0) == 0
    assert outcome(tmp_path) == ([("$1", "ignored"), ("$1 asked", "answered")], [True])


def test_the_newest_text_is_missed_without_the_amendment(tmp_path: Path) -> None:
    """The control: the question alone is known already when the second edit comes."""
    for _ in range(2):  # nothing ends the turn of the first, so it takes another life
        assert life(tmp_path, 0, 0, "no amendments") == 0
    assert outcome(tmp_path)[1] == [False]


def outcome(folder: Path) -> tuple[list[tuple[str, str]], list[bool]]:
    """The messages with their states, and whether each answer is to the newest text."""
    with closing(sqlite3.connect(f"file:{folder / 'gateway.db'}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT native_id, state FROM inbox WHERE kind <> 'note' ORDER BY id").fetchall()
        sent = db.execute("SELECT payload FROM outbox").fetchall()
    return rows, [EDITS[-1] in payload for (payload,) in sent]
