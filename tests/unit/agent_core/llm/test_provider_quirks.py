"""The same ten conversations with a strict server of each provider: what it refuses is never sent."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agent_core.errors import ModelRefused
from agent_core.llm.anthropic_client import AnthropicClient
from agent_core.llm.http_client import HttpModelClient
from agent_core.llm.ollama_client import OllamaClient
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.providers import endpoint_of
from agent_core.messages import Attachment
from agent_core.models import Message
from tests.clock import LoopClock
from tests.doubles.agent import FakeJournal, FakeTool, Journey, ListMemory, session
from tests.doubles.openai_server import Call, Say
from tests.doubles.strict_servers import (
    PROFILES,
    Profile,
    StrictAnthropic,
    StrictOllama,
    StrictServer,
    server_of,
)
from tests.pictures import png
from tests.rows import rows

LISTS = {"type": "object", "properties": {"what": {"type": "array"}}}
PHOTO = Attachment(name="a.png", media_type="image/png", size_bytes=5, path="p", sha256="0" * 64)


class History(ListMemory):
    """A history that begins with an answer and has two questions in a row, and the question's pictures."""

    async def build_messages(
        self, session_id: str, system_prompt: str, user_message: str, **more: Any
    ) -> Any:
        first, *rest = await super().build_messages(session_id, system_prompt, user_message, **more)
        files = tuple(more["attachments"])
        asked = rest[-1].model_copy(update={"attachments": files})
        return [first, *rest[:-1], Message(role="user", content="one more"), asked]


class Photos:
    """An `AttachmentPort` of which only pictures are asked."""

    async def picture(self, attachment: Attachment, **limits: int) -> tuple[str, bytes]:
        return "image/png", png()


class Provider:
    """A strict server, and an agent that asks it."""

    def __init__(self, profile: Profile, fake: StrictServer | StrictAnthropic | StrictOllama) -> None:
        self.profile, self.fake = profile, fake
        common: dict[str, Any] = {
            "api_base": fake.api_base,
            "clock": LoopClock(),
            "pictures": Photos(),
            "extra": {"reasoning_effort": profile.effort} if profile.effort else {},
        }
        self.client: HttpModelClient
        if isinstance(fake, StrictAnthropic):
            self.client = AnthropicClient(profile.model, api_key="k", **common)
        elif isinstance(fake, StrictOllama):
            self.client = OllamaClient(profile.model, **common)
        else:
            endpoint = endpoint_of(profile.model, fake.api_base if profile.by_address else "")
            endpoint = None if endpoint is None else replace(endpoint, api_base=fake.api_base)
            self.client = OpenAIClient(profile.model, endpoint=endpoint, max_tokens=500, **common)

    def says(self, *pieces: str, calls: int = 0, **more: Any) -> Say:
        """An answer of this provider, with so many calls."""
        signature = "c2ln" if self.profile.signs else ""
        made = [Call("look", '{"what": ["a"]}', id=f"call_{n}", signature=signature) for n in range(calls)]
        return Say(*pieces, calls=made, thinking=["hm"] if self.profile.thinks else [], **more)

    async def asked(self, *plan: Any, journal: Any = None, limits: Any = None, **more: Any) -> str:
        """The answer of the agent to one question."""
        self.fake.answer_with(*plan)
        tool = FakeTool("look")
        tool.parameters = LISTS
        journey = Journey(tools=[tool], **(limits or {}))
        journey.loop._memory = History()  # type: ignore[assignment]
        given = replace(session(), **more)
        return str((await journey.run(session=given, llm=self.client, journal=journal)).reply)


@pytest.fixture(params=PROFILES)
async def provider(request: Any) -> AsyncIterator[Provider]:
    profile = PROFILES[request.param]
    async with server_of(profile) as fake:
        one = Provider(profile, fake)
        yield one
        await one.client.aclose()
        assert len(fake.refusals) <= profile.learned, fake.refusals


def skip_without_tools(provider: Provider) -> None:
    if not provider.profile.calls_tools:
        pytest.skip("this server calls no tools")


async def test_talk(provider: Provider) -> None:
    """A history that begins with an answer, and two questions."""
    assert await provider.asked(provider.says("Hello")) == "Hello"


async def test_a_tool(provider: Provider) -> None:
    """Its result goes back with all that the provider wants."""
    skip_without_tools(provider)
    assert await provider.asked(provider.says(calls=1), provider.says("Found")) == "Found"


async def test_tools_at_once_and_one_after_the_other(provider: Provider) -> None:
    """Three at once, then one more with words."""
    skip_without_tools(provider)
    plan = provider.says(calls=3), provider.says("and", calls=1), provider.says("Found")
    assert await provider.asked(*plan) == "Found"


async def test_a_picture(provider: Provider) -> None:
    """Text and picture in one message."""
    assert await provider.asked(provider.says("A cat"), attachments=(PHOTO,)) == "A cat"
    sent = str(provider.fake.requests[-1]["messages"][-1])
    assert base64.b64encode(png()).decode() in sent


