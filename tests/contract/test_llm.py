"""Every `LLMPort` of ours is held to the same promises: both clients, the demo model, a pool of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from agent_core.errors import ModelError
from agent_core.llm.demo.demo_model import DemoModel
from agent_core.llm.litellm.litellm_child import _cost_or_none
from agent_core.llm.litellm.litellm_client import LiteLLMClient, LiteLLMProcess
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.openai_format import Piece, TokenCounts
from agent_core.llm.pools import ModelPool
from agent_core.llm.prices import Price
from agent_core.llm.streaming import AnswerLimits
from agent_core.models import Message, ToolCall
from tests.clock import LoopClock, ManualClock
from tests.contract.llm import LLMContract, Situation, collect
from tests.doubles.openai_server import TOO_LONG, Call, Cut, FakeOpenAI, Raw, Say, Status, bound

# litellm 1.105 asks pydantic objects for attributes that pydantic wants to be asked of their class.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm"),
    pytest.mark.filterwarnings(
        "ignore:.*using the `ReadOnly` qualifier:UserWarning"
    ),  # pydantic, of litellm's types
]

LIMITS = AnswerLimits(first_token_s=20.0, idle_s=20.0, total_s=25.0)
REPLIES = {
    Situation.TALK: Say("Good ", "morning", "!"),
    Situation.CALL: Say("One moment. ", calls=[Call("memory_write", '{"content": "- tea"}')]),
    Situation.GARBAGE: Say(calls=[Call("memory_write", '{"content": "half')]),
    Situation.EMPTY: Say(),
    Situation.AUTH: Status(401, "Incorrect API key provided: sk-test"),
    Situation.RATE: Status(429, "slow down", headers={"retry-after": "2"}),
    Situation.LONG: TOO_LONG,
    Situation.AWAY: Status(500, "oops", type="server_error"),
    Situation.CUT: Cut(["I was ", "about to"]),
    Situation.ENDLESS: Say(*["and on "] * 2000, pause_s=0.05),
}
SENTENCES = {
    Situation.TALK: "hello",
    Situation.CALL: "please remember that tea",
    Situation.GARBAGE: "!garbage",
    Situation.EMPTY: "!empty",
    Situation.AUTH: "!auth",
    Situation.RATE: "!ratelimit",
    Situation.LONG: "!toolong",
    Situation.AWAY: "!timeout",
    Situation.CUT: "!cut",
    Situation.ENDLESS: "!endless",
}


class FakeServerRig:
    """A client with the fake server behind it."""

    def __init__(self, fake: FakeOpenAI, llm: OpenAIClient | LiteLLMClient) -> None:
        self.fake = fake
        self.llm = llm

    async def arrange(self, situation: Situation) -> list[Message]:
        self.fake.plan(REPLIES[situation])
        return [Message(role="system", content="Be brief."), Message(role="user", content="Good morning?")]


class DemoRig:
    """The demo model, which understands magic words."""

    def __init__(self) -> None:
        self.llm = DemoModel()

    async def arrange(self, situation: Situation) -> list[Message]:
        return [
            Message(role="system", content="Be brief."),
            Message(role="user", content=SENTENCES[situation]),
        ]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for all tests here, because the process of litellm belongs to one."""
    return "asyncio"


@pytest.fixture(scope="module")
async def process(anyio_backend: str) -> AsyncIterator[LiteLLMProcess]:
    """litellm in its process; starting it takes seconds."""
    one = LiteLLMProcess()
    await one.start()
    yield one
    await one.aclose()


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as server:
        yield server


class TestOpenAIClient(LLMContract):
    """The plain client."""

    @pytest.fixture
    async def rig(self, fake: FakeOpenAI) -> AsyncIterator[FakeServerRig]:
        client = OpenAIClient(
            "openai/test", api_base=fake.api_base, clock=LoopClock(), api_key="sk-test", limits=LIMITS
        )
        yield FakeServerRig(fake, client)
        await client.aclose()


