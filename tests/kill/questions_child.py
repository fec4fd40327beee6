"""
The process that is killed: a gateway whose model wants calls of three tools in one answer, each with a yes.

``python -m tests.kill.questions_child FOLDER SECONDS_AHEAD`` runs until it is killed; its clock is that far ahead.
With ``forgetful`` behind it has a defect: it keeps no record of the calls that it has made.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from agent_core.models import ToolResult
from agent_core.tools.effects import Effect
from gateway.system.clock import SystemClock
from gateway.turns.step_journal import StoreStepJournal
from tests.doubles.agent import StreamingModel, call
from tests.doubles.loopback import FileLoopbackServer
from tests.integration.gateway_world import world
from tests.kill.points import append_line

MANY = 12
"""So many calls of the first tool: more than one question is about."""
TOOLS = ("write_down", "note", "stamp")


class Kept:
    """A tool that adds a line to a file."""

    description, effect = "Keeps something.", Effect.PERSIST
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"what": {"type": "string"}}}

    def __init__(self, name: str, log: Path) -> None:
        self.name, self._log = name, log

    async def execute(self, **arguments: Any) -> ToolResult:
        append_line(self._log, f"{self.name} {arguments['what']}")
        return ToolResult(content=f"{self.name} {arguments['what']}: kept")


class Mixed(StreamingModel):
    """Wants everything at once, for whoever asks, and tells what became of it."""

    async def answer(self, messages, tools):
        results = [each.content for each in messages if each.role == "tool"]
        said = messages[-1].content.split()[-1]
        if results:
            yield "so: " + "; ".join(results)
            return
        for number in range(MANY):
            yield call("write_down", id=f"w{number}", what=f"{said}-{number}")
        yield call("note", id="n", what=said)
        yield call("stamp", id="s", what=said)


class Ahead(SystemClock):
    """A clock that is ahead."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._by = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._by


async def live(folder: Path, ahead_s: float) -> None:
    """Until it is killed."""
    async with world(
        folder / "home",
        server=FileLoopbackServer(folder / "server"),
        name="matrix",
        settings={"tools": {"require_approval": list(TOOLS), "approval_timeout_minutes": 60}},
        models={"demo": Mixed()},
        tools=[Kept(name, folder / "kept") for name in TOOLS],
        clock=Ahead(ahead_s),
    ):
        await anyio.sleep_forever()


async def forgotten(*_: Any, **__: Any) -> None:
    """No record of a call."""


if __name__ == "__main__":
    if "forgetful" in sys.argv:
        StoreStepJournal.record_tool_start = forgotten
        StoreStepJournal.record_tool_result = forgotten
    anyio.run(live, Path(sys.argv[1]), float(sys.argv[2]))
