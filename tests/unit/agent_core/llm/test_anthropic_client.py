"""Conversations with a server that is as strict as Anthropic's documentation says."""

from __future__ import annotations

import pytest

from agent_core.errors import ContextTooLong, ModelAuthFailed, ModelRefused
from agent_core.llm.anthropic_client import AnthropicClient
from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec, ModelSpec, ProviderSpec
from agent_core.models import Message, ToolCall
from tests.clock import LoopClock
from tests.doubles.agent import FakeJournal, FakeTool, Journey
from tests.doubles.anthropic_server import FakeAnthropic, refusal_of, text, thought, use

CLIENTS: list[AnthropicClient] = []


@pytest.fixture
async def fake():
    async with FakeAnthropic() as server:
        yield server
        for client in CLIENTS:
            await client.aclose()
        CLIENTS.clear()
        assert not server.refusals


def client_for(fake, **more):
    more = {"max_tokens": 2048, **more}
    client = AnthropicClient(
        "anthropic/claude", api_base=fake.api_base, api_key="k", clock=LoopClock(), **more
    )
    CLIENTS.append(client)
    return client


def journey(fake, *tools, client=None, **limits):
    one = Journey(tools=[FakeTool(name, n="integer") for name in tools], **limits)
    one.loop._llm = client or client_for(fake)
    return one


@pytest.mark.parametrize("stream", [True, False])
async def test_talk_and_its_tokens(fake, stream):
    """What was read from the cache or written to it belongs to the prompt."""
    fake.say(thought("hm"), text("Hello"))
    one = journey(fake)
    one.stream = stream
    result = await one.run()
    assert result.reply == "Hello"
    usage = result.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (100, 90, 5)
    assert fake.requests[0]["system"][0]["cache_control"] == {"type": "ephemeral"}


async def test_thoughts_stay_within_the_turn(fake):
    """With thinking each step goes back with its signed blocks, and `max_tokens` is above the budget."""
    client = client_for(fake, extra={"reasoning_effort": "medium"})
    fake.say(thought("first"), text("Let me look."), use("look", "toolu_1", n=1), use("look", "toolu_2", n=2))
    fake.say(thought("second", "c2lnMg"), use("look", "toolu_3", n=3))
    fake.say(thought("done"), text("Found."))
    result = await journey(fake, "look", client=client).run()
    assert result.reply == "Found."
    assert len(fake.requests) == 3
    assert fake.requests[0]["max_tokens"] > fake.requests[0]["thinking"]["budget_tokens"]
    blocks = [
        message["content"] for message in fake.requests[2]["messages"] if message["role"] == "assistant"
    ]
    assert blocks[-2][0] == thought("first")
    assert blocks[-1][0] == thought("second", "c2lnMg")
    assert not any("thinking" in str(line.content) for line in result.history)


async def test_a_thought_that_is_not_shown_goes_back_signed(fake):
    """Newer models leave its text out, and want it back all the same."""
    fake.say(thought("", "c2lnbmVk"), use("look", n=1))
    fake.say(text("Found."))
    assert (await journey(fake, "look").run()).reply == "Found."
    assert fake.requests[1]["messages"][-2]["content"][0] == thought("", "c2lnbmVk")


async def test_a_model_that_takes_no_budget():
    """It is told how hard to think instead, and its owner reads of a parameter that it refuses."""
    async with FakeAnthropic(adaptive=True) as fake:
        client = client_for(fake, extra={"reasoning_effort": "minimal", "temperature": 1})
        assert (await journey(fake, client=client).run()).reply == "ok"
        assert (await journey(fake, client=client).run()).reply == "ok"
        assert len(fake.refusals) == 2
        assert fake.requests[-1]["thinking"] == {"type": "adaptive"}
        assert fake.requests[-1]["output_config"] == {"effort": "low"}
        assert "temperature" not in fake.requests[-1]
        assert "refuses temperature" in client.notes[0]
        await client.aclose()


