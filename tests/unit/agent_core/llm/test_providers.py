"""Providers that speak OpenAI's protocol: where they are, what differs, and that litellm is not needed for them."""

from __future__ import annotations

import pytest

from agent_core.llm.factory import build_models
from agent_core.llm.litellm.litellm_client import LiteLLMClient
from agent_core.llm.model_config import LLMSpec
from agent_core.llm.ollama_client import OllamaClient
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.openai_format import Assembler, parse_piece, request_body
from agent_core.llm.prices import Price, listed_price
from agent_core.llm.providers import Endpoint, adapt_request, endpoint_of, key_variables
from agent_core.models import Message, ToolCall
from gateway.settings.settings import LLMSettings
from tests.clock import ManualClock
from tests.contract.llm import TOOLS, collect
from tests.doubles.openai_server import Call, FakeOpenAI, Raw, Say


def spec(model: str, *, api_base: str = "", client: str = "auto", api_key: str = "k") -> LLMSpec:
    return LLMSettings.model_validate(
        {
            "providers": {"p": {"api_base": api_base, "api_key": api_key}},
            "models": {"m": {"provider": "p", "model": model, "client": client}},
            "pools": {"main": ["m"]},
        }
    )


def client_of(given: LLMSpec):
    return build_models(given, ManualClock()).pools["main"]._members[0].llm


@pytest.mark.parametrize(
    ("model", "api_base", "address", "name"),
    [
        ("openai/gpt-5-mini", "", "https://api.openai.com/v1", "gpt-5-mini"),
        ("openai/llama3", "http://h:1/v1", "http://h:1/v1", "llama3"),
        ("openrouter/openai/gpt-5", "", "https://openrouter.ai/api/v1", "openai/gpt-5"),
        ("groq/openai/gpt-oss-20b", "", "https://api.groq.com/openai/v1", "openai/gpt-oss-20b"),
        ("mistral/mistral-small-latest", "", "https://api.mistral.ai/v1", "mistral-small-latest"),
        ("deepseek/deepseek-chat", "", "https://api.deepseek.com/v1", "deepseek-chat"),
        ("xai/grok-4", "", "https://api.x.ai/v1", "grok-4"),
        ("together/a/b", "", "https://api.together.xyz/v1", "a/b"),
        ("together_ai/a/b", "", "https://api.together.xyz/v1", "a/b"),
        ("fireworks_ai/a/b", "", "https://api.fireworks.ai/inference/v1", "a/b"),
        ("gemini/g", "", "https://generativelanguage.googleapis.com/v1beta/openai", "g"),
        ("ollama/qwen3:4b", "", "http://127.0.0.1:11434/v1", "qwen3:4b"),
        ("ollama_chat/qwen3:4b", "http://box:11434", "http://box:11434/v1", "qwen3:4b"),
        ("vllm/a/b", "http://box:8000/", "http://box:8000/v1", "a/b"),
        ("hosted_vllm/a/b", "http://box:8000/v1", "http://box:8000/v1", "a/b"),
        ("lm_studio/x", "", "http://127.0.0.1:1234/v1", "x"),
    ],
)
def test_they_are_asked_without_litellm(model, api_base, address, name):
    """By the name of the provider; ``client: litellm`` chooses otherwise."""
    endpoint = endpoint_of(model, api_base)
    assert endpoint is not None
    assert (endpoint.api_base, endpoint.model) == (address, name)

    plain = client_of(spec(model, api_base=api_base))
    assert not build_models(spec(model, api_base=api_base), ManualClock()).uses_litellm
    if model.startswith("ollama"):
        assert isinstance(plain, OllamaClient)
        assert plain._server._url == f"{address.removesuffix('/v1')}/api/chat"
        return
    assert isinstance(plain, OpenAIClient)
    assert plain._server._url == f"{address}/chat/completions"
    assert isinstance(client_of(spec(model, api_base=api_base, client="litellm")), LiteLLMClient)


@pytest.mark.parametrize(
    ("model", "api_base"),
    [
        ("bedrock/anthropic.claude-sonnet-4-5", ""),
        ("vertex_ai/x", ""),
        ("gemini/g", "http://own/"),
        ("gpt-5", ""),
        ("openai/", ""),
    ],
)
def test_the_others_are_asked_through_litellm(model, api_base):
    """Amazon has a protocol of its own, and Gemini at another address is Google's own, too."""
    assert endpoint_of(model, api_base) is None
    assert isinstance(client_of(spec(model, api_base=api_base)), LiteLLMClient)


def test_a_name_is_sent_as_it_is_where_the_plain_client_is_wanted():
    """A gateway of one's own may know its models by names with a provider in them."""
    client = client_of(spec("mistral/small", api_base="http://own/v1", client="openai"))
    assert isinstance(client, OpenAIClient)
    assert client._endpoint == Endpoint("http://own/v1", "mistral/small", public=False)


