"""`!forget me` under SIGKILL: whenever the process dies, the next start forgets the whole person and nobody else."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.killed_writes import KILLED_AT_A_WRITE
from tests.integration.test_own_data import REQUESTS, carry_out, said_and_requested, stored
from tests.kill.tally import SEED, TALLY, THOROUGH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = 20 if THOROUGH else 6
"""The first deaths lie evenly among the writes; those behind them are drawn."""
CHILD = f"""{KILLED_AT_A_WRITE}
from pathlib import Path
from gateway.app.erasures import run_erasure_requests
from gateway.settings import Settings
from gateway.system.home import Home
settings = Settings.model_validate({{"people": {{"bob": {{"addresses": sys.argv[2:]}}}}}})
sys.addaudithook(hook)
run_erasure_requests(settings, Home(Path(sys.argv[1])))
print(count)
"""
"""Prints how often it wrote, if it is not killed."""


def forget(root: Path, writes: int) -> subprocess.CompletedProcess[str]:
    """Carry out what is due in a process of its own, which dies after so many writes."""
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(writes), str(root), "@bob:hs.test", "bob@mail.test"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def is_forgotten(root: Path) -> bool:
    """Return True if nothing of one person is left, everything of the other, and no request."""
    left = stored(root)
    return "bobword" not in left and "mailword" not in left and "cidword" in left and not asked(root)


def asked(root: Path) -> bool:
    return (root / REQUESTS).exists() or bool(list((root / "state").glob("forgetting-*")))


async def test_killed_before_every_kind_of_write(tmp_path: Path) -> None:
    """
    Over one to three deaths. The control: a death in the middle leaves words of theirs, and the request stays.
    """
    home = tmp_path / "home"
    await said_and_requested(home)
    whole = shutil.copytree(home, tmp_path / "whole")
    done = forget(whole, 10**6)
    assert done.returncode == 0, done.stderr
    assert is_forgotten(whole)
    writes = int(done.stdout.split()[-1])
    chance, unfinished = random.Random(SEED), 0
    for first in (writes * part // ROUNDS for part in range(ROUNDS)):
        root = shutil.copytree(home, tmp_path / "killed")
        for death in range(chance.randrange(1, 4)):
            killed = forget(root, chance.randrange(writes) if death else first).returncode
            if killed == 0:
                break
            assert killed == -signal.SIGKILL
            TALLY["SIGKILL in an erasure that a person asked for"] += 1
            assert asked(root) or is_forgotten(root)
            unfinished += not death and "bobword" in stored(root)
        await carry_out(root)
        assert is_forgotten(root)
        shutil.rmtree(root)
    assert unfinished
