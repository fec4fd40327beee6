"""Tools of servers through the whole gateway: asked about, run once, called unknown; nobody else waits."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import OutboundKind
from tests.doubles.agent import StreamingModel, call
from tests.integration.gateway_world import Scenario, world

pytestmark = pytest.mark.integration
ANN, BOB = "@ann:hs.test", "@bob:hs.test"
HOSTILE = Path(__file__).resolve().parents[1] / "hostile_mcp.py"


class Caller(StreamingModel):
    """Calls the tool that the question names, and says what came of it. Else an echo."""

    def __init__(self) -> None:
        self.names: list[set[str]] = []

    async def answer(self, messages, tools):
        self.names.append({tool.name for tool in tools})
        last = messages[-1]
        question = next(each for each in reversed(messages) if each.role == "user").content
        wanted = next((word for word in question.split() if "__" in word), "")
        if not wanted:
            yield "echo"
        elif last.role == "tool" and "It is loaded now" not in last.content:
            yield f"so: {last.content}"
        else:
            yield call(wanted, id=f"c{len(messages)}", text="hello")


def server(behaviour: str, *more: Any, **settings: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(HOSTILE), behaviour, *map(str, more)], **settings}


@asynccontextmanager
async def house(root: Path, model: Caller, **servers: Any) -> AsyncIterator[Scenario]:
    pytest.importorskip("mcp")
    settings = {
        "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
        "mcp": {"servers": servers},
    }
    async with world(root, name="matrix", settings=settings, models={"demo": model}) as one:
        mcp = one.built.mcp
        assert mcp is not None
        with anyio.fail_after(60):
            for each in mcp.by_name.values():
                while each.settings.start_s > 1 and not each.is_listed:
                    await anyio.sleep(0.02)
                await each.show_changes()
                await each.approve([])
            listed = [each for each in mcp.by_name.values() if each.is_listed]
            await one.server.answers(len(listed), conversation=f"dm-{ANN}")  # of each the owner is told
        yield one


async def receipts(one: Scenario) -> list[Any]:
    return [row for row in await one.built.store.receipts.newest(limit=20) if "__" in row.tool]


async def test_a_declared_tool_is_called_and_an_undeclared_one_is_asked_about(tmp_path: Path) -> None:
    """The yes is for this call; it is made once, and what it did can be looked up."""
    log, model = tmp_path / "calls", Caller()
    good = server("honest", log, effects={"echo": "private_read"})
    async with house(tmp_path / "home", model, good=good, wild=server("honest", log)) as one:
        said = await one.asked("please good__echo", person=ANN)
        assert said.text.startswith("so:")
        assert "hello" in said.text
        assert log.read_text() == "hello\n"
        assert await receipts(one) == []

        question = await one.asked("please wild__echo", person=ANN)
        assert question.kind is OutboundKind.NOTICE
        assert "wild__echo" in question.text
        assert log.read_text() == "hello\n"
        said = await one.asked("yes", person=ANN)
        while not said.text.startswith("so:"):
            said = (
                await one.server.answers(len(one.server.seen(f"dm-{ANN}")) + 1, conversation=f"dm-{ANN}")
            )[-1]
        assert log.read_text() == "hello\nhello\n"
        (receipt,) = await receipts(one)
        assert (receipt.tool, receipt.effect, receipt.outcome.value) == ("wild__echo", "execute", "done")


async def test_a_call_that_a_server_loses_is_unknown_and_made_once(tmp_path: Path) -> None:
    log, model = tmp_path / "calls", Caller()
    bad = server("crash", log, effects={"echo": "write_workspace"}, trust="own")
    async with house(tmp_path / "home", model, bad=bad) as one:
        said = await one.asked("please bad__echo", person=ANN)
        assert "The outcome is unknown" in said.text
        assert log.read_text() == "hello\n"
        (receipt,) = await receipts(one)
        assert receipt.outcome.value == "unknown"


async def test_nobody_waits_for_a_server(tmp_path: Path) -> None:
    """It is ready without one that never is; while one is silent in a call, others are answered."""
    model = Caller()
    servers = {
        "never": server("mute", start_s=1),
        "deaf": server("silent_call", tmp_path / "calls", effects={"echo": "private_read"}, timeout_s=300),
    }
    async with house(tmp_path / "home", model, **servers) as one:
        one.server.say(ANN, "please deaf__echo")
        with anyio.fail_after(60):
            while not (tmp_path / "calls").exists():
                await anyio.sleep(0.02)
        for _ in range(3):
            assert (await one.asked("hello", person=BOB)).text == "echo"
        assert len(one.server.seen(f"dm-{ANN}")) == 1
        assert not any("__" in name for names in model.names[-3:] for name in names)


@pytest.mark.parametrize("name", ["GOOD__Echo", "mcp__good__echo", "__echo"])
async def test_a_name_that_is_nearly_that_of_one_tool_runs_it(tmp_path: Path, name: str) -> None:
    """The control: one that may be either of two tools."""
    log = tmp_path / "calls"
    good = server("honest", log, effects={"echo": "private_read"})
    async with house(tmp_path / "one", Caller(), good=good) as one:
        assert "hello" in (await one.asked(f"please {name}", person=ANN)).text
        assert log.read_text() == "hello\n"
    async with house(tmp_path / "two", Caller(), first=good, second=good) as one:
        assert "There is no tool" in (await one.asked("please __echo", person=ANN)).text
        assert log.read_text() == "hello\n"
