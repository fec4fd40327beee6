"""As root a command has control groups: they weigh it whatever sessions it creates, and none is left behind."""

from __future__ import annotations

import os
import platform
import resource
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agent_core.sandbox import command_sandbox, control_groups, process
from agent_core.sandbox.command_sandbox import _GROUPS
from agent_core.sandbox.process import landlock_version, sessions_have_shares
from agent_core.sandbox.process_tree import descendants, own_children
from agent_core.sandbox.rights import Limits

from .conftest import proved, sandbox_in
from .test_limits import marked, none_left, python

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make a control group"),
    pytest.mark.skipif(
        landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
        reason="this kernel has no Landlock, or the machine is not known",
    ),
]


@pytest.fixture(autouse=True)
def groups():
    """Skips where none can be made, as in most containers."""
    made = control_groups.made(list(_GROUPS), 48)
    weighed = any(Path(group, name).exists() for group in made for name in ("cpu.weight", "cpu.shares"))
    assert control_groups.remove(made) == []
    if not weighed:
        pytest.skip("no control group for processes and the processor can be made here")


@pytest.fixture
def places(monkeypatch):
    """Folders for groups in which no other test's commands tidy up."""
    made = []
    for place in _GROUPS:
        folder = Path(place, f"squidbot-tests-{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        made.append(str(folder))
        if (folder / "cgroup.subtree_control").exists():
            (folder / "cgroup.subtree_control").write_text("+pids +cpu")
    monkeypatch.setattr(command_sandbox, "_GROUPS", tuple(made))
    yield made
    assert control_groups.remove(made) == []


def left_by(runner):
    return [
        group for place in command_sandbox._GROUPS if (group := Path(place, f"squidbot-{runner}")).is_dir()
    ]


# ── sessions without end ──

SESSIONS_WITHOUT_END = """
    import os, time
    for _ in range(20):
        if os.fork() == 0:
            break
    while True:
        try:
            os.setsid()
        except PermissionError:
            pass  # it has one already, or there are none
        until = time.monotonic() + 0.003
        while time.monotonic() < until:
            pass
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass  # so many as may be: next time
"""
"""Each process lives for some milliseconds, in a session of its own: nobody can tell one to give way."""


async def processor_beside_loops(sandbox, command):
    """How much of the processors a command gets, over what two programs get that give way to nobody."""
    loops = [
        subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"], start_new_session=True) for _ in range(2)
    ]
    try:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        outcome = await sandbox.run(command, seconds=4)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = [
            Path(f"/proc/{loop.pid}/stat").read_text().rpartition(")")[2].split()[11:13] for loop in loops
        ]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert outcome.limit in ("time", "processes"), outcome  # the latter: the kernel let on what was stopped
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return taken * os.sysconf("SC_CLK_TCK") / sum(int(word) for words in used for word in words)


@pytest.mark.slow  # it compares shares of the processor, so its machine must have nothing else to do
@pytest.mark.skipif(
    not sessions_have_shares() or (os.cpu_count() or 1) > 4,
    reason="this kernel shares nothing by session here, or there are processors for all",
)
@pytest.mark.parametrize("means", ["group", "no sessions"])
async def test_a_command_that_creates_sessions_without_end_gives_way(home, monkeypatch, means):
    """
    T8. As root it has a group with a weight; else it cannot create sessions. The control has neither, and gets many
    times as much, each of its sessions a whole share. So many processes may be that all of them run until the end.
    """
    sandbox = await proved(sandbox_in(home, limits=replace(Limits(), processes=400)))
    attack = f"{python(SESSIONS_WITHOUT_END)}; sleep 60"
    if means == "no sessions":
        monkeypatch.setattr(process, "sessions_have_shares", lambda: True)
        monkeypatch.setattr(command_sandbox, "_GROUPS", ())
    share = await processor_beside_loops(sandbox, attack)
    monkeypatch.setattr(command_sandbox, "_GROUPS", [one for one in _GROUPS if not one.endswith("/cpu")])
    monkeypatch.setattr(Limits, "weight", 100)
    control = await processor_beside_loops(sandbox, attack)
    assert share * 2 < control, (share, control)


@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
async def test_sessions_are_refused_only_where_they_have_shares_and_no_group_is_there(
    home, monkeypatch, backend, places
):
    sandbox = await proved(sandbox_in(home, backend=backend))
    said = {}
    for shares in (True, False):
        for groups in (places, ()):
            monkeypatch.setattr(process, "sessions_have_shares", lambda shares=shares: shares)
            monkeypatch.setattr(command_sandbox, "_GROUPS", groups)
            outcome = await sandbox.run("setsid echo made || echo refused", seconds=60)
            said[shares, bool(groups)] = outcome.head.decode().splitlines()[-1]
    assert said.pop((True, False)) == "refused"
    assert set(said.values()) == {"made"}


@pytest.mark.parametrize(
    ("enabled", "groups", "weights", "shares"),
    [
        ("1", "9:name=systemd:/\n1:cpu:/\n0::/", (), True),
        ("1", "1:cpu,cpuacct:/\n", (), True),
        ("0", "1:cpu:/\n", (), False),
        ("1", "1:cpu,cpuacct:/docker/a\n0::/", (), False),
        ("1", "1:cpuset:/\n2:cpu:/system.slice\n", (), False),
        ("1", "0::/", (), True),
        ("1", "0::/", ("",), False),  # the first that is seen in a container
        ("1", "0::/user.slice/user-1000.slice/session-2.scope", (), True),
        ("1", "0::/user.slice/user-1000.slice/session-2.scope", ("user.slice",), False),
        ("0", "0::/", (), False),
    ],
)
def test_where_sessions_have_shares(monkeypatch, enabled, groups, weights, shares):
    files = {"/proc/sys/kernel/sched_autogroup_enabled": f"{enabled}\n", "/proc/self/cgroup": groups}
    there = {str(Path("/sys/fs/cgroup", each, "cpu.weight")) for each in weights}
    monkeypatch.setattr(Path, "read_text", lambda self, **_: files[str(self)])
    monkeypatch.setattr(Path, "exists", lambda self: str(self) in there)
    assert sessions_have_shares() is shares


def test_a_group_weighs_as_much_as_a_session_that_is_as_nice(places):
    """See sched(7): one that is nicer by 1 gets 1.25 times less. The trial gives way to nobody."""
    assert (Limits().weight, Limits(session_nice=0).weight) == (11, 100)
    made = next(one for one in control_groups.made(places, 48) if Path(one, "pids.max").exists())
    control_groups.weigh([str(group) for group in left_by(os.getpid())], 11)
    weights = [
        int(file.read_text())
        for group in left_by(os.getpid())
        for name in ("cpu.weight", "cpu.shares")
        if (file := group / name).exists()
    ]
    assert Path(made, "pids.max").read_text() == "48\n"
    assert control_groups.remove([str(group) for group in left_by(os.getpid())]) == []
    assert weights in ([11], [112])


# ── what is left ──


async def killed_runner(sandbox, mark):
    """
    Kill both processes of the runner of a command, which then leave its groups and what was in another session;
    returns the number of the one that made the groups.
    """
    runners = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.run(f"setsid sleep {mark} & sleep {mark}", seconds=60))
        with anyio.fail_after(60):
            while len(of_command := set(marked(f"sleep\0{mark}"))) < 2:
                await anyio.sleep(0.02)
        (guard,) = (child for child in own_children() if of_command & set(descendants(child)))
        runners = descendants(guard)[:1]
        assert left_by(runners[0]) != []
        for each in (guard, *runners):
            os.kill(each, signal.SIGSTOP)
        for each in (guard, *runners):
            os.kill(each, signal.SIGKILL)
    with anyio.fail_after(60):
        while Path(f"/proc/{runners[0]}").exists():  # process 1 reaps it when it likes
            await anyio.sleep(0.02)
    return runners[0]


