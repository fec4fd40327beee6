"""
bubblewrap instead of Landlock: the strongest that holds is taken, and one that is missing or lies is not.

Where it is not installed, or namespaces are off, most of this is a skip; `test_escapes` runs all attempts in it.
"""

from __future__ import annotations

import os
import platform
import stat
from pathlib import Path

import anyio
import pytest

from agent_core.children import bubblewrap, command_sandbox
from agent_core.children import order as process
from agent_core.children.order import landlock_version

from .conftest import proved, sandbox_in
from .test_limits import FORK_BOMB, MANY_FILES, MEMORY_OF_MANY, SMALL, marked, none_left, python
from .test_standing import BARE, NOBODY, OTHER, tried

BWRAP = bubblewrap.find_program()
pytestmark = [
    pytest.mark.skipif(
        landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
        reason="this kernel has no Landlock, or the machine is not known",
    ),
]
needs_bwrap = pytest.mark.skipif(not BWRAP, reason="bubblewrap is not installed")


def program(tmp_path, text):
    """A bubblewrap of our own."""
    path = tmp_path / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


LIES = """
while [ "$1" != -- ]; do
  [ "$1" = --chdir ] && cd "$2"
  shift
done
shift
exec "$@"
"""
"""Takes all arguments, and runs the program as it is."""


@needs_bwrap
async def test_the_strongest_that_holds_is_taken(home):
    sandbox = sandbox_in(home, backend="auto")
    await proved(sandbox)
    if "bubblewrap" not in sandbox.proof.told:
        pytest.skip("bubblewrap does not work on this machine")
    assert (await sandbox.run("echo $((40 + 2))", seconds=10)).head == b"42\n"


@needs_bwrap
@pytest.mark.parametrize(
    ("moments", "told"), [(1, "bubblewrap"), (2, "the trial of the sandbox did not end in time")]
)
async def test_a_busy_moment_takes_no_stronger_one_away(home, monkeypatch, moments, told):
    """What did not end in time is tried once more; a machine that is busy for longer has no weaker one either."""
    await proved(sandbox_in(home, backend="bubblewrap"))
    run, busy = process.run, [process.ProgramOutcome(limit="time")] * moments

    async def slow_at_first(order, serve=None):
        return busy.pop() if busy else await run(order, serve)

    monkeypatch.setattr(process, "run", slow_at_first)
    sandbox = sandbox_in(home, backend="auto")
    proof = await sandbox.prove()
    assert proof.told.startswith(told)
    assert proof.temporary is not proof.held
    assert (await sandbox.prove()).told.startswith("bubblewrap"), "later it is not busy any more"


@needs_bwrap
async def test_its_own_first_process_is_nothing_that_a_command_has_left(home):
    """The control is a command that leaves a process behind; in a namespace the kernel may be quicker."""
    sandbox = await proved(sandbox_in(home, backend="bubblewrap"))
    harmless = [await sandbox.run("echo hi | cat", seconds=10) for _ in range(4)]
    assert [run.ended for run in harmless] == [0] * 4
    control = await proved(sandbox_in(home, backend="landlock"))
    assert (await control.run("sleep 60 & true", seconds=10)).ended == 1


async def test_where_it_is_missing_landlock_is_taken(home):
    proof = await sandbox_in(home, backend="auto", wrapper="").prove()
    assert proof.held, str(proof)
    assert proof.told == f"Landlock {landlock_version()} and seccomp"


async def test_where_it_is_missing_and_wanted_there_is_no_shell(home):
    sandbox = sandbox_in(home, backend="bubblewrap", wrapper="")
    proof = await sandbox.prove()
    assert str(proof) == "there is no bubblewrap; install it (bwrap), or let backend be auto"
    with pytest.raises(RuntimeError):
        await sandbox.run("true", seconds=5)


async def test_one_that_lies_is_seen_through(home, tmp_path):
    """It runs everything, and holds nothing."""
    liar = program(tmp_path, LIES)
    sandbox = sandbox_in(home, backend="bubblewrap", wrapper=liar)
    proof = await sandbox.prove()
    assert proof.held is False
    for what in ("own files", "rights", "environment", "end other", "control socket", "services", "write"):
        assert what in proof.told
    with pytest.raises(RuntimeError):
        await sandbox.run("true", seconds=5)
    assert (await sandbox_in(home, backend="auto", wrapper=liar).prove()).told.startswith("Landlock")


