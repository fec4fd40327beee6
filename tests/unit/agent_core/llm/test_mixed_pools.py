"""Pools whose members differ in everything, and servers that change their minds between two requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agent_core.errors import ModelAuthFailed
from agent_core.llm.anthropic_client import AnthropicClient
from agent_core.llm.ollama_client import OllamaClient
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.pools import ModelPool
from agent_core.llm.providers import endpoint_of
from agent_core.models import Message
from tests.clock import LoopClock
from tests.doubles.agent import FakeTool, Journey, ListMemory, session
from tests.doubles.anthropic_server import FakeAnthropic, text, thought, use
from tests.doubles.ollama_server import FakeOllama, Pulled
from tests.doubles.openai_server import Call, Say, Status
from tests.doubles.strict_servers import PROFILES, StrictServer
from tests.unit.agent_core.llm.test_provider_quirks import PHOTO, History, Photos

AWAY = (529, "overloaded_error", "Overloaded")


@dataclass
class Harness:
    """A thinking Claude, a strict Mistral, and a small model at home that only talks."""

    claude: FakeAnthropic
    mistral: StrictServer
    small: FakeOllama
    clients: dict[str, Any]

    def pool(self, *names: str) -> ModelPool:
        return ModelPool("main", [(name, self.clients[name]) for name in names], LoopClock())

    def only_once_claude(self) -> None:
        """Claude answers its first request and is away then."""
        client = self.clients["claude"]
        asked = client.chat

        async def once(*args: Any, **more: Any) -> Any:
            self.claude.errors.extend([AWAY] * len(self.claude.requests))
            return await asked(*args, **more)

        client.chat = once

    async def asked(self, *names: str, steps: int = 8, **more: Any) -> Any:
        journey = Journey(tools=[FakeTool("look", "word " * 9_000)], steps=steps)
        journey.loop._memory = History()  # type: ignore[assignment]
        return await journey.run(session=replace(session(), **more), llm=self.pool(*names))


class Long(ListMemory):
    """A history that fills whatever it may."""

    async def build_messages(self, *args: Any, **more: Any) -> Any:
        first, old, asked = await super().build_messages(*args, **more)
        words = "old " * (6_000 if more["context_tokens"] is None else more["context_tokens"] // 2)
        return [first, Message(role="user", content=words), old, asked]


@pytest.fixture
async def house() -> AsyncIterator[Harness]:
    profile = PROFILES["mistral"]
    async with AsyncExitStack() as stack:
        claude = await stack.enter_async_context(FakeAnthropic())
        mistral = await stack.enter_async_context(StrictServer(profile))
        small = await stack.enter_async_context(
            FakeOllama(models={"tiny": Pulled(context=4096, capabilities=("completion",))})
        )
        endpoint = endpoint_of(profile.model, "")
        assert endpoint is not None
        common: dict[str, Any] = {"clock": LoopClock(), "pictures": Photos()}
        clients = {
            "claude": AnthropicClient(
                "anthropic/claude",
                api_base=claude.api_base,
                api_key="k",
                extra={"reasoning_effort": "low"},
                **common,
            ),
            "mistral": OpenAIClient(
                profile.model,
                api_base=mistral.api_base,
                endpoint=replace(endpoint, api_base=mistral.api_base),
                **common,
            ),
            "small": OllamaClient("ollama/tiny", api_base=small.api_base, **common),
        }
        for client in clients.values():
            stack.push_async_callback(client.aclose)  # type: ignore[attr-defined]
        yield Harness(claude, mistral, small, clients)
        assert not claude.refusals
        assert not mistral.refusals


async def test_another_goes_on_in_the_middle_of_a_turn(house: Harness) -> None:
    """It gets the calls of the first in its own form, and nothing of what that has thought."""
    house.claude.say(thought("hm"), use("look", "toolu_1"), use("look", "toolu_2"))
    house.mistral.plan(Say("", calls=[Call("look", "{}", id="abcdefghi")]), Say("Found"))
    journey = Journey(tools=[FakeTool("look", "found")])
    pool = house.pool("claude", "mistral")
    house.only_once_claude()
    assert (await journey.run(llm=pool)).reply == "Found"
    sent = house.mistral.requests[-1]["messages"]
    assert "hm" not in str([each.get("reasoning_content") for each in sent])
    assert len([each for each in sent if each["role"] == "tool"]) == 3


async def test_a_small_one_without_eyes_and_tools_behind_a_big_one(house: Harness) -> None:
    """The result of the tool that the big one has used is cut to its window."""
    house.claude.say(use("look", "toolu_1"))
    house.small.answer = lambda read: "Noted" if "cannot be shown" in read else "no note"
    house.only_once_claude()
    assert (await house.asked("claude", "small", attachments=(PHOTO,))).reply == "Noted"
    assert house.small.cuts == 0
    assert "tools" not in house.small.requests[-1]


async def test_the_window_shrinks_between_two_requests(house: Harness) -> None:
    """The server was started anew with less; the next request fits at once."""
    house.small.models = {"tiny": Pulled(context=40_960)}
    house.small.answer = lambda _: "ok"
    journey = Journey(tools=[])
    journey.loop._memory = Long()  # type: ignore[assignment]
    await journey.run(llm=house.pool("small"))
    house.small.models = {"tiny": Pulled(context=4096)}
    for _ in range(2):
        assert (await journey.run(llm=house.pool("small"))).reply == "ok"
    assert len(house.small.requests) == 3
    assert house.small.cuts == 0
    assert "reads 4096 tokens" in house.clients["small"].notes[-1]


async def test_tools_are_refused_and_accepted_again(house: Harness) -> None:
    """There is an answer each time, and its owner reads what to do."""
    told = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    house.mistral.plan(Status(400, told), Say("Without"), Say("Still without"))
    assert (await house.asked("mistral")).reply == "Without"
    assert (await house.asked("mistral")).reply == "Still without"
    assert "restart" in house.clients["mistral"].notes[0]


async def test_a_key_is_refused_and_accepted_again(house: Harness) -> None:
    """One error names the model; the next question is answered, also by the same pool."""
    house.claude.errors.append((401, "authentication_error", "invalid x-api-key"))
    pool = house.pool("claude")
    journey = Journey(tools=[])
    with pytest.raises(ModelAuthFailed) as caught:
        await journey.run(llm=pool)
    assert caught.value.fields["model"] == "anthropic/claude"
    assert (await journey.run(llm=pool)).reply == "ok"


@pytest.mark.parametrize(
    "words", ["Prompt exceeds max length", "input length and `max_tokens` exceed context limit", "nope"]
)
async def test_too_long_in_other_words_each_time(house: Harness, words: str) -> None:
    """A large request that is refused is shortened once, whatever the reason is called."""
    house.claude.errors.append((400, "invalid_request_error", words))
    house.claude.say(text("Short"))
    journey = Journey(tools=[])
    journey.loop._memory.context_tokens = 1_000  # type: ignore[attr-defined]
    assert (await journey.run(llm=house.pool("claude"))).reply == "Short"
