"""A command that wants more processors than there are: a few of its processes go on at once, each in its turn."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agent_core.sandbox import process
from agent_core.sandbox.process import landlock_version
from agent_core.sandbox.process_tree import descendants, threads_in
from agent_core.sandbox.rights import Limits
from agent_core.sandbox.time_slices import Rotation

from .conftest import proved, sandbox_in
from .test_limits import python

needs_sandbox = pytest.mark.skipif(
    landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
    reason="this kernel has no Landlock, or the machine is not known",
)
LOOKS = 20


def looks(rotation, threads, number):
    """How often each process goes on, and how many threads do at once; who does not wait wants to go on."""
    gone, at_once, held = dict.fromkeys(threads, 0), [], []
    for _ in range(number):
        held = rotation.held_back({pid: n for pid, n in threads.items() if pid not in held}, threads)
        going = [pid for pid in threads if pid not in held]
        at_once.append(sum(threads[pid] for pid in going))
        for pid in going:
            gone[pid] += 1
    return gone, at_once


def test_few_are_left_alone():
    gone, _ = looks(Rotation(2), dict.fromkeys(range(8), 1), 10)
    assert set(gone.values()) == {10}


@pytest.mark.parametrize(("processors", "expected"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_of_many_one_goes_on_for_all_processors_but_one_and_each_as_often(processors, expected):
    gone, at_once = looks(Rotation(processors), dict.fromkeys(range(40), 1), 200)
    assert set(at_once) == {expected}
    assert set(gone.values()) == {5 * expected}


def test_a_process_of_many_threads_goes_on_less_often():
    gone, at_once = looks(Rotation(2), {1: 40, 2: 1, 3: 1}, 420)
    assert sum(at_once) / len(at_once) <= 1
    assert gone[1] >= 7
    assert gone[2] >= 7


def test_when_fewer_want_to_all_go_on_again():
    rotation = Rotation(2)
    assert len(rotation.held_back(dict.fromkeys(range(9), 1), range(9))) == 8
    assert rotation.held_back({0: 1}, range(6)) == []
    assert rotation.held_back({}, range(6)) == []


def test_without_a_limit_nobody_waits():
    assert Rotation(0).held_back(dict.fromkeys(range(99), 1), range(99)) == []


# ── for real ──

BOMBS = {
    "that forks": """
        import os
        while True:
            try: os.fork()
            except OSError: pass
    """,
    "of threads": """
        import _thread, hashlib
        def spin():
            while True: hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10**7)  # without the lock of the interpreter
        for _ in range(30): _thread.start_new_thread(spin, ())
        spin()
    """,
    "of short lives": """
        import os
        for _ in range(4): os.fork()
        while True:
            try:
                if os.fork() == 0: os._exit(0)
            except OSError: pass
            try: os.wait()
            except OSError: pass
    """,
}


async def wanted_at_once(home, backend, bomb, number):
    """How many threads of a bomb want a processor, at looks while it runs in the sandbox; the middle one."""
    limits = replace(Limits(session_nice=0), processes=40 if bomb == "that forks" else 100)
    sandbox = await proved(sandbox_in(home, backend=backend, limits=limits))
    order = await sandbox._order(["/bin/sh", "-c", python(BOMBS[bomb])], replace(sandbox.limits, seconds=60))
    seen = []

    async def look():
        await anyio.sleep(1.0)
        while len(seen) < LOOKS:
            await anyio.sleep(0.05)
            seen.append(sum(threads_in(pid) for pid in descendants()))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await process.run({**order, "processors": number})
        raise AssertionError("it has ended by itself")
    return sorted(seen)[LOOKS // 2]


@needs_sandbox
@pytest.mark.parametrize(
    ("bomb", "backend"),
    [
        ("that forks", "landlock"),
        ("that forks", "bubblewrap"),
        *(
            pytest.param(bomb, "landlock", marks=pytest.mark.slow)
            for bomb in ("of threads", "of short lives")
        ),
    ],
)
async def test_a_bomb_wants_no_more_than_a_few_processors(home, bomb, backend):
    """Counted, not timed. The control has no rotation."""
    assert await wanted_at_once(home, backend, bomb, 2) <= 8
    if backend == "landlock":
        assert await wanted_at_once(home, backend, bomb, 0) >= 12


@needs_sandbox
async def test_one_that_lets_its_own_go_on_is_ended(home):
    """Who is stopped may be let go on by another process of the command, but not for long."""
    if landlock_version() < 6:
        pytest.skip("here a command sends no signals")
    limits = replace(Limits(), processes=40, session_nice=0)
    sandbox = await proved(sandbox_in(home, limits=limits))
    code = """
        import os, signal
        for _ in range(5):
            try: os.fork()
            except OSError: pass
        while True:
            try: os.kill(-1, signal.SIGCONT)
            except OSError: pass
    """
    assert (await sandbox.run(python(code), seconds=60)).limit == "processes"


@needs_sandbox
async def test_work_of_many_processes_is_done(home):
    """All of 30 that compute end by themselves, and so does one that waits for them."""
    sandbox = await proved(sandbox_in(home))
    code = """
        import os
        started = [pid for _ in range(30) if (pid := os.fork()) or (sum(range(3_000_000)), os._exit(7))]
        print({os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started})
    """
    outcome = await sandbox.run(python(code), seconds=100)
    assert (outcome.status, outcome.head) == (0, b"{7}\n"), outcome


def test_a_container_with_a_part_of_the_machine_counts_that(tmp_path, monkeypatch):
    whole = len(os.sched_getaffinity(0))
    for told, expected in (("max 100000", whole), ("50000 100000", 1), (f"{whole}00000 100000", whole)):
        monkeypatch.setattr(Path, "read_text", lambda *_, told=told, **__: told)
        assert process.processors() == expected
