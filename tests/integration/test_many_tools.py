"""Three hundred tools through the whole gateway: what it costs to reach one, over a restart and in later turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.system.home import open_home
from tests.doubles.agent import StreamingModel, call
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.integration.gateway_world import world
from tests.many_tools import THE_217TH, three_hundred

ANN = "@ann:hs.test"
SETTINGS = {"owner": {"aliases": [{"channel": "matrix", "address": ANN}]}}


class Seeker(StreamingModel):
    """Wants the 217th tool: calls it where it is in the request, else looks for it by what it does."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.wait: anyio.Event | None = None
        self.looks = True

    async def answer(self, messages, tools):
        names = [tool.name for tool in tools]
        self.asked.append(names)
        last = messages[-1]
        if last.role == "tool" and self.wait is not None:
            self.wait.set()
            await anyio.sleep_forever()
        elif last.role == "tool" and "is there" in last.content:
            yield f"so: {last.content}"
        elif THE_217TH in names or not self.looks:
            yield call(THE_217TH, who="ann")
        else:
            yield call("find_tools", query="list the folders of the house")


def the_217th(tools):
    assert (len(tools), tools[216].name) == (300, THE_217TH)
    return tools[216]


def loaded(names: Sequence[str]) -> list[str]:
    """The tools of servers among them, which have to be the last ones."""
    found = [name for name in names if "__" in name]
    assert list(names[len(names) - len(found) :]) == found
    return found


@pytest.mark.parametrize("looks", [True, False])
async def test_the_217th_of_300_tools_costs_at_most_two_more_calls(tmp_path: Path, looks: bool) -> None:
    """Looked for, or called at once because its name was known. In later turns it costs none, nor in a new process."""
    model, server = Seeker(), LoopbackServer()
    model.looks = looks
    for turn in range(3):
        model.asked.clear()
        kit = three_hundred()
        async with world(
            tmp_path, server=server, name="matrix", settings=SETTINGS, models={"demo": model}, tools=kit
        ) as one:
            assert "ann is there" in (await one.asked("is ann in?", person=ANN)).text
        assert the_217th(kit).runs == ["ann"]
        assert len(model.asked) == (3 if turn == 0 else 2)  # without anything to find it would be 2
        assert (THE_217TH in loaded(model.asked[0])) == (turn > 0)
        assert THE_217TH in loaded(model.asked[-1])


async def test_a_process_that_ends_between_finding_and_calling(tmp_path: Path) -> None:
    """The next one goes on with the very list of tools, and looks for nothing again."""
    model, server = Seeker(), LoopbackServer()
    model.wait = anyio.Event()
    overrides = Overrides(
        channels={"matrix": (LoopbackChannel(server, name="matrix"), "each")},
        allow_from={"matrix": ("*",)},
        models={"demo": model},
        tools=three_hundred(),
    )
    built = await build(Settings.model_validate(SETTINGS), open_home(tmp_path), overrides)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        server.say(ANN, "is ann in?")
        await model.wait.wait()
        tasks.cancel_scope.cancel()
    assert len(model.asked) == 2
    before, model.wait = model.asked[-1], None
    assert THE_217TH in loaded(before)

    kit = three_hundred()
    model.asked.clear()
    async with world(
        tmp_path, server=server, name="matrix", settings=SETTINGS, models={"demo": model}, tools=kit
    ):
        (told,) = await server.answers(1, conversation=f"dm-{ANN}", within_s=60)
    assert "ann is there" in told.text
    assert the_217th(kit).runs == ["ann"]
    assert model.asked == [before, before]


async def test_tools_of_other_people_cannot_be_found(tmp_path: Path) -> None:
    """The owner's tools are neither named nor found, nor run, for somebody else."""
    model = Guest()
    async with world(tmp_path, name="matrix", settings=SETTINGS, models={"demo": model}) as one:
        told = (await one.asked("hello", person="@bob:hs.test")).text
        assert "move_file" not in told.replace("no tool 'move_file'", "")
        assert "There is no tool 'move_file'" in told
        assert "delete_file" not in told
        told = (await one.asked("hello", person=ANN)).text
        assert "- delete_file: Delete a file" in told


class Guest(StreamingModel):
    """Looks for a tool of the owner, calls another one, and tells all that it was told."""

    async def answer(self, messages, tools):
        results = [message.content for message in messages if message.role == "tool"]
        if not results:
            yield call("find_tools", query="delete a file")
        elif len(results) == 1:
            yield call("move_file", "2", path="a", to="b")
        else:
            told = [tool.description for tool in tools if tool.name == "find_tools"]
            yield "\n".join([*results, *told])
