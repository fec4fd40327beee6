"""
T8, second half: what a command uses up ends at its limit, and with it goes everything that it has started.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agent_core.children import order as process
from agent_core.children.command_sandbox import _GROUPS
from agent_core.children.order import landlock_version
from agent_core.children.process_tree import descendants, own_children
from agent_core.children.rights import Ceilings

from .conftest import proved, sandbox_in

ROOT = Path(__file__).resolve().parents[4]
SMALL = Ceilings(
    seconds=20,
    memory_bytes=200_000_000,
    processes=24,
    disk_bytes=40_000_000,
    files=2000,
    output_bytes=300_000,
    nice=0,  # on a machine that is busy with other tests, too
)
pytestmark = [
    pytest.mark.skipif(
        landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
        reason="this kernel has no Landlock, or the machine is not known",
    ),
]


UNBOUNDED = """
import sys
sys.path.append(sys.argv[1])
from agent_core.children import confined_child as child
child.enter_group = lambda _: None
child.main()
"""


@pytest.fixture
async def sandbox(home):
    return await proved(sandbox_in(home, limits=SMALL))


def python(code):
    """A command that runs a piece of Python."""
    return shlex.join([os.path.realpath(sys.executable), "-I", "-S", "-c", textwrap.dedent(code)])


def marked(mark):
    """The processes that have a word in their arguments."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                words = (each / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in words and int(each.name) != os.getpid():
                found.append(int(each.name))
    return found


async def none_left(mark):
    with anyio.fail_after(60):
        while marked(mark):
            await anyio.sleep(0.02)


# ── what is left behind ──


STAY = {
    "in the background": "sleep 4711{mark} & echo started",
    "in a session of its own": "setsid sleep 4711{mark} & sleep 0.2; echo started",
    "deaf to signals": "nohup setsid sh -c 'trap \"\" TERM HUP INT; sleep 4711{mark}; :' >/dev/null 2>&1 & sleep 0.2; echo started",
    "twice removed": "(setsid sh -c 'setsid sleep 4711{mark} & exit' &) ; sleep 0.2; echo started",
}


@pytest.mark.parametrize("way", sorted(STAY))
async def test_nothing_outlives_its_command(sandbox, way):
    """A command ends; what it left behind ends with it and is counted."""
    mark = str(os.getpid())
    outcome = await sandbox.run(STAY[way].replace("{mark}", mark), seconds=20)
    assert outcome.status == 0
    assert outcome.head == b"started\n"
    assert outcome.ended >= 1
    assert marked(f"4711{mark}") == []


def test_without_the_runner_such_a_process_outlives_its_group(tmp_path):
    """The negative control: ending the process group leaves one in a session of its own."""
    mark = f"4712{os.getpid()}"
    started = subprocess.Popen(["sh", "-c", f"setsid sleep {mark} & sleep 0.3"], start_new_session=True)
    started.wait()
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left != []


async def test_a_cancelled_command_ends_with_everything(sandbox):
    mark = f"4713{os.getpid()}"
    with anyio.move_on_after(1.0) as scope:
        await sandbox.run(f"setsid sleep {mark} & sleep {mark}", seconds=60)
    assert scope.cancelled_caught
    await none_left(mark)


async def test_the_tree_ends_with_a_daemon_that_is_killed(home):
    """SIGKILL of the daemon: the runner hears of it from the kernel and ends the tree."""
    mark = f"4714{os.getpid()}"
    code = f"""
    import anyio, sys
    from pathlib import Path
    sys.path.insert(0, {str(ROOT)!r})
    from tests.unit.agent_core.children.conftest import sandbox_in
    async def main():
        sandbox = sandbox_in(Path({str(home)!r}))
        await sandbox.prove()
        print(sandbox.proof.held, flush=True)
        await sandbox.run("setsid sleep {mark} & sleep {mark}", seconds=60)
    anyio.run(main)
    """
    daemon = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    with anyio.fail_after(60):
        while len(marked(f"sleep\0{mark}")) < 2:
            assert daemon.poll() is None
            await anyio.sleep(0.02)
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    await none_left(mark)
    with anyio.fail_after(60):  # the folder of the run goes last
        while any((home / "run" / "commands").iterdir()):
            await anyio.sleep(0.02)


# ── limits ──


async def test_time(sandbox):
    outcome = await sandbox.run("echo before; sleep 60", seconds=1)
    assert (outcome.limit, outcome.head, outcome.status) == ("time", b"before\n", None)


FORK_BOMB = """
    import os, time
    mark = "{mark}"
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
"""