async def test_an_old_model_with_short_answers(fake):
    """What it refuses as too long an answer is lowered, also where nobody has configured it."""
    fake.errors.append((400, "invalid_request_error", "max_tokens: 16384 > 4096, which is the maximum"))
    assert (await journey(fake, client=client_for(fake, max_tokens=None)).run()).reply == "ok"
    assert [each["max_tokens"] for each in fake.requests] == [16_384, 4096]


async def test_after_a_restart_the_thoughts_are_still_there(fake):
    """They are journaled with the step."""
    client = client_for(fake, extra={"reasoning_effort": "low"})
    fake.say(thought("first"), use("look", n=1))
    journal = FakeJournal()
    journal.crash_at = 3  # the answer and the start of the tool are written, its result is not
    with pytest.raises(SystemExit):
        await journey(fake, "look", client=client).run(journal=journal)
    journal.crash_at = None
    fake.say(text("Done."))
    result = await journey(fake, "look", client=client).run(journal=journal)
    assert result.reply == "Done."
    assert fake.requests[-1]["messages"][-2]["content"][0] == thought("first")


async def test_the_last_step_keeps_the_tools(fake):
    """They are offered and may not be called; the note stands in the result."""
    for number in range(2):
        fake.say(use("look", n=number))
    fake.say(text("That is all."))
    result = await journey(fake, "look", steps=3).run()
    assert result.reply == "That is all."
    assert fake.requests[-1]["tool_choice"] == {"type": "none"}


async def test_a_call_of_another_model_fits(fake):
    """Ids and names that the provider does not take are rewritten on the wire."""
    said = [
        Message(role="user", content="look"),
        Message(role="assistant", content="", tool_calls=(ToolCall(id="call:1/ä", name="a.b"),)),
        Message(role="tool", content="", tool_call_id="call:1/ä"),
    ]
    chunks = [chunk async for chunk in await client_for(fake).chat(said, [])]
    assert chunks[:2] == ["o", "k"]
    assert fake.requests[0]["messages"][1]["content"][0]["id"] == "call_1__"


@pytest.mark.parametrize(
    ("stop", "reply"), [("max_tokens", "was cut off"), ("refusal", ""), ("end_turn", "half")]
)
async def test_how_an_answer_ends(fake, stop, reply):
    fake.say(text("half"), stop=stop)
    if reply:
        assert reply in (await journey(fake).run()).reply
        return
    with pytest.raises(ModelRefused, match="filter"):
        await journey(fake).run()


async def test_errors_are_understood(fake):
    """A wrong key, and too long in the provider's words."""
    fake.errors.append((401, "authentication_error", "invalid x-api-key"))
    with pytest.raises(ModelAuthFailed):
        await journey(fake).run()
    fake.errors += [(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")] * 2
    with pytest.raises(ContextTooLong):
        await journey(fake).run()


async def test_the_settings_need_no_litellm(fake):
    """`anthropic/…` is asked directly, at the provider's own address or another one."""
    spec = LLMSpec(
        default_pool="main",
        providers={"a": ProviderSpec(api_base=fake.api_base, api_key="k")},
        models={
            "c": ModelSpec(provider="a", model="anthropic/claude", max_tokens=2048, reasoning_effort="medium")
        },
        pools={"main": ("c",)},
    )
    models = build_models(spec, LoopClock())
    assert not models.uses_litellm
    chunks = [chunk async for chunk in await models.pool().chat([Message(role="user", content="hi")], [])]
    await models.aclose()
    assert "o" in chunks[0]


def test_the_server_is_strict():
    """Negative control: what the real one refuses is refused."""
    good = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [text("a")]}]}
    assert refusal_of(good) == ""
    assert refusal_of({**good, "thinking": {"type": "enabled", "budget_tokens": 9}})
    assert refusal_of({**good, "stream_options": {}})
    assert refusal_of({**good, "messages": [{"role": "user", "content": [text(" ")]}]})
    assert refusal_of({**good, "messages": [*good["messages"], {"role": "assistant", "content": [use("f")]}]})
