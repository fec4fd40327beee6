"""Signs of life: real datagrams to a service manager, and a real process that ends itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import anyio
import pytest

from gateway.supervision.liveness import environment_watchdog, report_liveness
from gateway.supervision.turn_watchdog import ProcessWatchdog
from gateway.system.sd_notify import Notifier


@pytest.fixture
def manager(tmp_path):
    """The service manager's socket, and the environment that names it; its watchdog waits for 0.2 s."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        path = os.path.relpath(tmp_path / "notify")
        ear.bind(path)
        ear.settimeout(0)
        yield ear, {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}


def heard(ear):
    """Everything that was said since the last time."""
    said = []
    while True:
        try:
            said.append(ear.recv(4096).decode())
        except BlockingIOError:
            return said


async def test_a_stuck_turn_runner_is_not_vouched_for(manager):
    """While the loop turns and turns move: pings. When turns stand still: none, and STATUS says why."""
    ear, environ = manager
    stuck: list[str] = []
    started = anyio.Event()
    notifier = Notifier(environ)
    async with anyio.create_task_group() as tasks:

        async def signs():
            await report_liveness(
                notifier,
                started=started,
                line=lambda: "matrix up",
                stuck=lambda: stuck[0] if stuck else None,
                resort=ProcessWatchdog(None),
            )

        tasks.start_soon(signs)
        await anyio.sleep(0.2)
        assert heard(ear) == []
        started.set()
        await anyio.sleep(0.35)
        said = heard(ear)
        assert said[:3] == ["READY=1\nSTATUS=matrix up", "STATUS=matrix up", "WATCHDOG=1"]
        assert said.count("WATCHDOG=1") >= 2
        stuck.append("a turn has been running for 99 s")
        await anyio.sleep(0.15)
        heard(ear)
        await anyio.sleep(0.35)
        said = heard(ear)
        assert said
        assert set(said) == {"STATUS=stuck: a turn has been running for 99 s"}
        stuck.clear()
        await anyio.sleep(0.2)
        assert "WATCHDOG=1" in heard(ear)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("asked", "manager_there", "limit_s"),
    [("300", False, 300), ("5", False, 30), ("", False, None), ("0", False, None), ("soon", False, None), ("300", True, None)],
)  # fmt: skip
def test_the_last_resort_is_for_where_nobody_else_watches(asked, manager_there, limit_s):
    """It has to be asked for, and a service manager with a watchdog of its own comes first."""
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "60000000"} if manager_there else {}
    found = environment_watchdog(Notifier(environ), {"SQUIDBOT_WATCHDOG_SECONDS": asked})
    assert found._limit_s == limit_s


CHILD = """
import time
from gateway.supervision.turn_watchdog import ProcessWatchdog
resort = ProcessWatchdog(0.6)
for _ in range(4):
    resort.note_progress()
    time.sleep(0.3)
print("alive", flush=True)
{end}
time.sleep(2)
print("still here", flush=True)
"""


@pytest.mark.parametrize(("end", "code", "stays"), [("", 1, False), ("resort.aclose()", 0, True)])
def test_a_process_that_stands_still_ends_itself(end, code, stays):
    """Heard again and again it lives; not heard any more it ends with its stacks on stderr. Let go, it stays."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(end=end).replace("time.sleep(2)", "time.sleep(2)")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "alive" in done.stdout
    assert (done.returncode, "still here" in done.stdout) == (code, stays)
    assert ("Timeout" in done.stderr) is not stays
