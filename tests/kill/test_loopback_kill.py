"""
The loopback channel and its server in a folder, under SIGKILL: the ground that other kill tests stand on.

A child process talks, is killed at a named moment, and is started again; the parent looks at the server's
own files and finds every message answered exactly once, in order.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.loopback import FileLoopbackServer

ROOT = Path(__file__).parents[2]
COUNT = 8

pytestmark = [pytest.mark.kill]


def start(folder: Path, where: str, defect: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.kill.loopback_child"]
    return subprocess.Popen(
        [*command, str(folder / "server"), str(folder / "journal"), where, defect], cwd=ROOT
    )


async def answered(folder: Path, wheres: list[str], defect: str = "") -> list[str]:
    """Let children die at each of the places, then let one live until everything is answered or nothing moves."""
    server = FileLoopbackServer(folder / "server")
    for number in range(COUNT):
        server.say("alice", f"question {number}")
    for where in wheres:
        child = start(folder, where, defect)
        assert child.wait(30) == -signal.SIGKILL
    child = start(folder, "", defect)
    try:
        await server.answers(COUNT, within_s=10)
    except TimeoutError:
        assert defect, "messages are missing"
    finally:
        child.kill()
        child.wait(30)
    return [delivered.text for delivered in server.seen()]


EXPECTED = [f"re: question {number}" for number in range(COUNT)]


@pytest.mark.parametrize(
    "point",
    [
        *("fetched", "accepted", "acknowledged", "uncertain", "taken"),
        pytest.param("sending", marks=pytest.mark.smoke),
    ],
)
async def test_killed_at_a_boundary(tmp_path, point):
    """Killed at its first and its third passing: every question has one answer, in order."""
    assert await answered(tmp_path, [point, f"{point}#2"]) == EXPECTED


async def test_control_acknowledging_first_loses(tmp_path):
    """Negative control: a channel that acknowledges before it accepts loses messages, and that is seen."""
    assert await answered(tmp_path, ["acknowledged_too_early"], "acknowledges_first") != EXPECTED


@pytest.mark.smoke
async def test_control_new_keys_double(tmp_path):
    """Negative control: a new key for every try doubles an answer, and that is seen."""
    seen = await answered(tmp_path, ["taken"], "new_keys")
    assert len(seen) > len(set(seen)) > 0