async def test_a_fork_bomb(sandbox):
    """It comes to nothing, and nothing of it is left."""
    mark = f"bomb{os.getpid()}"
    outcome = await sandbox.run(python(FORK_BOMB.format(mark=mark)), seconds=1)
    assert outcome.limit in ("time", "processes")
    assert outcome.ended <= SMALL.processes + 1
    assert marked(mark) == []


async def test_a_fork_bomb_of_the_shell(sandbox):
    outcome = await sandbox.run("f() { f | f & }; f; sleep 3", seconds=1)
    assert outcome.limit or outcome.status is not None
    assert (await sandbox.run("echo fine", seconds=10)).head == b"fine\n"


async def test_so_many_processes_are_possible_and_no_more(sandbox):
    """The control of the bomb: some can be started, and the first that is too many is refused."""
    code = """
    import os, time
    count = 0
    try:
        while count < 200:
            if os.fork() == 0:
                time.sleep(30)
            count += 1
    except OSError:
        pass
    print(count)
    """
    outcome = await sandbox.run(python(code), seconds=20)
    assert 3 <= int(outcome.head) <= SMALL.processes


async def test_endless_output(sandbox):
    outcome = await sandbox.run("yes", seconds=30)
    assert outcome.limit == "output"
    assert SMALL.output_bytes < outcome.said_bytes
    assert len(outcome.head) == SMALL.head_bytes
    assert len(outcome.tail) == SMALL.tail_bytes


async def test_the_head_and_the_tail_of_long_output_are_kept(sandbox):
    outcome = await sandbox.run("echo begin; seq 1 30000; echo end", seconds=20)
    assert outcome.status == 0
    assert outcome.head.startswith(b"begin\n1\n2\n")
    assert outcome.tail.endswith(b"30000\nend\n")
    assert outcome.said_bytes > len(outcome.head) + len(outcome.tail)


async def test_a_large_file(sandbox):
    """The kernel ends what writes more than fits."""
    outcome = await sandbox.run("exec dd if=/dev/zero of=big bs=1M count=10000", seconds=20)
    assert outcome.signal == signal.SIGXFSZ or outcome.limit == "disk" or outcome.status
    assert (sandbox.work / "big").stat().st_size <= SMALL.disk_bytes


async def test_a_sparse_file(sandbox):
    outcome = await sandbox.run("truncate -s 10G sparse", seconds=20)
    assert outcome.status != 0
    assert (sandbox.work / "sparse").stat().st_size == 0


MANY_FILES = """
    for number in range(100):
        with open(f"part-{number}", "wb") as file:
            file.write(bytes(9_000_000))
"""


async def test_many_files_together(sandbox):
    """Each is small enough, all of them are not."""
    outcome = await sandbox.run(python(MANY_FILES) + "; sleep 20", seconds=30)
    assert outcome.limit == "disk"


async def test_files_without_a_name(sandbox):
    """What was deleted and is open takes room that no folder shows."""
    code = """
    import os, time
    held = []
    for number in range(60):
        file = open(f"part-{number}", "wb")
        file.write(bytes(9_000_000)); file.flush()
        os.unlink(f"part-{number}")
        held.append(file)
    time.sleep(20)
    """
    outcome = await sandbox.run(python(code), seconds=30)
    assert outcome.limit == "disk"


async def test_a_disk_that_others_fill(home):
    """The command ends before the disk is full, and is not called the one who filled it."""
    sandbox = await proved(sandbox_in(home, limits=replace(SMALL, disk_bytes=1_000_000)))
    outcomes = []

    async def command():
        outcomes.append(await sandbox.run("echo begun > begun; sleep 30", seconds=30))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(command)
        with anyio.fail_after(60):
            while not (sandbox.work / "begun").exists():
                await anyio.sleep(0.02)
        with (home / "others").open("wb") as file:
            file.write(os.urandom(30_000_000))
            os.fsync(file.fileno())
    assert outcomes[0].limit == "room"


async def test_very_many_empty_files(sandbox):
    code = """
    import time
    for number in range(6000):
        open(f"empty-{number}", "wb").close()
    time.sleep(20)
    """
    if not os.statvfs(sandbox.work.parent).f_files:
        pytest.skip("this file system does not count files")
    outcome = await sandbox.run(python(code), seconds=30)
    assert outcome.limit == "disk"


@pytest.mark.parametrize("how", ["private", "shared", "reserved"])
async def test_much_memory_at_once(sandbox, how):
    """8 GB in one piece are refused, however they are asked for."""
    flags = {
        "private": "-1, SIZE, mmap.MAP_PRIVATE | 32",
        "shared": "-1, SIZE",
        "reserved": "-1, SIZE, 34, 0",
    }
    code = f"import mmap\nSIZE = 8 << 30\nmmap.mmap({flags[how]})"
    outcome = await sandbox.run(python(code), seconds=20)
    assert outcome.status == 1
    assert b"OSError" in outcome.head or b"MemoryError" in outcome.head
    fits = await sandbox.run(python(code.replace("8 << 30", "8 << 20")), seconds=20)
    assert fits.status == 0, fits


