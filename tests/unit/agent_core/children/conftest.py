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


async def proved(sandbox):
    """The sandbox, proved; a machine that cannot have one says so by a skip."""
    proof = await sandbox.prove()
    if sandbox._backend == "bubblewrap" and "bubblewrap" in proof.told and not proof.held:
        pytest.skip(f"no bubblewrap on this machine: {proof}")
    if not proof.held and landlock_version() < 1:
        pytest.skip(f"no sandbox on this machine: {proof}")
    assert proof.held, str(proof)
    return sandbox
