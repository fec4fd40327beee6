"""A server that may have a model answer gets its words alone to it, within the budget; others get none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.models import Message, ModelChunk, Purpose, ToolDefinition, Usage
from agent_core.tools.mcp.sampling import MOST_ANSWERS
from tests.integration.gateway_world import World, world
from tests.integration.test_mcp_turns import ANN, Caller, server

pytestmark = pytest.mark.integration
pytest.importorskip("mcp")
SAID = "one, two, three and four"
TURN_COST, SAMPLE_COST = 100, 10_000


class Both(Caller):
    """As `Caller` to people; what a server wants is answered in a few words."""

    def __init__(self) -> None:
        super().__init__()
        self.sampled: list[tuple[list[Message], int]] = []

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        theirs = messages[0].content == "You count."
        if theirs:
            self.sampled.append((list(messages), len(tools)))
        else:
            last = -1 if messages[-1].content.startswith("[No tool can be used") else None
            chunks = await super().chat(messages[:last], tools, stream=stream)

        async def answer() -> AsyncIterator[ModelChunk]:
            if theirs:
                yield SAID
                yield Usage(prompt_tokens=SAMPLE_COST, calls=1, model="m")
            else:
                async for chunk in chunks:
                    yield chunk
                yield Usage(prompt_tokens=TURN_COST, calls=1, model="m")

        return answer()


def wish(text: str = "Count.", **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {"systemPrompt": "You count.", "messages": [message], "maxTokens": 1000, **more}


async def called(one: World, person: str = ANN) -> dict[str, Any]:
    """What the server tells of its call."""
    assert one.built.mcp is not None
    with anyio.fail_after(60):
        while not all(each.is_listed for each in one.built.mcp.by_name.values()):
            await anyio.sleep(0.02)
    said = (await one.asked("please bad__echo", person=person)).text
    assert said.startswith("so:"), said
    found: dict[str, Any] = json.loads(said[said.index("{") : said.rindex("}") + 1])
    return found


def house(root: Path, model: Both, *wishes: dict[str, Any], tokens: int = 0, **settings: Any) -> Any:
    samples = server(
        "samples", root / "calls", json.dumps(wishes), effects={"echo": "private_read"}, **settings
    )
    return world(
        root / "home",
        name="matrix",
        models={"demo": model},
        settings={
            "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
            "llm": {"budget": {"tokens_per_day": tokens}},
            "mcp": {"servers": {"bad": samples}},
        },
    )


async def test_a_server_that_may_gets_an_answer_to_its_own_words_alone(tmp_path: Path) -> None:
    """No history, no memory and no tools; as long as it wished; paid from what the conversation may cost."""
    model = Both()
    async with house(tmp_path, model, wish(), wish(maxTokens=2), sampling=True) as one:
        assert (await one.asked("my secret is 4711", person=ANN)).text == "echo"
        found = await called(one)
        assert found["capable"]
        whole, cut = found["said"]
        assert (whole["content"]["text"], whole["stopReason"], whole["model"]) == (SAID, "endTurn", "m")
        assert (cut["content"]["text"], cut["stopReason"]) == (SAID[:8], "maxTokens")
        assert [tools for _, tools in model.sampled] == [0, 0]
        shown = [[(each.role, each.content) for each in messages] for messages, _ in model.sampled]
        assert shown == [[("system", "You count."), ("user", "Count.")]] * 2
        rows = [row for row in await one.built.store.usage.rows() if row.purpose == Purpose.CHAT]
        assert sum(row.usage.prompt_tokens for row in rows) % SAMPLE_COST < SAMPLE_COST / 2
        assert sum(row.usage.prompt_tokens for row in rows) // SAMPLE_COST == 2


async def test_without_the_setting_it_gets_none(tmp_path: Path) -> None:
    """The control: it is not told that it could, and refused when it asks all the same."""
    model = Both()
    async with house(tmp_path, model, wish()) as one:
        found = await called(one)
        assert not found["capable"]
        assert "not supported" in found["said"][0]["message"]
        assert model.sampled == []


async def test_it_ends_with_the_budget(tmp_path: Path) -> None:
    """Two answers fit into what is left of the day; the third is refused, and the turn still has its answer."""
    model = Both()
    async with house(tmp_path, model, wish(), wish(), wish(), tokens=15_000, sampling=True) as one:
        found = await called(one)
        assert found["said"][0]["content"]["text"] == SAID
        assert "no model can answer now" in found["said"][-1]["message"]
        assert len(model.sampled) == 2


async def test_what_a_model_is_not_asked(tmp_path: Path) -> None:
    """More than a few times in a call, what is no text, tools, and what is too long."""
    tool = {"name": "x", "inputSchema": {"type": "object"}}
    picture = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    odd = [
        wish(tools=[tool]),
        wish(messages=[{"role": "user", "content": picture}]),
        wish("LONG"),
        wish(messages=[]),
    ]
    model = Both()
    async with house(tmp_path, model, *odd, *[wish()] * 6, sampling=True) as one:
        said = (await called(one))["said"]
        assert ["message" in each for each in said] == [True] * 4 + [False] * 4 + [True] * 2
        assert len(model.sampled) == MOST_ANSWERS - 1  # the one that is too long counts