MEMORY_OF_MANY = """
    import os, time
    for _ in range(8):
        if os.fork() == 0:
            held = bytearray(os.urandom(1 << 20)) * 60
            time.sleep(30)
    time.sleep(30)
"""


async def test_memory_of_many_together(sandbox):
    """Each has what one may have, all of them more than all may have."""
    outcome = await sandbox.run(python(MEMORY_OF_MANY), seconds=30)
    assert outcome.limit == "memory"


async def test_memory_that_many_have_together_counts_once(sandbox):
    """What a process hands to its children by fork, and a mapping that all of them have."""
    code = """
    import mmap, os, time
    held = bytearray(os.urandom(1 << 20)) * 60
    shared = mmap.mmap(-1, 40 << 20)
    shared[:] = bytes(40 << 20)
    started = []
    for _ in range(8):
        if (pid := os.fork()) == 0:
            sum(held[::4096]) + sum(shared[::4096])
            time.sleep(1.5)
            os._exit(0)
        started.append(pid)
    print({os.waitpid(pid, 0)[1] for pid in started})
    """
    outcome = await sandbox.run(python(code), seconds=30)
    assert (outcome.status, outcome.head) == (0, b"{0}\n"), outcome


async def test_memory_of_one_piece_after_the_other(sandbox):
    code = """
    held = []
    while True:
        held.append(bytearray(1 << 20))
    """
    outcome = await sandbox.run(python(code), seconds=30)
    assert outcome.limit == "memory" or outcome.status == 1


# ── root, whom no limit of processes binds ──


def groups_left():
    return {group for place in _GROUPS if Path(place).is_dir() for group in Path(place).glob("squidbot-*")}


@pytest.mark.skipif(os.getuid() != 0, reason="only root needs a control group")
@pytest.mark.parametrize("bounded", [True, False], ids=["as it is", "control"])
async def test_the_processes_of_root_are_bounded_by_a_group(home, monkeypatch, bounded):
    """The kernel refuses the first that is too many; the control has only the looks of the runner."""
    sandbox = await proved(sandbox_in(home, limits=SMALL))
    if not bounded:
        monkeypatch.setattr(process, "_CODE", UNBOUNDED)
    code = """
    import os, time
    refused = 0
    for _ in range(200):
        try:
            if os.fork() == 0:
                time.sleep(30)
        except OSError:
            refused += 1
    print(refused > 100, flush=True)
    time.sleep(30)
    """
    outcome = await sandbox.run(python(code), seconds=2)
    if bounded:
        assert (outcome.limit, outcome.head) == ("time", b"True\n"), outcome
    else:
        assert (outcome.limit, outcome.head != b"True\n") == ("processes", True), outcome


@pytest.mark.skipif(os.getuid() != 0, reason="only root needs a control group")
@pytest.mark.parametrize("victim", ["nobody", "guard", "runner"])
async def test_the_group_of_a_command_goes_with_it(home, victim):
    sandbox = await proved(sandbox_in(home))
    mark = f"4716{os.getpid()}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.run(f"sleep {mark}; :", seconds=60))
        with anyio.fail_after(60):
            while not (found := marked(f"sleep\0{mark}")):
                await anyio.sleep(0.02)
        (guard,) = (each for each in own_children() if set(found) & set(descendants(each)))
        (runner,) = descendants(guard)[:1]
        made = {group for group in groups_left() if group.name == f"squidbot-{guard}"}
        assert len(made) == 1
        if victim == "nobody":
            tasks.cancel_scope.cancel()
        else:
            os.kill(guard if victim == "guard" else runner, signal.SIGKILL)
    with anyio.fail_after(60):
        while made & groups_left():
            await anyio.sleep(0.02)


# ── what a command has for itself ──


async def test_its_own_folder_is_gone_after_it_whatever_it_has_done_to_it(sandbox, home):
    said = await sandbox.run(
        'cd "$TMPDIR" && mkdir -p a/b && touch a/b/c && ln -s /etc link && echo "$TMPDIR" && chmod 0 a/b a 2>&1; true',
        seconds=20,
    )
    assert said.status == 0
    assert list((home / "run" / "commands").iterdir()) == []


async def test_what_a_crash_left_is_removed_by_the_next_trial(sandbox, home):
    left = home / "run" / "commands" / "left"
    left.mkdir(parents=True)
    (left / "x").write_text("x")
    await sandbox.prove()
    assert list((home / "run" / "commands").iterdir()) == []


