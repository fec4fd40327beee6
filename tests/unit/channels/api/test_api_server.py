"""What the endpoint says when it cannot answer, and that a slow answer keeps its connection."""

from __future__ import annotations

import gzip
import json

import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from channels.api import api_server
from channels.api import channel as channel_module
from channels.api.api_server import ApiServer
from channels.api.token_store import ApiTokens
from tests.clock import EPOCH
from tests.doubles.inbox import running
from tests.unit.channels.api.test_api_channel import ANNA, Scenario

CHAT = {"model": "squidbot", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def world(tmp_path):
    made = Scenario(tmp_path)
    made.text = ApiTokens(made.channel.services.state).add("test", ANNA, EPOCH)
    app = web.Application()
    app.add_routes(ApiServer(made.channel).routes())
    async with TestClient(TestServer(app)) as made.client:
        yield made


async def post(world, body, *, text=None):
    headers = {"Authorization": f"Bearer {world.text if text is None else text}"}
    answer = await world.client.post("/v1/chat/completions", data=body, headers=headers)
    return answer, json.loads(await answer.read())


async def test_while_it_does_not_run_it_says_when_to_come_again(world):
    answer, body = await post(world, json.dumps(CHAT))
    assert (answer.status, answer.headers["Retry-After"], body["error"]["type"]) == (
        503,
        "10",
        "server_error",
    )


async def test_damaged_tokens_open_nothing(world):
    world.channel.services.state.write("tokens.json", b"[{}]")
    answer, body = await post(world, json.dumps(CHAT))
    assert (answer.status, "damaged" in body["error"]["message"]) == (503, True)


async def test_nothing_is_read_without_a_token(world):
    """Not even whether the body is sound."""
    for text in ("", "sqb-no", "café", "x" * 5_000):
        answer, body = await post(world, b"{", text=text)
        assert (answer.status, body["error"]["code"]) == (401, "invalid_api_key")
    answer, body = await post(world, b"{")
    assert (answer.status, body["error"]["type"]) == (400, "invalid_request_error")


def chat(**more):
    return json.dumps({**CHAT, **more}).encode()


def asked(*content):
    return chat(messages=[{"role": "user", "content": each} for each in content])


HOSTILE = [
    *(b"", b"null", b"[]", b"{}", b"7", b"NaN", b"\xff\xfe\x00", b'{"model": "squidbot", "messages": ', b"{" * 100_000),
    *(b"[" * depth + b"]" * depth for depth in (900, 990, 5_000)),
    *(chat(messages=one) for one in (None, 1, {}, [], [None], [[]], [{}], [{"role": ["user"]}], [{"role": "user"}])),
    *(asked(one) for one in (7, {}, [], [7], [{}], [[]], [{"type": []}], [{"type": "text"}], [{"type": "text", "text": 7}])),
    *(
        asked([{"type": "image_url", "image_url": one}])
        for one in (None, [], {}, "http://127.0.0.1/", "file:///etc/passwd", "data:image/png;base64,\ud800", "data:image/;base64,=")
    ),
    *(chat(metadata=one) for one in ({"conversation": []}, {"conversation": "x" * 200})),
    *(chat(model=one) for one in (None, [], "\ud800", "gpt-4o")),
    *(chat(n=one) for one in (0, 2, "1", [], 1e400)),
    *(chat(response_format={"type": one}) for one in ("json_object", [], None)),
    chat(messages=[{"role": "user", "content": "a"}, {"type": "function_call_output", "output": "b"}]),
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_whatever_the_body_is_the_answer_has_openais_shape(world, path):
    """And says what is wrong; none is a defect of ours. The control is a body that only has to wait."""
    headers = {"Authorization": f"Bearer {world.text}"}
    for body in (*HOSTILE, *(one.replace(b'"messages"', b'"input"') for one in HOSTILE)):
        answer = await world.client.post(path, data=body, headers=headers)
        told = json.loads(await answer.read())["error"]
        assert (answer.status in (400, 404), bool(told["message"])) == (True, True), (
            body[:200],
            answer.status,
        )
    answer = await world.client.post("/v1/chat/completions", data=asked("\ud800 \0 x"), headers=headers)
    assert answer.status == 503


async def test_a_body_that_cannot_be_unpacked_is_the_clients_mistake(world):
    for kind, body in (
        ("gzip", b"no gzip"),
        ("gzip", gzip.compress(b'"' + b"x" * 50_000_000)),
        ("deflate", b"\xff"),
    ):
        headers = {
            "Authorization": f"Bearer {world.text}",
            "Content-Encoding": kind,
            "Connection": "close",
        }
        answer = await world.client.post("/v1/chat/completions", data=body, headers=headers)
        told = json.loads(await answer.read())["error"]
        assert (answer.status, told["type"]) == (413 if len(body) > 100 else 400, "invalid_request_error")


async def test_a_body_must_come_in_time(world, monkeypatch):
    monkeypatch.setattr(api_server, "_BODY_LIMIT_S", 0.05)

    async def slow():
        yield b"{"
        await anyio.sleep(0.5)
        yield b"}"

    answer, body = await post(world, slow())
    assert (answer.status, "in time" in body["error"]["message"]) == (408, True)


async def test_a_store_that_takes_nothing_is_told(world, monkeypatch):
    monkeypatch.setattr(channel_module, "_ACCEPT_LIMIT_S", 0.05)
    async with running(world.channel, world.inbox):
        await world.inbox.until_up()
        world.inbox.hold()
        answer, body = await post(world, json.dumps(CHAT))
        assert (answer.status, "stored" in body["error"]["message"]) == (503, True)


async def test_a_stream_is_kept_alive_and_ends_with_an_error_if_squidbot_stops(world, monkeypatch):
    monkeypatch.setattr(api_server, "_ALIVE_EVERY_S", 0.0)
    async with running(world.channel, world.inbox):
        await world.inbox.until_up()
        headers = {"Authorization": f"Bearer {world.text}"}
        body = json.dumps({**CHAT, "stream": True})
        answer = await world.client.post("/v1/chat/completions", data=body, headers=headers)
        assert b"assistant" in await answer.content.readuntil(b"\n\n")
        assert await answer.content.readuntil(b"\n\n") == b": still working\n\n"
    rest = (await answer.content.read()).decode().split("\n\n")
    error = json.loads(rest[-2].removeprefix("data: "))["error"]
    assert (error["type"], "stopping" in error["message"]) == ("server_error", True)


async def test_a_page_in_a_browser_must_be_named(world):
    """Its questions and all answers, errors too; other pages get nothing that lets them read. It is off by default."""
    page, other = "https://chat.example.org", "https://evil.example"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-stainless-os"}
    answer = await world.client.options("/v1/chat/completions", headers={"Origin": page, **asked})
    assert answer.status == 401
    assert "Access-Control-Allow-Origin" not in answer.headers
    world.channel.origins = (page,)
    answer = await world.client.options("/v1/chat/completions", headers={"Origin": page, **asked})
    assert (answer.status, answer.headers["Access-Control-Allow-Headers"]) == (204, "x-stainless-os")
    known = {"Authorization": f"Bearer {world.text}"}
    for path, headers, status in (("/v1/models", known, 200), ("/v1/models", {}, 401)):
        for origin, allowed in ((page, page), (other, None)):
            answer = await world.client.get(path, headers={"Origin": origin, **headers})
            assert answer.status == status
            assert answer.headers.get("Access-Control-Allow-Origin") == allowed
    answer = await world.client.options("/v1/chat/completions", headers={"Origin": other, **asked})
    assert answer.status == 401
