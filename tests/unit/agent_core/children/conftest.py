"""A home with a workspace and a sandbox in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent_core.children.command_sandbox import CommandSandbox, SandboxFolders
from agent_core.children.order import landlock_version
from agent_core.children.rights import Ceilings

from .targets import make_home

HERE = Path(__file__).parent


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home")


def sandbox_in(
    home, *, landlock=None, readable=(), limits=None, backend="landlock", wrapper=None, connects=False
):
    """
    The sandbox of a home in which this interpreter can be run; by itself it gives way to nobody, so that what is
    to happen in it also happens on a machine that is busy with other tests.
    """
    sandbox = CommandSandbox(
        SandboxFolders(
            workspace=home / "workspace",
            home=home,
            private_in=home / "run" / "commands",
            readable=[Path(sys.base_prefix), HERE, *readable],
        ),
        limits=limits or Ceilings(nice=0),
        backend=backend,
        connects=connects,
    )
    sandbox.landlock = sandbox.landlock if landlock is None else landlock
    sandbox.wrapper = sandbox.wrapper if wrapper is None else wrapper
    return sandbox


_PROVED = {}


async def proved(sandbox):
    """
    The sandbox, proved, once for all homes that are alike; a machine that cannot have one says so by a skip.

    Each proof is made of several processes. A test that is about the proof itself calls ``prove``.
    """
    kind = (sandbox._backend, sandbox._may_connect, sandbox.landlock, sandbox.wrapper)
    if kind not in _PROVED:
        _PROVED[kind] = (await sandbox.prove(), sandbox._way)
    proof, sandbox._way = _PROVED[kind]
    sandbox.proof = proof
    if sandbox._backend == "bubblewrap" and "bubblewrap" in proof.told and not proof.held:
        pytest.skip(f"no bubblewrap on this machine: {proof}")
    if not proof.held and landlock_version() < 1:
        pytest.skip(f"no sandbox on this machine: {proof}")
    assert proof.held, str(proof)
    return sandbox
