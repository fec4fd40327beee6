"""Each deviation from nio, beside the plain nio that needs it. A server on loopback says what is to be read."""

import json
import logging
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest
from aiohttp import web
from nio import AsyncClient, AsyncClientConfig, SyncResponse

from channels.matrix.client import nio_homeserver
from channels.matrix.client.homeserver import LinkBroken, MatrixCredentials, SyncRequest
from channels.matrix.client.nio_homeserver import NioHomeserver
from tests.integration.proxy import free_socket

BOT = "@bot:hs.test"
INVITED = {
    "type": "m.room.member", "state_key": BOT, "sender": "@a:b", "content": {"membership": "invite", "is_direct": True},
}  # fmt: skip
GOOD = {"type": "m.room.message", "event_id": "$1", "sender": "@a:b", "origin_server_ts": 1,
        "content": {"msgtype": "m.text", "body": "hi"}}  # fmt: skip
POISON = {
    "next_batch": "n",
    "rooms": {
        "leave": {"!x:b": {"timeline": {"events": [], "limited": "odd"}}},
        "join": {"!a:b": {"timeline": {"events": [GOOD]}}},
    },
}
ASK = SyncRequest("s0", full_state=False, wait_s=0.0, timeline_limit=50)


class ScriptedServer:
    """Answers every request with what is set."""

    def __init__(self):
        self.status = 200
        self.body = "{}"
        self.content_type = "application/json"
        self.headers = {}
        self.cut = False
        self.silent = False
        self.drop = 0
        self.requests = []

    async def handle(self, request):
        self.requests.append((request.method, request.raw_path, request.headers, await request.text()))
        if self.silent:
            await anyio.sleep(30)
        if self.drop:
            self.drop -= 1
            request.transport.abort()
        if self.cut:
            answer = web.StreamResponse(headers={"Content-Length": "1000"})
            await answer.prepare(request)
            await answer.write(b"{")
            request.transport.close()
            return answer
        return web.Response(
            status=self.status, text=self.body, content_type=self.content_type, headers=self.headers
        )


@asynccontextmanager
async def serving():
    server = ScriptedServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listener = free_socket()
    await web.SockSite(runner, listener).start()
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    homeserver = NioHomeserver(server.url, BOT)
    homeserver.credentials = MatrixCredentials(BOT, "DEV", "tok")
    try:
        yield server, homeserver
    finally:
        await homeserver.aclose()
        await runner.cleanup()


@asynccontextmanager
async def plain_nio(url):
    client = AsyncClient(url, BOT, config=AsyncClientConfig(max_timeouts=0, max_limit_exceeded=0))
    client.restore_login(BOT, "DEV", "tok")
    try:
        yield client
    finally:
        await client.close()


async def test_one_malformed_part_takes_nothing_along():
    """Plain nio raises out of sync and everything is lost; here the whole answer is still there."""
    async with serving() as (server, homeserver), plain_nio(server.url) as naive:
        server.body = json.dumps(POISON)
        with pytest.raises(Exception, match=r"odd|boolean"):
            await naive.sync()
        answer = await homeserver.sync(ASK)

    assert answer.body == POISON


async def test_nothing_is_kept_of_what_was_synced():
    """Plain nio keeps a model of every room and member for as long as it lives; here nothing is."""
    members = [
        {**INVITED, "state_key": f"@m{number}:b", "content": {"membership": "join"}} for number in range(50)
    ]
    for number, event in enumerate(members):
        event |= {"event_id": f"${number}", "origin_server_ts": 1}
    rooms = {
        f"!{number}:b": {"state": {"events": members}, "timeline": {"events": []}} for number in range(20)
    }
    async with serving() as (server, homeserver), plain_nio(server.url) as naive:
        server.body = json.dumps({"next_batch": "n", "rooms": {"join": rooms}})
        await naive.sync()
        await homeserver.sync(ASK)

        assert sum(len(room.users) for room in naive.rooms.values()) == 1000
        assert homeserver.client.rooms == {}


async def test_invitations_keep_their_content():
    """nio takes the content out of the events that it reads (B16); what we read is a copy of the original."""
    body = {"next_batch": "n", "rooms": {"invite": {"!a:b": {"invite_state": {"events": [INVITED]}}}}}
    taken = json.loads(json.dumps(body))
    SyncResponse.from_dict(taken)
    assert "content" not in taken["rooms"]["invite"]["!a:b"]["invite_state"]["events"][0]
    async with serving() as (server, homeserver):
        server.body = json.dumps(body)
        answer = await homeserver.sync(ASK)

    assert answer.body == body


async def test_a_request_is_made_once():
    """429 and 5xx come back at once, with the pause that header or body ask for, whichever is longer."""
    async with serving() as (server, homeserver):
        server.status, server.headers = 429, {"Retry-After": "7"}
        server.body = '{"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 2000}'
        for answer in (await homeserver.sync(ASK), await homeserver.request("GET", "/x")):
            assert (answer.status, answer.errcode, answer.retry_after_s) == (429, "M_LIMIT_EXCEEDED", 7.0)
        server.status, server.body, server.headers = 502, "<html>", {}
        for answer in (await homeserver.sync(ASK), await homeserver.request("PUT", "/x", {"a": 1})):
            assert (answer.status, answer.errcode, dict(answer.body)) == (502, "", {})

    assert len(server.requests) == 4