class TestLiteLLMClient(LLMContract):
    """
    litellm. Its streamed tool call is the test that catches releases which fail on every call with tools.
    """

    @pytest.fixture
    async def rig(self, fake: FakeOpenAI, process: LiteLLMProcess) -> AsyncIterator[FakeServerRig]:
        client = LiteLLMClient(
            "openai/test",
            api_base=fake.api_base,
            clock=LoopClock(),
            process=process,
            api_key="sk-test",
            limits=LIMITS,
        )
        yield FakeServerRig(fake, client)
        assert process.pid is not None, "the process did not survive the test"

    @pytest.mark.parametrize("body", [b"<html>", b"[" * 200_000, b"{}", b"\xff\xfe"])
    async def test_rubbish_is_no_outage(self, rig: FakeServerRig, body: bytes):
        """What cannot be read is final, as with the plain client."""
        rig.fake.plan(Raw(body))
        with pytest.raises(ModelError) as caught:
            await collect(rig.llm, [Message(role="user", content="hi")], stream=False)
        assert not caught.value.temporary

    async def test_the_server_sees_one_request_with_the_tools(self, rig: FakeServerRig):
        """A streamed call with tools is one request that carries them; a failure is one request as well."""
        await self.test_a_tool_call_comes_complete(rig, stream=True)
        (request,) = rig.fake.requests
        assert request["tools"][0]["function"]["name"] == "memory_write"
        assert request["stream_options"] == {"include_usage": True}

        rig.fake.requests.clear()
        with pytest.raises(ModelError):
            await collect(rig.llm, await rig.arrange(Situation.AWAY))
        assert len(rig.fake.requests) == 1


class TestDemoModel(LLMContract):
    """The model that is shipped."""

    @pytest.fixture
    def rig(self) -> DemoRig:
        return DemoRig()


class TestPool(LLMContract):
    """A pool with one member keeps the promises of the member."""

    @pytest.fixture
    def rig(self) -> DemoRig:
        rig = DemoRig()
        rig.llm = ModelPool("main", [("demo", DemoModel())], ManualClock())  # type: ignore[assignment]
        return rig


class HastyModel(DemoModel):
    """A naive double: it hands calls out before the text, keeps broken answers quiet, and hides garbage."""

    async def _answer(self, messages, tools, *, stream):
        reply = self._reply(messages, tools)
        for call in reply.calls:
            yield ToolCall(id=call.id, name=call.name, arguments=call.arguments)
        yield reply.text or "Let me see."


class TestTheContractBites:
    """Negative control: a naive model fails the promises that it breaks."""

    @pytest.fixture
    def rig(self) -> DemoRig:
        rig = DemoRig()
        rig.llm = HastyModel()
        return rig

    @pytest.mark.parametrize(
        "promise",
        [
            lambda rig: LLMContract().test_text_comes_in_pieces_and_the_usage_last(rig),
            lambda rig: LLMContract().test_a_tool_call_comes_complete(rig, stream=True),
            lambda rig: LLMContract().test_garbage_as_arguments_is_a_call_that_cannot_be_made(
                rig, stream=True
            ),
            lambda rig: LLMContract().test_an_empty_answer_is_an_error(rig, stream=True),
            lambda rig: LLMContract().test_a_broken_stream_says_what_came_before(rig),
            lambda rig: LLMContract().test_an_error_does_not_stay(rig),
        ],
    )
    async def test_a_naive_model_fails(self, rig: DemoRig, promise):
        """Each of these promises notices."""
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            await promise(rig)


