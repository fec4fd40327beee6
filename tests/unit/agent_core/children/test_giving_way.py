"""A command and a program that goes on running give way to the daemon, and end with a runner that does nothing."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agent_core.children import order
from agent_core.children.long_running import serving
from agent_core.children.order import landlock_version
from agent_core.children.process_tree import descendants, own_children
from agent_core.children.rights import Ceilings

from .conftest import proved, sandbox_in
from .test_limits import marked, none_left

needs_sandbox = pytest.mark.skipif(
    landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
    reason="this kernel has no Landlock, or the machine is not known",
)
needs_autogroups = pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="this kernel shares nothing by session"
)


def niceness(pid):
    """How nice the session of a process is; None if it has ended, or has no share of its own (the first session)."""
    try:
        said = Path(f"/proc/{pid}/autogroup").read_text().split()
    except OSError:
        return None
    return int(said[-1]) if said else None


async def until_nice(mark, expected):
    with anyio.fail_after(60):
        while not (found := marked(mark)) or [niceness(pid) for pid in found] != [expected] * len(found):
            await anyio.sleep(0.02)


@needs_sandbox
@needs_autogroups
@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
@pytest.mark.parametrize(("nice", "expected"), [(19, 10), (0, 0)], ids=["as it is", "control"])
async def test_the_session_of_a_command_gives_way(home, backend, nice, expected):
    """
    What wants a session of its own stays in it; the daemon's and the runner's stay as they are. The control gives
    way to nobody.
    """
    assert Ceilings().nice == 19
    sandbox = await proved(sandbox_in(home, backend=backend, limits=replace(Ceilings(), nice=nice)))
    own = niceness(os.getpid())
    mark = f"4731{os.getpid()}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.run(f"setsid sleep {mark} & sleep {mark}; :", seconds=100))
        await until_nice(f"sleep\0{mark}", expected)
        of_command = set(marked(f"sleep\0{mark}"))
        (guard,) = (child for child in own_children() if of_command & set(descendants(child)))
        (runner,) = descendants(guard)[:1]
        assert niceness(runner) == 0
        tasks.cancel_scope.cancel()
    assert niceness(os.getpid()) == own


@needs_autogroups
async def test_a_program_that_goes_on_running_gives_way_a_little():
    mark = f"4732{os.getpid()}"
    async with serving(["/bin/sh", "-c", f"sleep {mark}; :"], environment={"PATH": os.environ["PATH"]}):
        await until_nice(f"sleep\0{mark}", 5)
        (pid,) = marked(f"sleep\0{mark}")
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.nice(0) + 5)


@needs_sandbox
async def test_the_trial_gives_way_to_nobody(home, monkeypatch):
    """On a busy machine it would not end in its time. The command afterwards does."""
    orders = []
    made = order.order_of

    def order_of(*words, **named):
        orders.append(made(*words, **named))
        return orders[-1]

    monkeypatch.setattr(order, "order_of", order_of)
    sandbox = sandbox_in(home, limits=Ceilings())
    assert (await sandbox.prove()).held
    await sandbox.run("true", seconds=60)
    assert [each["nice"] for each in orders] == [0, 0, 19]


@needs_sandbox
@pytest.mark.slow
async def test_the_trial_holds_beside_busy_loops(home):
    busy = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        await proved(sandbox_in(home))
    finally:
        for each in busy:
            each.kill()
            each.wait()


# ── a runner that does nothing any more ──

DEAF = """
import _signal, sys, time
sys.path.append(sys.argv[1])
from agent_core.children import confined_child as child
child._Run._watch = lambda *_: (_signal.signal(_signal.SIGTERM, _signal.SIG_IGN), time.sleep(600))
child.main()
"""
"""A runner that does nothing any more."""


@needs_sandbox
@pytest.mark.parametrize("with_net", [True, False], ids=["as it is", "control"])
async def test_nothing_outlives_a_runner_that_does_not_obey(home, monkeypatch, with_net):
    """The control kills the runner alone."""
    sandbox = await proved(sandbox_in(home))
    mark = f"4734{os.getpid()}"
    monkeypatch.setattr(order, "_CODE", DEAF)
    monkeypatch.setattr(order, "_END_LIMIT_S", 0.5)
    if not with_net:
        monkeypatch.setattr(order, "end_below", lambda _: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.run(f"setsid sleep {mark} & sleep {mark}", seconds=60))
        with anyio.fail_after(60):
            while len(marked(f"sleep\0{mark}")) < 2:
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    if with_net:
        await none_left(mark)
        return
    left = marked(f"sleep\0{mark}")
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left != []


@needs_sandbox
async def test_a_command_whose_runner_hangs_ends_after_its_deadline(home, monkeypatch):
    """As one that waits for the lock of a process: the daemon ends the tree, and what was done is not known."""
    sandbox = await proved(sandbox_in(home))
    mark = f"4733{os.getpid()}"
    monkeypatch.setattr(order, "_CODE", DEAF)
    monkeypatch.setattr(order, "_GRACE_S", 0.5)
    monkeypatch.setattr(order, "_END_LIMIT_S", 0.5)
    outcome = await sandbox.run(f"setsid sleep {mark} & sleep {mark}", seconds=1.0)
    assert outcome.limit == "lost"
    await none_left(mark)


async def test_a_tree_without_descendants_is_ended_at_once():
    order.end_below(os.getpid() if not own_children() else 2**22)
