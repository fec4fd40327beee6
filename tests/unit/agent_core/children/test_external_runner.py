"""
Runs whose runner is elsewhere: the listener that it gives away, as in a unit of its own for each command.

For the service manager there is a server here that starts the runner in a network of its own for each connection,
by bubblewrap with nothing else taken away. The real ones are in tests/deploy.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from agent_core.children import bubblewrap, process_tree
from agent_core.children.command_sandbox import _GROUPS, CommandSandbox, SandboxFolders
from agent_core.children.order import landlock_version

from .conftest import HERE
from .escaping import FETCH, serve_a_page

pytestmark = [
    pytest.mark.skipif(
        landlock_version() < 4
        or not bubblewrap.find_program()
        or platform.machine() not in ("x86_64", "aarch64"),
        reason="this kernel has no Landlock, bubblewrap is not installed, or the machine is not known",
    ),
]
RUNNER = [
    *(getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c"),
    f"import sys; sys.path.append({str(HERE.parents[3])!r}); from agent_core.children.confined_child import main; main(linked=True)",
]
APART = ["bwrap", "--unshare-net", "--dev-bind", "/", "/", "--"]


@asynccontextmanager
async def service_manager(path, words):
    """Starts ``words`` for each connection, which is their standard input and output; root's have a TasksMax=."""
    running = []
    group = process_tree.make_group(list(_GROUPS), 48) if os.getuid() == 0 else ""
    if not group and os.getuid() == 0:
        pytest.skip("no control group for processes can be made")

    def enter():
        if group:
            process_tree.enter_group(group)

    def started(given):
        running.append(
            subprocess.Popen(words, stdin=given, stdout=given, start_new_session=True, preexec_fn=enter)
        )
        given.close()

    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(str(path))
        waiting.listen(8)
        waiting.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(waiting, lambda: started(waiting.accept()[0]))
        try:
            yield
        finally:
            loop.remove_reader(waiting)
            for one in running:
                one.wait(20)
            assert not group or process_tree.remove_group(group)


def sandbox_at(home, path):
    (home / "workspace").mkdir(parents=True)
    return CommandSandbox(
        SandboxFolders(workspace=home / "workspace", home=home, private_in=home / "commands"),
        backend="unit",
        unit=path,
        connects=True,
    )


async def test_a_command_reaches_the_proxy_and_nothing_else(tmp_path):
    path = tmp_path / "s"
    async with service_manager(path, APART + RUNNER):
        sandbox = sandbox_at(tmp_path / "home", path)
        proof = await sandbox.prove()
        assert proof.held, str(proof)
        assert proof.told.endswith(", with a proxy to the hosts of tools.shell.network")
        outcome = await sandbox.run(f'python3 -I -c "{FETCH}"', seconds=30, serve=serve_a_page)
        assert (outcome.status, outcome.head) == (0, b"GET http://data.example/ HTTP/1.1\n"), outcome
        with socket.create_server(("127.0.0.1", 0)) as here:
            port = here.getsockname()[1]
            direct = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
            outcome = await sandbox.run(f'python3 -I -c "{direct}"', seconds=30, serve=serve_a_page)
        assert outcome.status == 1
        assert b"Connection refused" in outcome.head


async def test_a_runner_in_the_daemons_network_is_refused(tmp_path):
    """The control: there is no listener where everybody could use it, and no shell."""
    path = tmp_path / "s"
    async with service_manager(path, RUNNER):
        sandbox = sandbox_at(tmp_path / "home", path)
        proof = await sandbox.prove()
    assert proof.held is False
    assert "no network of its own" in proof.told
