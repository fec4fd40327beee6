"""The command of a watch left behind the children that had begun a session of their own, each time it ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from agent_core.children import order
from channels.heartbeat.config import Watch
from channels.heartbeat.watch_commands import run_watch

NOW = datetime(2026, 5, 1, 9, tzinfo=UTC)
# A child, one that ignores hangups, one in a session of its own, and a daemon whose parents have ended.
LEAVES = """
nohup sleep {mark} >/dev/null 2>&1 &
setsid sleep {mark} >/dev/null 2>&1 &
setsid sh -c 'setsid sleep {mark} & exit 0' >/dev/null 2>&1
setsid sleep {mark} &
sleep {mark} &
"""


def still_there(mark):
    """Processes with this mark among their words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", str(mark).encode()]:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def mark():
    """A number of seconds that nobody else sleeps for."""
    number = 300_000 + os.getpid()
    yield number
    for pid in still_there(number):
        os.kill(pid, signal.SIGKILL)


async def seen(tmp_path, command, **more):
    one = Watch.model_validate({"command": command, **more})
    return await run_watch(one, workspace=tmp_path, checklist="", now=NOW)


async def test_a_command_that_ends_takes_all_with_it(tmp_path, mark):
    """It is not kept waiting by children that hold its output, and says what it has said."""
    look = await seen(tmp_path, ["sh", "-c", LEAVES.format(mark=mark) + "echo seven; exit 3"], seconds=60)
    assert "ended with the exit code 3" in look.told
    assert "seven" in look.told
    assert still_there(mark) == []


async def test_a_command_that_hangs_takes_all_with_it(tmp_path, mark):
    """After its time is over."""
    look = await seen(tmp_path, ["sh", "-c", LEAVES.format(mark=mark) + f"sleep {mark}"], seconds=1.5)
    assert look.trace == "timeout"
    assert still_there(mark) == []


def test_the_group_alone_is_not_enough(tmp_path, mark):
    """The control: to end the process group of a command leaves some of them."""
    command = LEAVES.format(mark=mark) + f"sleep {mark}"
    with subprocess.Popen(["sh", "-c", command], cwd=tmp_path, start_new_session=True) as started:
        while len(still_there(mark)) < 6:
            assert started.poll() is None
        os.killpg(started.pid, signal.SIGKILL)
    assert still_there(mark)


async def test_a_daemon_that_is_killed_leaves_nobody(tmp_path, mark):
    """SIGKILL to whoever looks, in the middle of it."""
    script = (
        "import anyio, sys; from pathlib import Path; from datetime import UTC, datetime;"
        "from channels.heartbeat.config import Watch; from channels.heartbeat.watch_commands import run_watch;"
        "one = Watch.model_validate({'command': ['sh', '-c', sys.argv[1]], 'seconds': 60});"
        "anyio.run(lambda: run_watch(one, workspace=Path('.'), checklist='', now=datetime.now(UTC)))"
    )
    command = LEAVES.format(mark=mark) + f"sleep {mark}"
    with subprocess.Popen([sys.executable, "-c", script, command], cwd=Path(__file__).parents[2]) as looking:
        with anyio.fail_after(60):
            while len(still_there(mark)) < 6:
                await anyio.sleep(0.05)
        looking.kill()
    with anyio.fail_after(60):
        while still_there(mark):
            await anyio.sleep(0.05)


async def test_a_signal_and_a_command_that_is_not_there(tmp_path):
    """Told as before, and a signal as shells tell it."""
    assert "code 137" in (await seen(tmp_path, ["sh", "-c", "kill -9 $$"])).told
    missing = await seen(tmp_path, ["no-such-command"])
    assert missing.trace == "not started FileNotFoundError"


def test_it_imports_next_to_nothing():
    """It is started for each look: no library, nothing of ours."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", "-c", order._CODE, order._ROOT],
        input="", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "_ctypes" in loaded
    assert "agent_core.children.confined_child" in loaded
    assert not loaded & {
        "ctypes",
        "os",
        "signal",
        "typing",
        "subprocess",
        "asyncio",
        "anyio",
        "json",
        "re",
        "logging",
        "channels",
        "agent_core.models",
    }