@needs_bwrap
@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        (("--unshare-all", "--seccomp"), "control socket"),
        (("--remount-ro",), "write outside"),
        (("--seccomp", "--unshare-all"), "services"),
    ],
)
async def test_one_that_leaves_something_out_is_seen_through(home, tmp_path, left_out, told, monkeypatch):
    """The negative control: the real one without a part of what it is told, in a world that it may see."""
    real = bubblewrap.wrap_command

    def less(*given, **how):
        line, kept = real(*given, **how), []
        while line:
            word = line.pop(0)
            if word == "--":
                return [*kept, "--bind", "/tmp", "/tmp", word, *line]
            if word in left_out:
                if word != "--unshare-all":
                    line.pop(0)
                continue
            kept.append(word)
        raise AssertionError

    await proved(sandbox_in(home, backend="bubblewrap"))
    monkeypatch.setattr(bubblewrap, "wrap_command", less)
    proof = await sandbox_in(home, backend="bubblewrap").prove()
    assert proof.held is False
    assert told in proof.told


async def test_one_that_hangs_holds_nothing_up(home, tmp_path, monkeypatch):
    """With some filters around it bubblewrap waits for ever instead of failing. The control is busy."""
    monkeypatch.setattr(command_sandbox, "_STILL_LIMIT_S", 0.5)
    hangs = program(tmp_path, "sleep 4799")
    proof = await sandbox_in(home, backend="bubblewrap", wrapper=hangs).prove()
    assert (proof.held, proof.temporary) == (False, False)
    assert "it hangs" in proof.told
    await none_left("sleep\x004799")
    for wrapper in (hangs, program(tmp_path, "exit 1")):
        held = await sandbox_in(home, backend="auto", wrapper=wrapper).prove()
        assert held.told.startswith("Landlock")
    monkeypatch.setattr(command_sandbox, "_PROBE_LIMIT_S", 0.8)
    busy = program(tmp_path, "while :; do :; done")
    proof = await sandbox_in(home, backend="auto", wrapper=busy).prove()
    assert (proof.held, proof.temporary) == (False, True)
    assert "tries it again" in str(proof)


STARVED = """
echo 0 > /sys/fs/cgroup/cpu/{group}/tasks || exit 1
exec {bwrap} "$@"
"""