class TestCost:
    """What an answer cost, as far as anybody knows."""

    @pytest.mark.parametrize(
        ("model", "api_base", "price", "known"),
        [
            ("anthropic/claude-sonnet-4-5", "", None, True),
            ("openai/gpt-4o-mini", "", None, True),
            ("openai/gpt-4o-mini", "http://127.0.0.1:1/v1", None, False),
            ("openai/nobody-knows-this", "", None, False),
            ("openai/nobody-knows-this", "", Price(1.0, 2.0), True),
        ],
    )
    @pytest.mark.slow  # it imports litellm
    def test_known_or_unknown_but_never_an_error(self, model, api_base, price, known, monkeypatch):
        """
        A price of the operator's first, then litellm's table, else None: never zero, never an exception.
        """
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        monkeypatch.setenv("LITELLM_MODE", "PRODUCTION")
        import litellm

        client = LiteLLMClient(
            model, clock=LoopClock(), process=LiteLLMProcess(), api_base=api_base, price=price
        )
        usage = litellm.Usage(prompt_tokens=1000, completion_tokens=100, total_tokens=1100)
        listed = _cost_or_none(model, usage) if client._wants_cost else None
        cost = client._priced(Piece(tokens=TokenCounts(1000, 100), cost_usd=listed)).cost_usd

        assert (cost is not None) is known
        assert cost is None or 0 < cost < 1


ANTHROPIC_USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 200,
    "cache_read_input_tokens": 3000,
    "output_tokens": 50,
}
ANTHROPIC_SAYS = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [
        {"type": "thinking", "thinking": "CANARY", "signature": "x"},
        {"type": "text", "text": "hello"},
    ],
    "stop_reason": "end_turn",
    "usage": ANTHROPIC_USAGE,
}


def anthropic_events() -> list[dict[str, Any]]:
    """The same answer as a stream."""
    start = {**ANTHROPIC_SAYS, "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, (kind, block, delta) in enumerate(
        [
            ("thinking", {"thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "CANARY"}),
            ("text", {"text": ""}, {"type": "text_delta", "text": "hello"}),
        ]
    ):
        events += [
            {"type": "content_block_start", "index": index, "content_block": {"type": kind, **block}},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        *events,
        {"type": "message_delta", "delta": ended, "usage": ANTHROPIC_USAGE},
        {"type": "message_stop"},
    ]


@pytest.fixture
async def anthropic() -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server that speaks Anthropic's protocol, and the requests that it gets."""
    requests: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append(await request.json())
        if not requests[-1].get("stream"):
            return web.json_response(ANTHROPIC_SAYS)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in anthropic_events():
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    server = bound(0)
    await web.SockSite(runner, server).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
    await runner.cleanup()


@pytest.mark.parametrize("stream", [True, False])
async def test_anthropic_is_told_where_to_keep_a_prompt(
    stream: bool, process: LiteLLMProcess, anthropic: tuple[str, list[dict[str, Any]]]
):
    """
    Through litellm: the marks arrive where they belong, what was kept is counted, and thinking stays
    hidden.
    """
    api_base, requests = anthropic
    client = LiteLLMClient(
        "anthropic/claude-sonnet-4-5", clock=LoopClock(), process=process, api_base=api_base, api_key="k"
    )
    call = ToolCall(id="t", name="memory_write", arguments={"content": "x"})
    said = [
        Message(role="system", content="sys"),
        Message(role="user", content="q", id="1.0"),
        Message(role="assistant", content="a", id="1.1"),
        Message(role="user", content="now"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="done", tool_call_id="t"),
    ]
    chunks = await collect(client, said, stream=stream)

    usage = chunks[-1]
    assert "".join(chunk for chunk in chunks if isinstance(chunk, str)) == "hello"
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (3210, 50, 3000)
    assert usage.thinking_tokens > 0
    assert usage.cost_usd == pytest.approx((10 * 3 + 200 * 3.75 + 3000 * 0.3 + 50 * 15) / 1e6)
    (request,) = requests
    mark = {"type": "ephemeral"}
    assert request["tools"][-1]["cache_control"] == mark
    assert request["system"][-1] == {"type": "text", "text": "sys", "cache_control": mark}
    marked = [
        (number, block["type"])
        for number, message in enumerate(request["messages"])
        for block in message["content"]
        if "cache_control" in block
    ]
    assert marked == [(1, "text"), (4, "tool_result")]
