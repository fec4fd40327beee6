"""Conversations with an Ollama that cuts off in silence what does not fit into its window."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agent_core.agent import AgentLoop
from agent_core.errors import ContextTooLong, ModelRefused, ModelUnavailable
from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec
from agent_core.llm.ollama_client import OllamaClient
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.pools import ModelPool, window_in
from agent_core.memory.manager import MemoryManager
from agent_core.models import Message
from agent_core.tools.tool_registry import ToolRegistry
from tests.clock import LoopClock
from tests.doubles.agent import FakeTool, Journey, Sink, session
from tests.doubles.in_memory_storage import InMemoryMemory
from tests.doubles.ollama_server import FakeOllama, Pulled, call

CLIENTS: list = []


@pytest.fixture
async def fake():
    async with FakeOllama() as server:
        yield server
        for client in CLIENTS:
            await client.aclose()
        CLIENTS.clear()


def client_for(fake, name="qwen3:4b", **more):
    client = OllamaClient(f"ollama/{name}", api_base=f"{fake.api_base}/v1", clock=LoopClock(), **more)
    CLIENTS.append(client)
    return client


def journey(fake, *tools, client=None, **limits):
    one = Journey(tools=tools, **limits)
    one.loop._llm = client or client_for(fake)
    return one


async def ask(client, text="hello", tools=()):
    chunks = [one async for one in await client.chat([Message(role="user", content=text)], tools)]
    return "".join(one for one in chunks if isinstance(one, str)), chunks


@pytest.mark.parametrize("stream", [True, False])
async def test_talk_with_its_window_and_tokens(fake, stream):
    """Also where the address ends in /v1; every request names its window and forbids to cut."""
    fake.answer = lambda _: {"content": "Hello there", "thinking": "hm"}
    client = client_for(fake)
    asked = SimpleNamespace(chat=lambda said, tools, **_: client.chat(said, tools, stream=stream))
    result = await journey(fake, client=asked).run()
    assert result.reply == "Hello there"
    request = fake.requests[0]
    assert request["options"]["num_ctx"] == 16_384
    assert (request["truncate"], request["shift"]) == (False, False)
    assert result.usage.prompt_tokens == len(fake.read[0].split())
    assert fake.shown == 1


@pytest.mark.parametrize(
    ("own", "more", "expected"),
    [
        (40_960, {"window": 32_000}, 32_000),
        (8_192, {}, 8_192),
        (8_192, {"window": 32_000}, 8_192),
        (40_960, {"extra": {"num_ctx": 9_000}}, 9_000),
        (40_960, {"extra": {"options": {"num_ctx": 9_000}, "top_p": 0.5}}, 9_000),
    ],
)
async def test_the_smallest_word_on_the_window_counts(fake, own, more, expected):
    """Of the owner's, the model's and our own; a mismatch with the owner's is said with what mends it."""
    fake.models["qwen3:4b"] = Pulled(own)
    client = client_for(fake, **more)
    await ask(client)
    assert fake.requests[0]["options"]["num_ctx"] == expected == client.window
    assert bool(client.notes) == (own < more.get("window", 0))
    assert all(f"max_context_tokens: {own}" in note for note in client.notes)


async def test_tools_and_their_results(fake):
    """Calls come whole and run once; results go back by the name of their tool."""
    look = FakeTool("look", "it is 7", n="integer")
    fake.answer = lambda read: "7" if "it is 7" in read else call("look", n=1)
    result = await journey(fake, look).run()
    assert result.reply == "7"
    assert look.runs == [{"n": 1}]
    assert fake.requests[1]["messages"][-1]["tool_name"] == "look"


async def test_options_of_other_protocols_have_ollamas_names(fake):
    """`num_predict`, and what a model thinks only where it can."""
    fake.models["qwen3:4b"] = Pulled(capabilities=("completion", "thinking"))
    await ask(client_for(fake, max_tokens=77, extra={"temperature": 0.1, "reasoning_effort": "none"}))
    assert fake.requests[-1]["options"] == {"num_predict": 77, "temperature": 0.1, "num_ctx": 16_384}
    assert fake.requests[-1]["think"] is False
    fake.models["qwen3:4b"] = Pulled()
    await ask(client_for(fake, extra={"reasoning_effort": "high"}))
    assert "think" not in fake.requests[-1]


async def test_a_model_without_tools_is_asked_without(fake):
    """At once, remembered, and known to its owner."""
    fake.models["qwen3:4b"] = Pulled(capabilities=("completion",))
    client = client_for(fake)
    result = await journey(fake, FakeTool(), client=client).run()
    assert result.reply == "ok"
    assert len(fake.requests) == 1
    assert "cannot use tools" in client.notes[0]
    assert "You cannot use any tools" in fake.read[0]


async def test_a_missing_model_is_named_with_its_command_and_asked_at_once_when_it_is_there(fake):
    """A pool does not wait for what costs nothing to look up."""
    pool = ModelPool("main", [("small", client_for(fake, "foo"))], LoopClock())
    with pytest.raises(ModelRefused, match="ollama pull foo") as caught:
        await ask(pool)
    assert "ollama pull foo" in caught.value.public
    fake.models["foo"] = Pulled()
    assert (await ask(pool))[0] == "ok"
    del fake.models["foo"]
    with pytest.raises(ModelRefused, match="ollama pull foo"):
        await ask(pool)


async def test_an_error_inside_the_stream_and_a_cut_answer(fake):
    """The one is no answer; the other says that it was cut."""
    fake.breaks_with = "an error was encountered while running the model"
    fake.answer = lambda _: ""
    with pytest.raises(ModelUnavailable):
        await ask(client_for(fake))
    fake.breaks_with, fake.done_reason, fake.answer = "", "length", lambda _: "words and"
    assert "cut off" in (await journey(fake).run()).reply