async def test_a_script_that_is_too_long_for_an_argument_runs(sandbox):
    """More than 128 KiB in one argument are E2BIG."""
    script = "# " + "x" * 300_000 + "\necho done"
    outcome = await sandbox.run(script, seconds=20)
    assert (outcome.status, outcome.head) == (0, b"done\n")


async def test_work_stays_and_is_found_again(sandbox):
    await sandbox.run("echo kept > file", seconds=20)
    assert (await sandbox.run("cat file", seconds=20)).head == b"kept\n"
    assert (sandbox.work / "file").read_text() == "kept\n"


async def test_ordinary_work_is_possible(sandbox, home):
    """Pipes, processes in the background, signals to one's own, rights of one's own files through a descriptor."""
    (home / "workspace" / "project").mkdir()
    (home / "workspace" / "notes.txt").write_text("one\ntwo\n")
    command = """
    set -e
    wc -l < ../notes.txt
    echo three >> ../notes.txt
    cd ../project && mkdir -p src && echo hi > src/a && mv src/a b && cat b && ln -s b c && cat c
    sleep 30 & kill $!; wait $! 2>/dev/null || true
    seq 1 1000 | sort -r | head -1
    cp -p b d && tar cf x.tar b d && mkdir y && tar xf x.tar -C y && ls y | wc -l
    echo "$HOME" | grep -q work
    printf '#!/bin/sh\necho ran\n' > script && chmod +x script && ./script
    chmod 644 b && touch -d yesterday b
    """
    if landlock_version() < 6:  # before Linux 6.12 a command sends no signals
        command = command.replace("30 & kill $!;", "0.1 &")
    outcome = await sandbox.run(command, seconds=30)
    assert outcome.status == 0, outcome
    assert outcome.head.split() == [b"2", b"hi", b"hi", b"999", b"2", b"ran"]


async def test_a_program_that_does_not_exist_is_said_so(sandbox):
    outcome = await sandbox.run("no-such-program-here", seconds=20)
    assert outcome.status == 127
    assert b"not found" in outcome.head


async def test_nothing_runs_before_the_trial(home):
    with pytest.raises(RuntimeError):
        await sandbox_in(home).run("true", seconds=5)


async def test_a_runner_that_cannot_do_its_work_says_why(home):
    """A folder that is gone is an error of its own, not an answer of the program."""
    sandbox = await proved(sandbox_in(home))
    order = await sandbox._order(["/bin/sh", "-c", "true"], replace(SMALL, seconds=5))
    outcome = await process.run({**order, "directory": "/no/such/folder"})
    assert "FileNotFoundError" in outcome.error
    assert outcome.status is None


async def test_a_command_leaves_processor_and_disk_to_others(home):
    """19 steps nicer than the daemon, as far as there are any, and of the disk what nobody else wants."""
    sandbox = await proved(sandbox_in(home, limits=replace(SMALL, nice=19)))
    code = """
    import ctypes, os
    print(os.nice(0), ctypes.CDLL(None).syscall({"x86_64": 252, "aarch64": 31}[os.uname().machine], 1, 0) >> 13)
    """
    outcome = await sandbox.run(python(code), seconds=20)
    assert [int(word) for word in outcome.head.split()] == [min(19, os.nice(0) + 19), 3], outcome


@pytest.mark.parametrize("guarded", [True, False], ids=["as it is", "control"])
@pytest.mark.parametrize("victim", ["guard", "runner"])
async def test_the_tree_ends_with_a_runner_that_is_killed(home, monkeypatch, victim, guarded):
    """SIGKILL of either of its two processes: the other one ends all; alone (the control) it leaves what left it."""
    if not guarded:
        if victim == "runner":
            pytest.skip("there is one process")
        alone = "from agent_core.children import confined_child as child; child._guard = lambda _: None; child.main()"
        monkeypatch.setattr(process, "_CODE", f"import sys; sys.path.append(sys.argv[1]); {alone}")
    sandbox = await proved(sandbox_in(home))
    mark = f"4715{os.getpid()}"
    command = f"for i in 1 2 3 4; do setsid sleep {mark} & sleep {mark} & done; wait"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.run(command, seconds=60))
        with anyio.fail_after(60):
            while len(found := marked(f"sleep\0{mark}")) < 8:
                await anyio.sleep(0.02)
        (guard,) = (each for each in own_children() if set(found) & set(descendants(each)))
        (runner,) = descendants(guard)[:1]
        os.kill(guard if victim == "guard" else runner, signal.SIGKILL)
    if guarded:
        await none_left(f"sleep\0{mark}")
        return
    left = marked(f"sleep\0{mark}")
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left != []
