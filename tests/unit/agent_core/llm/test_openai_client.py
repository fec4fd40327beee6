"""The plain client beyond the contract: what servers do that they should not, and what goes out."""

from __future__ import annotations

import pytest

from agent_core.errors import (
    ContextTooLong,
    CreditSpent,
    ModelAuthFailed,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
    ModelUnreadable,
    StreamBroken,
)
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.openai_connection import failure_in, is_loopback
from agent_core.llm.prices import Price
from agent_core.llm.streaming import AnswerLimits
from agent_core.models import Message, Usage
from tests.clock import LoopClock
from tests.contract.llm import TOOLS, collect
from tests.doubles.openai_server import Cut, ErrorEvent, FakeOpenAI, Raw, Say, Stall, Status

ASK = [Message(role="user", content="hi")]


@pytest.fixture
async def fake():
    async with FakeOpenAI() as server:
        yield server


def client_for(fake, **more):
    return OpenAIClient("openai/test", api_base=fake.api_base, clock=LoopClock(), **more)


@pytest.fixture
async def client(fake):
    client = client_for(fake, api_key="sk-test", max_tokens=50, extra={"temperature": 0.1})
    yield client
    await client.aclose()


async def test_what_goes_out(fake, client):
    """Model name without prefix, key, limits, tools, extras; nothing that some servers refuse."""
    await collect(client, ASK)
    (request,) = fake.requests

    assert request["model"] == "test"
    assert fake.headers[0]["Authorization"] == "Bearer sk-test"
    assert (request["max_tokens"], request["temperature"]) == (50, 0.1)
    assert [tool["function"]["name"] for tool in request["tools"]] == [tool.name for tool in TOOLS]
    await collect(client, ASK, [], stream=False)
    assert "tools" not in fake.requests[1]
    assert "stream_options" not in fake.requests[1]


async def test_no_key_no_header(fake):
    """Without a key no authorization is sent."""
    client = client_for(fake)
    await collect(client, ASK)
    await client.aclose()

    assert "Authorization" not in fake.headers[0]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Raw(b"<html>welcome</html>", "text/html"), ModelUnreadable),
        (Raw(b"", "application/json"), ModelUnreadable),
        (Raw(b"[1, 2]", "application/json"), ModelUnreadable),
        (Raw(b"data: {nonsense\n\n", "text/event-stream"), ModelUnreadable),
        (Raw(b"data: \xff\xfe\n\n", "text/event-stream"), ModelUnreadable),
        (Raw(b'{"error": {"message": "no such key", "code": 401}}'), ModelAuthFailed),
        (Raw(b'{"code": 401, "msg": "token expired or incorrect", "success": false}'), ModelAuthFailed),
        (
            Raw(
                b'{"choices": null, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}'
            ),
            CreditSpent,
        ),
        (
            Raw(
                b'{"base_resp": {"status_code": 1004, "status_msg": "login fail: carry the API secret key"}}'
            ),
            ModelAuthFailed,
        ),
        (Raw(b'{"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}'), ModelRateLimited),
        (Raw(b'{"base_resp": {"status_code": 1000, "status_msg": "unknown error"}}'), ModelUnavailable),
        (Raw(b'{"error": {"code": "401", "message": "token expired or incorrect"}}'), ModelAuthFailed),
        (
            Raw(
                b'data: {"object": "error", "code": 400, "message": "maximum context length is 4096"}\n\n',
                "text/event-stream",
            ),
            ContextTooLong,
        ),
        (Status(302, headers={"location": "http://127.0.0.1:1/"}), ModelUnreadable),
        (Cut(), ModelUnavailable),
        (Cut(politely=True), ModelUnavailable),
        (ErrorEvent(), ModelUnavailable),
        (Cut(["so far"]), StreamBroken),
        (Cut(["so far"], politely=True), StreamBroken),
        (ErrorEvent(["so far"]), StreamBroken),
    ],
)
async def test_bad_servers(fake, client, reply, kind):
    """Nonsense, redirects, cuts and errors inside a stream are errors of ours, and the next question works."""
    fake.plan(reply)
    with pytest.raises(kind):
        await collect(client, ASK)

    assert (await collect(client, ASK))[0] == "echo: hi"


async def test_a_status_of_nothing_wrong_beside_an_answer(fake, client):
    """Negative control: MiniMax gives one with each answer."""
    body = b'{"choices": [{"message": {"content": "hi"}}], "base_resp": {"status_code": 0, "status_msg": ""}}'
    fake.plan(Raw(body))
    assert await collect(client, ASK) == ["hi"]


