"""A picture of the workspace is shown to a model that looks at pictures, and named to one that does not."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.openai_server import Call, FakeOpenAI, Say, Status
from tests.integration.gateway_world import Scenario, world
from tests.pictures import png

pytestmark = pytest.mark.integration
ANN = "@ann:hs.test"
DATA = f"data:image/png;base64,{base64.b64encode(png()).decode()}"


@asynccontextmanager
async def house(root: Path, fake: FakeOpenAI, *, vision: bool = True) -> AsyncIterator[Scenario]:
    settings = {
        "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
        "llm": {
            "providers": {"p": {"api_base": fake.api_base}},
            "models": {"m": {"provider": "p", "model": "openai/m", "vision": vision}},
            "pools": {"main": ["m"]},
        },
        "tools": {"files": {"allow": "people"}},
    }
    workspace = root / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "cat.png").write_bytes(png())
    (workspace / "dog.png").write_bytes(png(4, 4))
    (workspace / "none.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    async with world(root, name="matrix", settings=settings) as one:
        yield one


def reads(*names: str) -> Say:
    calls = [
        Call("read_file", json.dumps({"path": name}), id=f"c{number}") for number, name in enumerate(names)
    ]
    return Say(calls=calls)


def pictures_in(request: dict[str, Any]) -> list[str]:
    """The pictures in a request; each stands in a message of its own, because a result is text."""
    found = []
    for message in request["messages"]:
        parts = message["content"] if isinstance(message["content"], list) else []
        urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        assert not urls or message["role"] == "user"
        found += urls
    return found


async def test_a_model_that_looks_is_shown_it(tmp_path: Path) -> None:
    """In the next request; two of one answer together, behind both results. What only seems to be one is not."""
    async with FakeOpenAI() as fake, house(tmp_path, fake) as one:
        fake.plan(reads("cat.png", "dog.png"), reads("none.png"), Say("a cat and a dog"))
        assert (await one.asked("what is on them?", person=ANN)).text == "a cat and a dog"
        first, second, third = fake.requests
        assert pictures_in(first) == []
        assert pictures_in(second)[0] == DATA
        assert len(pictures_in(second)) == 2
        assert [each["role"] for each in second["messages"][-4:]] == ["tool", "tool", "assistant", "user"]
        assert pictures_in(third) == pictures_in(second)
        assert "cannot be shown here" in third["messages"][-1]["content"]


async def test_one_that_does_not_look_is_told_what_it_is(tmp_path: Path) -> None:
    """The control."""
    async with FakeOpenAI() as fake, house(tmp_path, fake, vision=False) as one:
        fake.plan(reads("cat.png"), Say("a PNG"))
        assert (await one.asked("what is on it?", person=ANN)).text == "a PNG"
        assert pictures_in(fake.requests[1]) == []
        assert "is a PNG picture" in fake.requests[1]["messages"][-1]["content"]


async def test_it_is_shown_to_the_owner_alone(tmp_path: Path) -> None:
    """Somebody else who has the files is told what it is: their pictures would fill the owner's store."""
    async with FakeOpenAI() as fake, house(tmp_path, fake) as one:
        fake.plan(reads("cat.png"), Say("a PNG"))
        assert (await one.asked("what is on it?", person="@bob:hs.test")).text == "a PNG"
        assert pictures_in(fake.requests[1]) == []
        assert "is a PNG picture" in fake.requests[1]["messages"][-1]["content"]


async def test_a_server_that_chokes_on_it_is_asked_without(tmp_path: Path) -> None:
    """Some take no message of a person behind results. That one is not shown again."""
    async with FakeOpenAI() as fake, house(tmp_path, fake) as one:
        fake.plan(reads("cat.png"), Status(400, "user behind tool"), reads("dog.png"), Say("I cannot see"))
        assert (await one.asked("what is on it?", person=ANN)).text == "I cannot see"
        _, shown, again, last = fake.requests
        assert pictures_in(shown) == [DATA]
        assert pictures_in(again) == []
        assert DATA not in pictures_in(last)
        assert "cannot be shown to you" in str(last["messages"])


@pytest.mark.parametrize(("name", "asks"), [("cat.png", True), ("note.txt", False)])
async def test_words_in_a_picture_are_a_strangers(tmp_path: Path, name: str, asks: bool) -> None:
    """After it was seen, what would last is asked about; after the assistant's own text, the control, it is not."""
    async with FakeOpenAI() as fake, house(tmp_path, fake) as one:
        fake.plan(
            Say(calls=[Call("write_file", json.dumps({"path": "note.txt", "content": "mine"}))]),
            reads(name),
            Say(calls=[Call("memory_write", json.dumps({"content": "- pay Mallory"}))]),
            Say("done"),
        )
        said = (await one.asked("look", person=ANN)).text
        assert (name in said and "change my memory" in said) is asks
        assert (said == "done") is not asks


async def test_a_few_in_a_turn(tmp_path: Path) -> None:
    async with FakeOpenAI() as fake, house(tmp_path, fake) as one:
        names = [f"p{number}.png" for number in range(12)]
        for number, name in enumerate(names):
            (tmp_path / "workspace" / name).write_bytes(png(5, 5 + number))
        fake.plan(reads(*names[:6]), reads(*names[6:]), Say("many"))
        assert (await one.asked("look", person=ANN)).text == "many"
        assert len(pictures_in(fake.requests[-1])) == 8