class TestWindows:
    """Nothing is cut in silence, whatever the server does."""

    async def test_control_in_openais_protocol_the_question_is_cut(self, fake):
        """What the native protocol is for: half of the text and all before it are gone."""
        client = OpenAIClient("openai/qwen3:4b", api_base=f"{fake.api_base}/v1", clock=LoopClock())
        CLIENTS.append(client)
        await ask(client, "first " + "word " * 5000)
        assert fake.cuts == 1
        assert "first" not in fake.read[0]

    async def test_what_does_not_fit_is_not_sent(self, fake):
        """The error has the window, and how much room there is."""
        client = client_for(fake, window=2_000)
        with pytest.raises(ContextTooLong) as caught:
            await ask(client, "word " * 5000)
        assert caught.value.fields["window"] == 2_000
        assert not fake.requests

    async def test_a_server_that_cuts_all_the_same_is_noticed(self, fake):
        """One that knows neither `truncate` nor `num_ctx`: nothing of such an answer is used."""
        fake.knows_truncate = fake.honours_window = False
        client = client_for(fake, window=32_000)
        with pytest.raises(ContextTooLong):
            await ask(client, "word " * 5000)
        assert "OLLAMA_CONTEXT_LENGTH" in client.notes[0]
        with pytest.raises(ContextTooLong):
            await ask(client, "word " * 5000)
        assert fake.cuts == 1, "now it is known"

    async def test_in_openais_protocol_the_window_is_asked_for(self, fake):
        """By `/api/ps` for an Ollama; the owner is told of the mismatch."""
        client = OpenAIClient(
            "openai/qwen3:4b", api_base=f"{fake.api_base}/v1", clock=LoopClock(), window=32_000
        )
        client.at_home = True
        CLIENTS.append(client)
        with pytest.raises(ContextTooLong):
            await ask(client, "word " * 5000)
        assert client.window == 4096
        assert "max_context_tokens: 4096" in client.notes[0]

    @pytest.mark.parametrize(
        ("answer", "window"),
        [
            ({"data": [{"id": "m", "max_model_len": 8192}, {"id": "n", "max_model_len": 1024}]}, 8192),
            ({"data": [{"id": "file.gguf", "meta": {"n_ctx": 4096, "n_ctx_train": 32768}}]}, 4096),
            ({"default_generation_settings": {"n_ctx": 2048}}, 2048),
            ({"data": [{"id": "m", "loaded_context_length": 4096, "max_context_length": 131072}]}, 4096),
            ({"data": [{"id": "m", "max_context_length": 131072}]}, None),
            ({"data": [{"id": "a", "max_model_len": 1}, {"id": "b"}]}, None),
            ([], None),
        ],
    )
    def test_what_servers_say(self, answer, window):
        """vLLM, llama.cpp twice, LM Studio with the model loaded and not."""
        assert window_in(answer, "m") == window

    async def test_long_results_are_cut_to_the_window_of_the_model(self, fake):
        """Ten pages of 16,000 characters: each step fits, and the run ends with an answer."""
        numbers = iter(range(1, 99))
        fake.answer = lambda read: call("look", n=next(numbers)) if read.count("<tool>") < 10 else "done"
        look = FakeTool("look", "page " * 3200, n="integer")
        result = await journey(fake, look, client=client_for(fake, window=8_000)).run("where is the PIN?")
        assert result.reply == "done"
        assert len(look.runs) == 10
        assert fake.cuts == 0
        assert all("where is the PIN?" in read for read in fake.read)

    async def test_a_small_model_behind_a_big_one(self, fake):
        """The prompt for the big one is built anew for the small one."""

        class Away:
            async def chat(self, *_, **__):
                raise ModelUnavailable("away")

        small = client_for(fake, window=3_000)
        pool = ModelPool("main", [("big", Away()), ("small", small)], LoopClock())
        storage = InMemoryMemory()
        memory = MemoryManager(storage)
        for number in range(60):
            await memory.persist_exchange("test/room", f"fact {number} " + "word " * 90, "noted")
        loop = AgentLoop(memory, ToolRegistry(), pool, system_prompt=lambda: "Be good.", clock=LoopClock())
        result = await loop.run(session(), "And now?", Sink())
        assert result.reply == "ok"
        assert fake.cuts == 0
        assert "fact 59" in fake.read[0]
        assert "fact 1 " not in fake.read[0]


def test_who_is_asked_in_ollamas_own_protocol():
    """By its name, also where litellm is named, and by its port; not where somebody wants OpenAI's."""
    models = {
        "a": {"provider": "here", "model": "ollama/m"},
        "b": {"provider": "here", "model": "ollama_chat/m", "client": "litellm"},
        "c": {"provider": "v1", "model": "openai/m"},
        "d": {"provider": "v1", "model": "openai/m", "client": "openai"},
        "e": {"provider": "other", "model": "openai/m"},
    }
    providers = {
        "here": {},
        "v1": {"api_base": "http://127.0.0.1:11434/v1"},
        "other": {"api_base": "http://127.0.0.1:8000/v1"},
    }
    spec = LLMSpec.model_validate(
        {"default_pool": "main", "providers": providers, "models": models, "pools": {"main": list(models)}}
    )
    kinds = [type(client) for client in build_models(spec, LoopClock()).pool().models]
    assert kinds == [OllamaClient] * 3 + [OpenAIClient] * 2