async def test_too_long(provider: Provider) -> None:
    """It is made shorter and asked once more."""
    assert await provider.asked(provider.profile.too_long, provider.says("Short")) == "Short"
    assert len(provider.fake.requests) - len(provider.fake.refusals) == 2


async def test_cut_off(provider: Provider) -> None:
    """The person reads that there is more."""
    assert "output limit" in await provider.asked(provider.says("Half", finish="length"))


async def test_a_refused_tool(provider: Provider) -> None:
    """It is left out, and the answer comes without."""
    skip_without_tools(provider)
    assert await provider.asked(provider.profile.refused_tool, provider.says("Without")) == "Without"


async def test_a_refused_answer(provider: Provider) -> None:
    """The provider's filter is not asked twice."""
    with pytest.raises(ModelRefused):
        await provider.asked(provider.says("No", finish="content_filter"))
    assert len(provider.fake.requests) - len(provider.fake.refusals) == 1


class Counted(FakeJournal):
    """A journal that counts the answers which it has."""

    @property
    def answers(self) -> int:
        return sum(isinstance(each, tuple) for each in self.steps.values())


async def test_killed_between_any_two_steps(provider: Provider) -> None:
    """What the provider wants back is in the journal; nothing is paid twice but the answer in flight."""
    skip_without_tools(provider)
    plan = provider.says("one", calls=2), provider.says("two", calls=1), provider.says("Found")
    whole = Counted()
    assert await provider.asked(*plan, journal=whole) == "Found"
    assert whole.writes == 9
    for kill in range(1, whole.writes + 1):
        provider.fake.requests.clear()
        provider.fake.refusals.clear()  # what the client has learned holds
        journal = Counted()
        journal.crash_at = kill
        with pytest.raises(SystemExit):
            await provider.asked(*plan, journal=journal)
        paid, kept = len(provider.fake.requests), journal.answers
        provider.fake.forget_plan()
        journal.crash_at = None
        assert await provider.asked(*plan[kept:], journal=journal) == "Found"
        assert paid - kept == (kill in (1, 6, 9))
        assert len(provider.fake.requests) == len(plan) + paid - kept
        assert not provider.fake.refusals


async def test_the_last_step(provider: Provider) -> None:
    """No tool may be called any more, and the history with its calls is still accepted."""
    skip_without_tools(provider)
    assert await provider.asked(provider.says(calls=1), provider.says("Done"), limits={"steps": 2}) == "Done"
    last = provider.fake.requests[-1]
    assert last.get("tool_choice") in ("none", {"type": "none"}) or "tools" not in last


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": "x", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "x"}
USER = {"role": "user", "content": "x"}
USER_BLOCKS = {"role": "user", "content": [{"type": "text", "text": "x"}]}
BUDGET = {"type": "enabled", "budget_tokens": 1024}
TOOL = {"type": "function", "function": {"name": "look", "parameters": LISTS}}


@rows(
    ("name", "body"),
    [
        ("openai", {"messages": [USER, RESULT]}),
        ("openai", {"messages": [USER, CALLS, USER]}),
        ("openai", {"messages": [USER], "tools": [TOOL]}),
        ("openai", {"messages": [USER], "max_tokens": 5}),
        ("openrouter", {"messages": [USER, CALLS]}),
        ("deepseek", {"messages": [USER, CALLS, RESULT]}),
        ("mistral", {"messages": [USER, CALLS, RESULT, USER]}),
        ("mistral", {"messages": [USER, CALLS, RESULT]}),
        ("mistral", {"messages": [USER], "stream_options": {}}),
        ("groq", {"messages": [USER, {**CALLS, "reasoning": "hm"}, RESULT]}),
        ("groq", {"messages": [USER], "tools": [TOOL] * 129}),
        ("gemini", {"messages": [USER, CALLS, RESULT]}),
        ("xai", {"messages": [USER, {**CALLS, "content": ""}, RESULT]}),
        ("moonshot", {"messages": [USER, CALLS, RESULT]}),
        ("zai", {"messages": [CALLS, RESULT]}),
        ("dashscope", {"messages": [USER, CALLS]}),
        ("llama.cpp", {"messages": [USER, {"role": "assistant", "content": "x"}]}),
        ("vllm", {"messages": [USER], "tools": [TOOL]}),
        ("lm_studio", {"messages": [USER, USER]}),
        ("anthropic", {"max_tokens": 9, "messages": [USER_BLOCKS, USER_BLOCKS]}),
        ("anthropic thinking", {"max_tokens": 9, "thinking": BUDGET, "messages": [USER_BLOCKS]}),
        ("anthropic adaptive", {"max_tokens": 9000, "thinking": BUDGET, "messages": [USER_BLOCKS]}),
        ("ollama", {"messages": [USER, CALLS]}),
    ],
)
def test_a_careless_request_is_refused(name: str, body: dict[str, Any]) -> None:
    """Control: each profile refuses what a client sends that does not think of it."""
    assert any(rule(body) for rule in PROFILES[name].rules)
