"""Killed around a model call and its record: what models have cost stays true but for one call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.kill.scenario import REPOSITORY
from tests.kill.spending_child import CALLS

MOMENTS = [
    "model.answered#1",
    "model.answered#3",
    "turns.record_step_result.before#1",
    "turns.record_step_result.after#1",
    "usage.add.before#1",
    "usage.add.after#1",
    "usage.add.after#2",
    "turns.complete.before",
    "turns.complete.after",
]


def live(folder: Path, moment: str = "") -> int:
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
    return subprocess.run(
        [sys.executable, "-m", "tests.kill.spending_child", str(folder), moment],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=False,
    ).returncode


async def calls_and_counted(folder: Path) -> tuple[int, int]:
    """How many answers the model gave, and how many of them are in the sums."""
    made = len((folder / "calls").read_text().split())
    async with await SqliteQueue.open(folder / "home" / "gateway.db", clock=SystemClock()) as store:
        return made, sum(
            row.usage.calls for row in await store.usage.usage_since(since="2000-01-01", by="day")
        )


@pytest.mark.parametrize("moment", MOMENTS)
async def test_at_most_one_call_is_not_counted_and_none_twice(moment: str, tmp_path: Path) -> None:
    """After a death at the moment and another life to the end: all calls but one, at the most, and no more."""
    assert live(tmp_path, moment) == -signal.SIGKILL
    made, counted = await calls_and_counted(tmp_path)
    assert made - 1 <= counted <= made
    assert live(tmp_path) == 0
    made, counted = await calls_and_counted(tmp_path)
    assert made - 1 <= counted <= made
    assert CALLS <= made <= CALLS + 1
