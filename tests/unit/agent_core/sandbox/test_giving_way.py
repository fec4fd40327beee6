"""A command gives way to the daemon whatever sessions it makes, and whoever watches it waits for none of it."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import struct
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agent_core.sandbox import priority, process
from agent_core.sandbox.long_running import serving
from agent_core.sandbox.priority import Sessions
from agent_core.sandbox.process import landlock_version
from agent_core.sandbox.process_tree import descendants, own_children, sessions_of
from agent_core.sandbox.rights import Limits

from .conftest import proved, sandbox_in
from .test_limits import ROOT, marked, none_left

needs_sandbox = pytest.mark.skipif(
    landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
    reason="this kernel has no Landlock, or the machine is not known",
)
needs_autogroups = pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="this kernel shares nothing by session"
)


def slice_ms(pid):
    """How long the slices of the processor are that a process asks for, see sched_setattr(2); 0 before Linux 6.12."""
    attributes = ctypes.create_string_buffer(48)
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, pid, attributes, len(attributes), 0) == 0
    return struct.unpack_from("=Q", attributes, 24)[0] / 1e6


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


NO_SLICES = """
import sys
sys.path.append(sys.argv[1])
from agent_core.sandbox import child
child.take_long_slices = lambda: None
child.main()
"""

# ── sessions ──


def writing(monkeypatch, answers):
    """What is written where; an exception among the answers is raised."""
    written = []

    def write(path, content):
        answer = answers.get(path, [None]).pop(0) if answers.get(path) else None
        if answer is not None:
            raise answer
        written.append((path, content))

    monkeypatch.setattr(priority, "sessions_of", lambda tree: {pid // 10: pid for pid in tree})
    monkeypatch.setattr(priority, "put", write)
    return written


def test_each_session_is_told_once(monkeypatch):
    written = writing(monkeypatch, {})
    some = Sessions(10)
    assert some.give_way([11, 12, 21])
    assert some.give_way([11, 12, 21])
    assert sorted(written) == [("/proc/12/autogroup", "10"), ("/proc/21/autogroup", "10")]
    assert some.give_way([11, 12])
    assert some.give_way([11, 12, 21])  # that number has come again
    assert written[2:] == [("/proc/21/autogroup", "10")]


def test_what_may_not_be_done_now_is_done_at_the_next_look(monkeypatch):
    written = writing(monkeypatch, {"/proc/11/autogroup": [BlockingIOError()]})
    some = Sessions(10)
    assert not some.give_way([11])
    assert written == []
    assert some.give_way([11])
    assert written == [("/proc/11/autogroup", "10")]


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, ProcessLookupError])
def test_one_that_cannot_be_told_keeps_nobody_from_going_on(monkeypatch, error):
    written = writing(monkeypatch, {"/proc/11/autogroup": [error()]})
    assert Sessions(10).give_way([11, 21])
    assert written == [("/proc/21/autogroup", "10")]


def test_nobody_is_told_nothing(monkeypatch):
    written = writing(monkeypatch, {})
    assert Sessions(0).give_way([11, 21])
    assert written == []


@needs_autogroups
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_rights_can_have_it():
    """Two sessions at once: of the second it is said that it must wait."""
    python3 = shutil.which("python3", path="/usr/bin:/bin")
    if python3 is None:
        pytest.skip("there is no python3 of the system")
    about = {
        name: (ROOT / f"agent_core/sandbox/{name}.py").read_text()
        for name in ("syscalls", "process_tree", "raw_files", "priority")
    }
    code = f"""
    import subprocess, sys, time, types
    for package in ("agent_core", "agent_core.sandbox"):
        sys.modules[package] = types.ModuleType(package)
    for name, text in {about!r}.items():
        module = sys.modules["agent_core.sandbox." + name] = types.ModuleType(name)
        exec(text, module.__dict__)
    started = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
    some, asked = module.Sessions(10), 1
    while not some.give_way([each.pid for each in started]):
        asked += 1
        time.sleep(0.02)
    print(asked > 1, *[open(f"/proc/{{each.pid}}/autogroup").read().split()[-1] for each in started])
    for each in started: each.kill()
    """
    done = subprocess.run(
        [python3, "-c", textwrap.dedent(code)],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["True", "10", "10"], done.stderr


@needs_sandbox
@needs_autogroups
@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
async def test_every_session_of_a_command_gives_way(home, backend):
    """Its own, and one that it makes; the daemon's stays as it is. The control is told not to."""
    sandbox = await proved(sandbox_in(home, backend=backend, limits=Limits()))
    own = niceness(os.getpid())
    mark = f"4731{os.getpid()}"
    command = f"setsid sleep {mark} & sleep 0.5; sleep {mark}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.run(command, seconds=100))
        with anyio.fail_after(60):
            while len(marked(f"sleep\0{mark}")) < 2:
                await anyio.sleep(0.02)
        await until_nice(f"sleep\0{mark}", 10)
        assert len(sessions_of(marked(f"sleep\0{mark}"))) == 2
        of_command = set(marked(f"sleep\0{mark}"))
        (guard,) = (child for child in own_children() if of_command & set(descendants(child)))
        (runner,) = descendants(guard)[:1]
        assert niceness(runner) == 0
        tasks.cancel_scope.cancel()
    assert niceness(os.getpid()) == own
    order = await sandbox._order(["/bin/sh", "-c", command], replace(sandbox.limits, session_nice=0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.run, order)
        await until_nice(f"sleep\0{mark}", 0)
        await anyio.sleep(1.0)  # several looks
        await until_nice(f"sleep\0{mark}", 0)
        tasks.cancel_scope.cancel()


@needs_sandbox
@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
@pytest.mark.parametrize("takes", [True, False], ids=["as it is", "control"])
async def test_whoever_wakes_up_does_not_wait_for_a_slice_of_a_command(home, backend, takes, monkeypatch):
    """The command and its runner have the longest slices, the daemon has the usual ones. The control asks for none."""
    usual = slice_ms(os.getpid())
    if not usual:
        pytest.skip("this kernel has no slices that can be chosen")
    if not takes:
        monkeypatch.setattr(process, "_CODE", NO_SLICES)
    sandbox = await proved(sandbox_in(home, backend=backend))
    mark = f"4735{os.getpid()}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.run(f"sleep {mark}; :", seconds=100))
        with anyio.fail_after(60):
            while not (found := marked(f"sleep\0{mark}")):
                await anyio.sleep(0.02)
        (guard,) = (child for child in own_children() if set(found) & set(descendants(child)))
        (runner,) = descendants(guard)[:1]
        assert {slice_ms(pid) for pid in (*found, runner)} == {100 if takes else usual}
        assert slice_ms(os.getpid()) == usual < 100
        tasks.cancel_scope.cancel()


@needs_sandbox
async def test_a_program_that_goes_on_running_has_long_slices_too():
    mark = f"4736{os.getpid()}"
    async with serving(["/bin/sh", "-c", f"sleep {mark}; :"], environment={"PATH": os.environ["PATH"]}):
        with anyio.fail_after(60):
            while not (found := marked(f"sleep\0{mark}")):
                await anyio.sleep(0.02)
        assert {slice_ms(pid) for pid in found} == {100 if slice_ms(os.getpid()) else 0}


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
    made = process.order_of

    def order_of(*words, **named):
        orders.append(made(*words, **named))
        return orders[-1]

    monkeypatch.setattr(process, "order_of", order_of)
    sandbox = await proved(sandbox_in(home, limits=Limits()))
    await sandbox.run("true", seconds=60)
    assert [(each["nice"], each["session_nice"]) for each in orders] == [(0, 0), (0, 0), (19, 10)]


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


# ── whoever watches waits for nobody ──

STUCK = """
import sys, time
sys.path.append(sys.argv[1])
from agent_core.sandbox import child
child.is_more_than = lambda *_: time.sleep(600)
child.main()
"""
"""A runner that finds the memory of a process locked at its first look."""
DEAF = """
import _signal, sys, time
sys.path.append(sys.argv[1])
from agent_core.sandbox import child
child._Run._watch = lambda *_: (_signal.signal(_signal.SIGTERM, _signal.SIG_IGN), time.sleep(600))
child.main()
"""
"""A runner that does nothing any more."""


@needs_sandbox
async def test_a_command_whose_memory_is_locked_ends_in_time(home, monkeypatch):
    sandbox = await proved(sandbox_in(home))
    mark = f"4733{os.getpid()}"
    monkeypatch.setattr(process, "_CODE", STUCK)
    outcome = await sandbox.run(f"setsid sleep {mark} & sleep {mark}", seconds=1.5)
    assert outcome.limit == "time"
    assert marked(mark) == []


@needs_sandbox
async def test_a_command_that_nobody_can_look_at_waits_meanwhile(home, monkeypatch):
    """All of it, and it is let go on afterwards: it then ends by itself."""
    sandbox = await proved(sandbox_in(home))
    gate = home / "gate"
    waits = f"child.is_more_than = lambda *_: [time.sleep(0.05) for _ in iter(lambda: open({str(gate)!r}).read(), 'go')][:0]"
    gate.write_text("wait")
    monkeypatch.setattr(
        process, "_CODE", STUCK.replace("child.is_more_than = lambda *_: time.sleep(600)", waits)
    )
    outcomes = []

    async def run():
        outcomes.append(await sandbox.run("sleep 0.3; setsid sleep 3; echo done", seconds=100))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(60):
            while not (tree := [each for each in descendants() if is_stopped(each)]):
                await anyio.sleep(0.02)
        assert len(tree) >= 1
        assert outcomes == []
        gate.write_text("go")
    assert (outcomes[0].status, outcomes[0].head) == (0, b"done\n"), outcomes


def is_stopped(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


@needs_sandbox
@pytest.mark.parametrize("with_net", [True, False], ids=["as it is", "control"])
async def test_nothing_outlives_a_runner_that_does_not_obey(home, monkeypatch, with_net):
    """The control kills the runner alone."""
    sandbox = await proved(sandbox_in(home))
    mark = f"4734{os.getpid()}"
    monkeypatch.setattr(process, "_CODE", DEAF)
    monkeypatch.setattr(process, "_END_LIMIT_S", 0.5)
    if not with_net:
        monkeypatch.setattr(process, "end_below", lambda _: None)
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


async def test_a_tree_without_descendants_is_ended_at_once():
    process.end_below(os.getpid() if not own_children() else 2**22)


def test_limits_say_how_far_a_command_gives_way():
    assert (Limits().nice, Limits().session_nice) == (19, 10)
