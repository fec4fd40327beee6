"""When the sandbox of the shell is tried again, and what is told of it meanwhile. On virtual time."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from agent_core.children.command_sandbox import CommandSandbox, Proof
from gateway.app.shell_tools import Shell
from gateway.settings import Settings
from gateway.settings.settings import ToolSettings
from gateway.system.home import open_home
from tests.clock import LoopClock

pytestmark = pytest.mark.virtual_time
BUSY = Proof(False, "the trial of the sandbox did not end in time", "it is tried again", temporary=True)
HELD = Proof(True, "Landlock 7 and seccomp")
OUT = Proof(False, "the sandbox does not hold: a command could send datagrams")


@pytest.mark.parametrize("last", [HELD, OUT], ids=["it holds", "it does not hold"])
async def test_without_a_verdict_it_is_tried_again_until_there_is_one(tmp_path, monkeypatch, last):
    """However long the machine is busy; the verdict is final."""
    tried = []

    async def prove(self):
        tried.append(anyio.current_time())
        self.proof = BUSY if len(tried) < 8 else last
        return self.proof

    monkeypatch.setattr(CommandSandbox, "prove", prove)
    settings = Settings(tools=ToolSettings.model_validate({"shell": {"allow": "owner"}}))
    shell = Shell(settings, open_home(tmp_path / "home"), LoopClock(), lambda: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shell.prove)
        await anyio.sleep(1)
        assert shell.state() == {"shell": {"ready": None, "told": str(BUSY)}}
        await anyio.sleep(100_000)
    assert shell.state() == {"shell": {"ready": last.held, "told": str(last)}}
    pauses = [round(after - before) for before, after in pairwise(tried)]
    assert pauses == [20, 120, 600, 1800, 1800, 1800, 1800]