def test_an_error_has_the_words_and_the_wait_that_stand_beside_it():
    """OpenRouter hides the provider's words below its own, Gemini the time to wait in a list."""
    router = {
        "error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "too many tokens"}}
    }
    assert failure_in(router, status=400).text == "Provider returned error too many tokens"
    details = [{"@type": "QuotaFailure"}, {"@type": "RetryInfo", "retryDelay": "34s"}]
    gemini = [{"error": {"code": 429, "message": "check your plan and billing details", "details": details}}]
    assert '"retryDelay": "34s"' in failure_in(gemini, status=429).text


@pytest.mark.parametrize(
    "said",
    ["Unknown field: stream_options", "stream_options is not supported", "unrecognized 'streamOptions'"],
)
async def test_a_server_that_refuses_to_count_tokens_in_a_stream(fake, client, said):
    """It is asked once more without, and from then on; nobody has configured it, so no advice is given."""
    fake.plan(Status(400, said))
    assert (await collect(client, ASK))[0] == "echo: hi"
    assert (await collect(client, ASK))[0] == "echo: hi"
    assert ["stream_options" in each for each in fake.requests] == [True, False, False]
    assert client.notes == []


async def test_a_server_that_refuses_something_else_is_still_asked_to_count(fake, client):
    """Negative control."""
    fake.plan(Status(400, "Unknown field: frequency"))
    with pytest.raises(ModelRefused):
        await collect(client, ASK)
    await collect(client, ASK)
    assert "stream_options" in fake.requests[-1]


async def test_a_server_that_cannot_stream(fake, client):
    """One JSON object in place of a stream is taken."""
    body = b'{"choices": [{"message": {"content": "all at once"}, "finish_reason": "stop"}]}'
    fake.plan(Raw(body))

    assert await collect(client, ASK) == ["all at once"]


async def test_a_polite_cut_is_noticed_only_because_it_is_looked_for(fake, client):
    """Negative control: the same bytes with a reason for the end are a good answer; the end mark alone is none."""
    body = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    ended = body + b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    fake.plan(*(Raw(one, "text/event-stream") for one in (body, body + b"data: [DONE]\n\n", ended)))
    with pytest.raises(StreamBroken):
        await collect(client, ASK)
    with pytest.raises(StreamBroken):
        await collect(client, ASK)

    assert await collect(client, ASK) == ["a"]


async def test_nobody_there(fake):
    """A refused connection is temporary."""
    client = client_for(fake)
    await fake.__aexit__()
    with pytest.raises(ModelUnavailable):
        await collect(client, ASK)
    await client.aclose()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://localhost:1", "connection refused"),
        ("https://127.0.0.1:1", "connection refused"),
        ("https://{fake}", "it does not speak https there"),
    ],
)
async def test_a_server_that_cannot_be_reached_is_said_in_words(fake, address, why):
    """And not with the class names of a library; `squidbot status` and the log show it."""
    base = address.format(fake=fake.api_base.removeprefix("http://"))
    client = OpenAIClient("openai/test", api_base=base, clock=LoopClock())
    with pytest.raises(ModelUnavailable) as caught:
        await collect(client, ASK)
    await client.aclose()
    assert str(caught.value) == f"openai/test: the model's server cannot be reached ({why})"


async def test_a_stalled_request_is_dropped(fake):
    """When the limit ends a question, the server sees the client leave."""
    client = client_for(fake, limits=AnswerLimits(first_token_s=0.2, idle_s=0.2, total_s=5))
    fake.plan(Stall(), Stall(["a"]))
    with pytest.raises(ModelUnavailable):
        await collect(client, ASK)
    with pytest.raises(StreamBroken):
        await collect(client, ASK)
    await collect(client, ASK)
    await client.aclose()

    assert fake.gone == 2


async def test_prices(fake):
    """With a price the usage has a cost; without, it is unknown and not zero."""
    fake.plan(Say("a", usage=(1000, 10)), Say("a", usage=(1000, 10)))
    priced = client_for(fake, price=Price(2.0, 10.0))
    plain = client_for(fake)
    costs = [
        chunk.cost_usd
        for client in (priced, plain)
        for chunk in await collect(client, ASK)
        if isinstance(chunk, Usage)
    ]
    await priced.aclose()
    await plain.aclose()

    assert costs == [pytest.approx(0.0021), None]


async def test_it_can_be_closed_and_used_again(fake, client):
    """Closing lets go of connections; a later question opens new ones."""
    await collect(client, ASK)
    await client.aclose()
    await client.aclose()

    assert (await collect(client, ASK))[0] == "echo: hi"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:1/v1", True),
        ("http://127.0.0.2/v1", True),
        ("http://[::1]:8/v1", True),
        ("http://10.0.0.1/v1", False),
        ("https://api.example.org/v1", False),
    ],
)
def test_loopback_needs_no_proxy(url, expected):
    """A proxy in the environment is not asked for a server on this machine."""
    assert is_loopback(url) is expected