@pytest.mark.parametrize("how", ["ours", "aiohttp alone"])
async def test_a_broken_connection_repeats_nothing_that_changes_something(how):
    """
    A PUT is taken, the kept-alive connection breaks, and a second one would be refused: nobody knows.

    Without `_once` aiohttp makes the second one by itself, and its refusal hides that the first was taken.
    """
    async with serving() as (server, homeserver):
        if how == "aiohttp alone":
            homeserver.client.client_session = aiohttp.ClientSession()
        assert (await homeserver.request("GET", "/x")).is_success  # the connection is kept
        server.drop, server.status, server.body = 1, 403, '{"errcode": "M_FORBIDDEN"}'
        if how == "ours":
            with pytest.raises(LinkBroken, match="the connection broke") as caught:
                await homeserver.request("PUT", "/x", {"a": 1})
            assert caught.value.maybe_taken
        else:
            assert (await homeserver.request("PUT", "/x", {"a": 1})).errcode == "M_FORBIDDEN"
        puts = [request for request in server.requests if request[0] == "PUT"]
        assert len(puts) == (1 if how == "ours" else 2)
        server.drop = 1
        assert (await homeserver.request("GET", "/x")).status == 403  # reading again costs nothing


async def test_a_truncated_body_is_a_broken_link():
    """aiohttp's exception, which plain nio lets through (B8), is translated; the server may have acted."""
    async with serving() as (server, homeserver):
        server.cut = True
        for ask in (lambda: homeserver.sync(ASK), lambda: homeserver.request("POST", "/x", {})):
            with pytest.raises(LinkBroken) as caught:
                await ask()
            assert caught.value.maybe_taken


async def test_a_connection_on_which_nothing_comes_any_more(monkeypatch):
    """Half open: each request ends within its limit, and the next one goes over a connection that works."""
    monkeypatch.setattr(nio_homeserver, "SYNC_SLACK_S", 0.2)
    async with serving() as (server, _):
        homeserver = NioHomeserver(server.url, BOT)
        homeserver.credentials = MatrixCredentials(BOT, "DEV", "tok")
        assert (await homeserver.request("GET", "/x")).is_success
        server.silent = True
        for ask in (
            lambda: homeserver.sync(ASK),
            lambda: homeserver.request("PUT", "/x", {"a": 1}, timeout_s=0.2),
        ):
            with pytest.raises(LinkBroken, match="in time") as caught:
                await ask()
            assert caught.value.maybe_taken
        server.silent = False
        assert (await homeserver.request("GET", "/x")).is_success
        await homeserver.aclose()


async def test_a_server_that_is_not_there():
    """Nothing was sent, so nothing can have been taken."""
    homeserver = NioHomeserver("http://127.0.0.1:9", BOT)
    with pytest.raises(LinkBroken, match="cannot connect") as caught:
        await homeserver.request("PUT", "/x", {})
    await homeserver.aclose()

    assert not caught.value.maybe_taken


async def test_tokens_and_paths_arrive_as_they_are_meant():
    """The token is in the header, never in the address; an anonymous request has none; ids stay encoded."""
    async with serving() as (server, homeserver):
        await homeserver.request("GET", "/rooms/%21a%2Fb/x", query={"filter": '{"a": "b&c"}'})
        await homeserver.request("POST", "/login", {"a": "ü"}, anonymous=True)
        server.body = '{"next_batch": "n"}'
        await homeserver.sync(ASK)
        homeserver.credentials = MatrixCredentials(BOT, "DEV", "other")
        await homeserver.sync(ASK)

    assert [seen[2].get("Authorization") for seen in server.requests] == [
        "Bearer tok", None, "Bearer tok", "Bearer other",
    ]  # fmt: skip
    assert "%2F" in server.requests[0][1]
    assert all("tok" not in seen[1] for seen in server.requests)
    assert json.loads(server.requests[1][3]) == {"a": "ü"}
    assert "since=s0" in server.requests[2][1]


async def test_soft_logout_does_not_confuse_the_client():
    """nio forgets its token after a soft logout; the next sync carries the one that is valid then."""
    async with serving() as (server, homeserver):
        server.status = 401
        server.body = '{"errcode": "M_UNKNOWN_TOKEN", "soft_logout": true}'
        answer = await homeserver.sync(ASK)
        assert answer.is_token_refused
        assert answer.soft_logout
        server.status, server.body = 200, '{"next_batch": "n"}'
        homeserver.credentials = MatrixCredentials(BOT, "DEV", "new")
        assert (await homeserver.sync(ASK)).is_success

    assert server.requests[-1][2]["Authorization"] == "Bearer new"


async def test_an_answer_without_end_is_not_read_to_the_end(monkeypatch):
    """A body over the limit is given up instead of filling the memory."""
    monkeypatch.setattr(nio_homeserver, "MAX_ANSWER_BYTES", 1000)
    async with serving() as (server, _):
        homeserver = NioHomeserver(server.url, BOT)
        server.body = "x" * 100_000
        with pytest.raises(LinkBroken, match="too large"):
            await homeserver.request("GET", "/x")
        await homeserver.aclose()


async def test_the_library_does_not_log_what_people_write():
    """nio writes whole answers to its log; below ERROR it is silent, whatever the root logger says."""
    NioHomeserver("http://127.0.0.1:9", BOT)

    assert not logging.getLogger("nio.responses").isEnabledFor(logging.WARNING)