def test_what_providers_want_otherwise():
    """OpenAI renamed a field, Mistral refuses one and wants ids of nine characters; the rest stays as it is."""
    call = ToolCall(id="call_a_long_id", name="look")
    said = [
        Message(role="user", content="hi"),
        Message(role="assistant", content="", tool_calls=(call, call.model_copy(update={"id": "abcdefgh1"}))),
        Message(role="tool", content="x", tool_call_id="call_a_long_id"),
    ]
    body = request_body("m", said, TOOLS, stream=True, max_tokens=5)

    openai = adapt_request(body, endpoint_of("openai/m", ""))
    assert (openai.get("max_tokens"), openai["max_completion_tokens"]) == (None, 5)
    mistral = adapt_request(body, endpoint_of("mistral/m", ""))
    assert (mistral["max_tokens"], "stream_options" in mistral) == (5, False)
    made, kept = (call["id"] for call in mistral["messages"][1]["tool_calls"])
    assert (len(made), made.isalnum(), kept) == (9, True, "abcdefgh1")
    assert mistral["messages"][2]["tool_call_id"] == made
    for other in ("groq/m", "deepseek/m", "ollama/m"):
        assert adapt_request(body, endpoint_of(other, "")) == body
    assert adapt_request(body, endpoint_of("openai/m", "http://own/v1")) == body
    assert body["messages"][1]["tool_calls"][0]["id"] == "call_a_long_id"


def test_a_signed_call_goes_back_with_its_signature():
    """Gemini refuses a call of its own without what came with it; nobody else is sent it."""
    assembler = Assembler()
    signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    delta = {
        "tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}, **signed}]
    }
    assembler.feed(parse_piece({"choices": [{"delta": delta}]}))
    (call,) = assembler.calls()
    assert call.signature == "c2ln"

    said = [Message(role="assistant", content="", tool_calls=(call, ToolCall(id="b", name="look")))]
    first, second = request_body("m", said, [], stream=False, signed=True)["messages"][1]["tool_calls"]
    assert first["extra_content"] == signed["extra_content"]
    assert second["extra_content"]["google"]["thought_signature"] == "skip_thought_signature_validator"
    for bare in request_body("m", said, [], stream=False)["messages"][1]["tool_calls"]:
        assert "extra_content" not in bare


@pytest.mark.parametrize("stream", [True, False])
async def test_a_provider_that_tells_the_cost_is_believed(stream):
    """OpenRouter says what an answer has cost; a server of one's own that says so as well is not asked for it."""
    async with FakeOpenAI() as fake:
        body = b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"cost":0.25}}'
        costs = []
        for tells in (True, False):
            fake.plan(Raw(body))
            endpoint = Endpoint(fake.api_base, "m", tells_cost=tells)
            client = OpenAIClient(
                "openrouter/m", api_base=fake.api_base, clock=ManualClock(), endpoint=endpoint
            )
            costs.append(
                (await collect(client, [Message(role="user", content="x")], stream=stream))[-1].cost_usd
            )
            await client.aclose()
        assert costs == [0.25, None]


def test_prices_are_those_of_the_list():
    """Known models of a provider keep the price they had with litellm; nobody else's price is taken for it."""
    assert listed_price("openai/gpt-5-mini") == Price(*(pytest.approx(usd) for usd in (0.25, 2.0, 0.025)))
    assert listed_price("mistral/mistral-large-latest") is not None
    assert listed_price("groq/gpt-5-mini") is None
    assert listed_price("openai/nobody-knows-this") is None
    assert spec("openai/gpt-5-mini").unpriced_models() == []
    assert spec("openrouter/anybody/anything").unpriced_models() == []
    assert spec("openai/nobody-knows-this").unpriced_models() == ["m"]
    assert spec("openai/gpt-5-mini", api_base="http://own/v1").unpriced_models() == ["m"]
    assert spec("ollama/gpt-5-mini").unpriced_models() == ["m"]


def test_a_key_of_the_environment_goes_to_its_provider_only(monkeypatch):
    """As with litellm, the usual variable counts where no key is set; not for an address of one's own."""
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
    monkeypatch.setenv("TOGETHER_API_KEY", "together")

    assert client_of(spec("openai/m", api_key=""))._server._key == "of the environment"
    assert client_of(spec("together/m", api_key=""))._server._key == "together"
    assert client_of(spec("openai/m", api_key="set"))._server._key == "set"
    assert client_of(spec("openai/m", api_key="", api_base="http://own/v1"))._server._key == ""
    assert key_variables("ollama/m") == ()
    assert key_variables("anthropic/m") == ("ANTHROPIC_API_KEY",)


async def test_a_whole_talk_with_a_tool():
    """The same client, under the name of a provider, at the address of a fake one."""
    async with FakeOpenAI() as fake:
        fake.plan(Say(calls=[Call("memory_write", '{"content": "- tea"}')]))
        client = OpenAIClient(
            "lm_studio/x",
            api_base=fake.api_base,
            clock=ManualClock(),
            endpoint=endpoint_of("lm_studio/x", fake.api_base),
        )
        chunks = await collect(client, [Message(role="user", content="hi")])
        await client.aclose()

        assert chunks[0].name == "memory_write"
        assert fake.requests[0]["model"] == "x"