@pytest.mark.slow
@needs_bwrap
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a control group")
async def test_a_busy_machine_has_a_shell_all_the_same(home, tmp_path, monkeypatch):
    """It gets a hundredth of a processor. The control is a trial of which the time counts."""
    if not (await sandbox_in(home, backend="bubblewrap").prove()).held:
        pytest.skip("bubblewrap does not work on this machine")
    group = Path(f"/sys/fs/cgroup/cpu/squidbot-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("1000")
    except OSError:
        pytest.skip("no processor can be taken away here")
    try:
        starved = program(tmp_path, STARVED.format(group=group.name, bwrap=BWRAP))
        proof = await sandbox_in(home, backend="bubblewrap", wrapper=starved).prove()
        assert proof.held, str(proof)
        monkeypatch.setattr(command_sandbox, "_PROBE_LIMIT_S", 1.0)
        control = await sandbox_in(home, backend="auto", wrapper=starved).prove()
        assert (control.held, control.temporary) == (False, True), str(control)
    finally:
        group.rmdir()


async def test_what_it_says_is_the_reason(home, tmp_path):
    failing = program(tmp_path, 'echo "bwrap: No permissions to create a new namespace" >&2; exit 1')
    proof = await sandbox_in(home, backend="bubblewrap", wrapper=failing).prove()
    assert proof.held is False
    assert "bwrap: No permissions to create a new namespace" in proof.told
    assert "user namespaces" in proof.help


@needs_bwrap
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_as_another_user():
    """It needs no right but namespaces of users."""
    found = tried([*OTHER, *BARE, "--no-new-privs"], backend="bubblewrap")
    if "does not work here" in found["told"]:
        pytest.skip(found["told"])
    assert found["held"], found["told"]
    assert found["said"] == f"42\n{NOBODY}\n"


@needs_bwrap
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_where_namespaces_of_users_are_off():
    """No shell where it is wanted, and Landlock where the strongest is wanted."""
    found = tried([*OTHER, *BARE], "no namespaces", backend="bubblewrap")
    assert found["held"] is False
    assert "bubblewrap does not work here (bwrap: " in found["told"]
    found = tried([*OTHER, *BARE], "no namespaces", backend="auto")
    assert found["held"], found["told"]
    assert found["told"].startswith("Landlock")


@needs_bwrap
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_what_our_unit_leaves_is_not_enough_for_it():
    found = tried([*OTHER, *BARE, "--no-new-privs"], "unit", backend="auto")
    assert found["held"], found["told"]
    assert found["told"].startswith("Landlock")


# ── at work ──


@pytest.fixture
async def sandbox(home):
    if not BWRAP:
        pytest.skip("bubblewrap is not installed")
    (home / "workspace" / "notes.txt").write_text("one\n")
    return await proved(sandbox_in(home, limits=SMALL, backend="bubblewrap"))


async def test_ordinary_work_is_possible(sandbox, home):
    outcome = await sandbox.run(
        "set -e; wc -l < ../notes.txt; echo two >> ../notes.txt; mkdir -p a; echo hi > a/b; mv a/b c; cat c;"
        "seq 1 1000 | sort -r | head -1; echo x > $TMPDIR/y; cat $TMPDIR/y; id -u",
        seconds=20,
    )
    assert outcome.status == 0, outcome
    assert outcome.head.split() == [b"1", b"hi", b"999", b"x", str(os.getuid()).encode()]
    assert (home / "workspace" / "notes.txt").read_text() == "one\ntwo\n"
    assert (home / "workspace" / "work" / "c").read_text() == "hi\n"
    assert list((home / "run" / "commands").iterdir()) == []


async def test_there_is_nothing_else(sandbox, home):
    """Not only refused: no home, no processes of others, no network but one without anything in it."""
    said = await sandbox.run(f"ls {home}; ls /proc | grep -c '^[0-9]'; ls /var /etc/shadow", seconds=20)
    lines = said.head.decode().splitlines()
    assert "secret" not in lines
    assert int(next(line for line in lines if line.isdigit())) < 10
    assert sum("No such file" in line for line in lines) == 2


@pytest.mark.parametrize(
    "way", ["sleep {mark} &", "setsid sleep {mark} &", "(setsid sh -c 'sleep {mark} &' &);"]
)
async def test_nothing_outlives_its_command(sandbox, way):
    mark = f"4811{os.getpid()}"
    outcome = await sandbox.run(way.replace("{mark}", mark) + " sleep 0.2; echo started", seconds=20)
    assert (outcome.status, outcome.head) == (0, b"started\n")
    assert marked(mark) == []


async def test_a_cancelled_command_ends_with_everything(sandbox):
    mark = f"4812{os.getpid()}"
    with anyio.move_on_after(1.0):
        await sandbox.run(f"setsid sleep {mark} & sleep {mark}", seconds=60)
    await none_left(mark)


async def test_a_fork_bomb(sandbox):
    mark = f"bwrapbomb{os.getpid()}"
    outcome = await sandbox.run(python(FORK_BOMB.format(mark=mark)), seconds=1)
    assert outcome.limit in ("time", "processes")
    assert marked(mark) == []


async def test_memory_disk_and_output(sandbox):
    assert (await sandbox.run(python(MEMORY_OF_MANY), seconds=30)).limit == "memory"
    assert (await sandbox.run(python(MANY_FILES) + "; sleep 20", seconds=30)).limit == "disk"
    assert (await sandbox.run("yes", seconds=30)).limit == "output"


async def test_no_file_gets_a_set_user_id_bit(sandbox):
    await sandbox.run("touch x; chmod 4755 x; cp /bin/sh y; chmod u+s y", seconds=20)
    for name in ("x", "y"):
        assert not (sandbox.work / name).stat().st_mode & stat.S_ISUID


async def test_a_long_script_runs(sandbox):
    script = "# " + "x" * 300_000 + "\necho done"
    outcome = await sandbox.run(script, seconds=20)
    assert (outcome.status, outcome.head) == (0, b"done\n")
