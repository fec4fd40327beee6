"""
T8, first half: what a command tries in the sandbox is refused, and succeeds outside of it.

All attempts are made by one script (`escapes`), once for each version of Landlock that is held apart and once
without a sandbox.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import pytest

from agent_core.children import order
from agent_core.children.order import landlock_version

from .conftest import proved, sandbox_in
from .escapes import ATTEMPTS, NEEDS_ROOT, NO_CONTROL
from .targets import about, make_home, results_of, targets_in

SCRIPT = Path(__file__).with_name("escapes.py")
KNOWN_MACHINE = platform.machine() in ("x86_64", "aarch64")
pytestmark = pytest.mark.skipif(
    landlock_version() < 1 or not KNOWN_MACHINE,
    reason="this kernel has no Landlock, or the machine is not known",
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Somebody to attack: a process, listeners of each kind, a home for each round."""
    with targets_in(tmp_path_factory.mktemp("s")) as found:
        yield found


BETWEEN = sorted({2, 3, 5} & set(range(2, landlock_version())))
KINDS = [*sorted({1, landlock_version()}), "bubblewrap", "bubblewrap with a proxy"]


@pytest.fixture(
    scope="module", params=[*KINDS, *(pytest.param(version, marks=pytest.mark.slow) for version in BETWEEN)]
)
def inside(request, targets, tmp_path_factory):
    """What came of each attempt in the sandbox, as with a kernel of that version, and with bubblewrap."""

    async def go():
        home = make_home(tmp_path_factory.mktemp("inside") / "home")
        if str(request.param).startswith("bubblewrap"):
            connects = request.param != "bubblewrap"
            sandbox = await proved(sandbox_in(home, backend="bubblewrap", connects=connects))
        else:
            sandbox = await proved(sandbox_in(home, landlock=request.param))
        given = json.dumps(about(targets, home, tmp_path_factory.mktemp("tmp")))
        command = shlex.join([sys.executable, "-I", "-S", str(SCRIPT), given])
        outcome = await sandbox.run(
            command.replace(sys.executable, os.path.realpath(sys.executable)), seconds=25
        )
        assert outcome.status == 0, outcome
        assert (home / "victim").read_text() == "something"
        assert (home / "victim").stat().st_mode & 0o777 == 0o600
        found = results_of((outcome.head + outcome.tail).decode())
        if sandbox.connects:
            assert found.pop("listen_for_others") == "done"  # in a network in which there are none
        return found

    return anyio.run(go)


@pytest.fixture(scope="module")
def outside(targets, tmp_path_factory):
    """What came of each attempt without a sandbox."""
    home = make_home(tmp_path_factory.mktemp("outside") / "home")
    work = home / "workspace" / "work"
    work.mkdir()
    given = about(targets, home, tmp_path_factory.mktemp("tmp"))
    # What a command can be given besides is what the one who starts it leaves open.
    with open(home / "secret", "rb") as leaked:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(SCRIPT), json.dumps(given)],
            cwd=home,
            capture_output=True,
            pass_fds=[leaked.fileno()],
            timeout=25,
            check=True,
            text=True,
        )
    return results_of(done.stdout)


def test_each_is_refused(inside):
    """In the sandbox an attempt comes to nothing, and because it is refused."""
    # In a network of its own there are no others to listen for.
    assert ATTEMPTS.keys() - inside.keys() <= {"listen_for_others"}
    assert {name: came for name, came in inside.items() if not came.startswith("refused")} == {}


def test_each_succeeds_without_a_sandbox(outside):
    """The negative control: the attempts are real ones."""
    expected = set(ATTEMPTS) - NO_CONTROL - (NEEDS_ROOT if os.getuid() else set())
    failed = {name: outside[name] for name in expected if outside[name] != "done"}
    assert {name: came for name, came in failed.items() if name not in MAY_BE_OFF} == {}


MAY_BE_OFF = {
    *("enter_a_user_namespace", "clone_into_a_namespace", "clone_into_a_namespace_by_the_new_call"),
    *("ring", "handle_own_faults", "measure_the_kernel", "load_a_program_into_the_kernel", "keep_a_key"),
    *("ask_for_the_session_keyring", "trace_another", "read_memory_by_call", "type_into_a_terminal"),
    *("mount_something", "set_the_clock", "leave_the_control_group", "connect_to_loopback_by_ipv6"),
    *("change_attributes", "take_a_descriptor_of_another", "open_by_handle", "change_the_kernel"),
    *("enter_a_namespace_of_another", "name_the_machine", "forge_packets", "open_a_disk", "change_the_root"),
    *("list_the_mounts", "raise_a_limit", "have_others_killed_first", "take_back_that_it_gives_way"),
}
"""What containers and careful machines refuse to everybody."""


def test_there_are_enough_attempts():
    assert len(ATTEMPTS) >= 60


async def test_a_sandbox_that_holds_nothing_is_seen_through(home, monkeypatch):
    """The negative control of the trial: with each part left out it says what a command could do."""
    told = {}
    rules, program = order.rules_for, order.filter_program
    everything = lambda version, **_: [("/", order.rights_of_version(version).files)]  # noqa: E731
    nothing = lambda *_, **__: b"\x06\x00\x00\x00\x00\x00\xff\x7f"  # noqa: E731 - allow all calls
    for name, replaced in {
        "no rules": (everything, program),
        "no filter": (rules, nothing),
        "neither": (everything, nothing),
    }.items():
        monkeypatch.setattr(order, "rules_for", replaced[0])
        monkeypatch.setattr(order, "filter_program", replaced[1])
        proof = await sandbox_in(home, landlock=1).prove()
        assert proof.held is False
        told[name] = proof.told
    assert "read squidbot's own files" in told["no rules"]
    assert "read files of other users" in told["no rules"]
    assert "control socket" in told["no filter"]
    for what in ("files", "rights", "end other", "socket", "services", "datagrams", "write"):
        assert what in told["neither"]


async def test_a_sandbox_that_is_none_is_seen_through(home, monkeypatch):
    """A backend that claims to confine and starts the program as it is."""
    monkeypatch.setattr(
        order, "sandbox_of", lambda *_: {"confine": False, "groups": [], "rules": [], "limits": []}
    )
    proof = await sandbox_in(home).prove()
    assert proof.held is False
    for what in (
        "own files",
        "other users",
        "rights",
        "environment",
        "end other",
        "socket",
        "services",
        "datagrams",
        "write",
    ):
        assert what in proof.told
    with pytest.raises(RuntimeError):
        await sandbox_in(home).run("true", seconds=5)


async def test_where_temporary_files_may_be_read_the_trial_holds(home, tmp_path, monkeypatch):
    """The file of another user lies somewhere else then."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    proof = await sandbox_in(home, readable=[shared]).prove()
    assert proof.held, str(proof)
