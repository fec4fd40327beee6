"""What a receipt says about taking an effect back is a command that takes it back."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.models import ToolCall
from gateway.store.model import EffectReceipt
from tests.command_line import squidbot
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import LoopbackServer
from tests.integration.gateway_world import Scenario, world

pytestmark = pytest.mark.integration
ANN = "@ann:hs.test"
LATER = {"action": "add", "kind": "remind", "text": "tea", "in_minutes": 600}


class Doer(StreamingModel):
    """Makes the given call for each question, again if its tool had to be loaded; a job of it never ends."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = list(calls)

    async def answer(self, messages, tools):
        last = messages[-1]
        if "[This is the background job" in last.content:
            await anyio.sleep_forever()
        name, arguments = self._calls[0]
        if last.role == "tool" and "It is loaded now" not in last.content:
            self._calls.pop(0)
            yield "done"
        else:
            yield ToolCall(id="c", name=name, arguments=arguments)


def house(root: Path, server: LoopbackServer, *calls: tuple[str, dict[str, Any]]) -> Any:
    settings = {"owner": {"aliases": [{"channel": "matrix", "address": ANN}]}}
    return world(root, server=server, name="matrix", settings=settings, models={"demo": Doer(*calls)})


async def receipts(one: Scenario, count: int) -> list[EffectReceipt]:
    for _ in range(count):
        assert (await one.asked("do it", person=ANN)).text == "done"
    return await one.built.store.receipts.newest(limit=count)


async def undo(root: Path, receipt: EffectReceipt) -> str:
    program, *arguments = shlex.split(receipt.undo)
    assert program == "squidbot"
    done = await anyio.to_thread.run_sync(partial(squidbot, root, *arguments))
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


async def test_of_what_is_kept(tmp_path: Path) -> None:
    """Memory, a reminder, a file: taken back one after the other, as a person would who copies the line."""
    calls = [
        ("memory_write", {"content": "- likes tea"}),
        ("memory_write", {"content": "- likes coffee"}),
        ("schedule", LATER),
        ("write_file", {"path": "note.txt", "content": "tea"}),
    ]

    async with house(tmp_path, LoopbackServer(), *calls) as one:
        written, reminder, second, first = await receipts(one, len(calls))
    note, memory = tmp_path / "workspace" / "note.txt", tmp_path / "workspace" / "MEMORY.md"
    assert "coffee" in memory.read_text()
    await undo(tmp_path, second)
    assert "tea" in memory.read_text()
    await undo(tmp_path, first)
    assert "tea" not in (memory.read_text() if memory.exists() else "")
    assert "removed" in await undo(tmp_path, reminder)
    assert note.exists()
    await undo(tmp_path, written)
    assert not note.exists()


@pytest.mark.parametrize(("action", "back"), [("pause", "resume"), ("resume", "pause"), ("remove", "")])
async def test_of_a_change_of_a_reminder(tmp_path: Path, action: str, back: str) -> None:
    """What was removed cannot be brought back, so nothing is said."""
    server = LoopbackServer()
    async with house(tmp_path, server, ("schedule", LATER)) as one:
        (kept,) = await receipts(one, 1)
    name = kept.undo.split()[-1]
    async with house(tmp_path, server, ("schedule", {"action": action, "id": name})) as one:
        (changed,) = await receipts(one, 1)
    assert changed.undo == (f"squidbot cron {back} {name}" if back else "")
    if back:
        await undo(tmp_path, changed)


async def test_of_a_background_job(tmp_path: Path) -> None:
    """It ends the job, here while it runs; `!did` shows the line, too, until the job has ended."""
    async with house(tmp_path, LoopbackServer(), ("start_job", {"goal": "count to a million"})) as one:
        (started,) = await receipts(one, 1)
        assert (
            f"undo: `!{started.undo.removeprefix('squidbot ')}`" in (await one.asked("!did", person=ANN)).text
        )
        name = started.undo.split()[-1]
        assert started.undo == f"squidbot jobs stop {name}"
        await one.asked(f"!jobs stop {name}", person=ANN)
        assert "stopped" in (await one.asked("!jobs", person=ANN)).text
        told = (await one.asked("!did", person=ANN)).text
        assert "start_job" in told
        assert "undo:" not in told  # there is nothing left to stop