@pytest.mark.parametrize("sweeps", [True, False], ids=["as it is", "control"])
async def test_what_a_killed_runner_leaves_goes_with_the_next_command(home, monkeypatch, sweeps, places):
    """Its empty groups, and before that what still ran in them. The control removes nothing."""
    sandbox = await proved(sandbox_in(home))
    mark = f"4741{os.getpid()}"
    runner = await killed_runner(sandbox, mark)
    assert left_by(runner) != []
    assert marked(f"sleep\0{mark}") != []
    if not sweeps:
        without = (
            "from agent_core.sandbox import control_groups; control_groups._remove_left = lambda _: None"
        )
        monkeypatch.setattr(
            process,
            "_CODE",
            f"import sys; sys.path.append(sys.argv[1]); {without}; from agent_core.sandbox.child import main; main()",
        )
    for _ in range(3):  # what was ended a moment ago keeps its group until the next time
        outcome = await sandbox.run("true", seconds=60)
        assert outcome.status == 0, outcome
    if sweeps:
        await none_left(mark)
        assert left_by(runner) == []
        return
    assert left_by(runner) != []
    for pid in marked(f"sleep\0{mark}"):
        os.kill(pid, signal.SIGKILL)
    await none_left(mark)
    with anyio.fail_after(60):
        while control_groups.remove(list(map(str, left_by(runner)))):
            await anyio.sleep(0.02)


async def test_the_groups_of_a_runner_that_works_are_left_alone(home, places):
    sandbox = await proved(sandbox_in(home))
    mark = f"4742{os.getpid()}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.run(f"sleep {mark}; :", seconds=60))
        with anyio.fail_after(60):
            while not (found := marked(f"sleep\0{mark}")):
                await anyio.sleep(0.02)
        await sandbox.run("true", seconds=60)
        assert marked(f"sleep\0{mark}") == found
        (guard,) = (child for child in own_children() if set(found) & set(descendants(child)))
        (runner,) = descendants(guard)[:1]
        assert left_by(runner) != []
        tasks.cancel_scope.cancel()
    assert left_by(runner) == []


def test_a_number_that_comes_again_finds_its_place_free(places):
    """Numbers of processes come again, and no command runs without a group."""
    before = control_groups.made(places, 48)
    again = control_groups.made(places, 48)
    assert again == before != []
    assert control_groups.remove(again) == []


def test_whoever_is_in_another_namespace_is_no_number(tmp_path, monkeypatch):
    """The kernel shows such a process as 0, which for a signal means everybody in our own process group."""
    group = tmp_path / "squidbot-999999999"
    group.mkdir()
    (group / "cgroup.procs").write_text("0\n4711\n0\n")
    ended = []
    monkeypatch.setattr(control_groups, "send_signal", lambda number, processes: ended.extend(processes))
    assert control_groups.made([str(tmp_path)], 48) == []
    assert ended == [4711]
