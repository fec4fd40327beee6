"""Servers at an address: real ones, and one that misbehaves."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from aiohttp import web

from agent_core.tools.mcp.server_connection import ServerError, ServerLost, ServerUnavailable
from tests.command_line import free_port
from tests.integration.test_mcp_hostile import OWNER, keep, servers

pytestmark = pytest.mark.integration
_SERVER = """
import sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("real")
@server.tool()
def add(a: int, b: int) -> str:
    "Adds."
    return f"sum {a + b}"
server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def _sdk():
    pytest.importorskip("mcp")


@asynccontextmanager
async def real_server(port, program=_SERVER):
    child = subprocess.Popen([sys.executable, "-c", program, str(port)], stderr=subprocess.DEVNULL)
    try:
        with anyio.fail_after(60):
            while True:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await anyio.sleep(0.05)
        yield
    finally:
        child.kill()
        child.wait()


async def test_a_real_server_that_is_restarted(tmp_path):
    """A call fails while it is away, with nothing worse; afterwards it works again."""
    port = free_port()
    settings = {"url": f"http://127.0.0.1:{port}/mcp", "timeout_s": 5, "start_s": 10}
    async with real_server(port), servers(tmp_path, far=settings) as found:
        (tool,) = found.tools(OWNER, keep)
        assert "sum 5" in (await tool.execute(a=2, b=3)).content
    async with servers(tmp_path, far=settings) as found:
        (tool,) = found.tools(OWNER, keep)
        refused = await tool.execute(a=2, b=3)
        assert refused.is_error
        assert "Nothing was done" in refused.content
        async with real_server(port):
            while found.by_name["far"].connection.wait_s:
                await anyio.sleep(0.05)
            assert "sum 5" in (await tool.execute(a=2, b=3)).content
        lost = await tool.execute(a=2, b=3)
        assert lost.is_unknown
        async with real_server(port):
            while found.by_name["far"].connection.wait_s:
                await anyio.sleep(0.05)
            assert "sum 7" in (await tool.execute(a=3, b=4)).content


class Bad:
    """Speaks as far as it takes, then misbehaves in calls; ``calls`` counts them."""

    def __init__(self, behaviour):
        self.behaviour = behaviour
        self.calls = 0
        self.elsewhere = 0

    async def there(self, request):
        self.elsewhere += 1
        return web.Response(text="stolen")

    async def answer(self, request):
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        number, method = message.get("id"), message["method"]
        if self.behaviour == "login":
            return web.Response(status=401)
        if self.behaviour == "page":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        if method == "initialize":
            result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                      "serverInfo": {"name": "bad", "version": "1"}}  # fmt: skip
        elif method == "tools/list":
            result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
        elif method == "tools/call":
            self.calls += 1
            return await self.misbehave(request, number)
        elif number is None:
            return web.Response(status=202)
        else:
            error = {"code": -32601, "message": "no such method"}
            return web.json_response({"jsonrpc": "2.0", "id": number, "error": error})
        return web.json_response({"jsonrpc": "2.0", "id": number, "result": result})

    async def misbehave(self, request, number):
        head = b'{"jsonrpc":"2.0","id":' + str(number).encode() + b',"result":{"content":['
        if self.behaviour == "redirect":
            return web.Response(status=307, headers={"location": "/elsewhere"})
        if self.behaviour == "silence":
            await anyio.sleep_forever()
        if self.behaviour == "packed":
            found = web.Response(body=head + b"]}}", content_type="application/json")
            found.enable_compression(web.ContentCoding.gzip)
            found.headers["content-encoding"] = "gzip"
            return found
        if self.behaviour == "bad_gateway":
            return web.Response(status=502, text="<html>Bad gateway</html>", content_type="text/html")
        if self.behaviour == "html":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        if self.behaviour == "no_answer":
            return web.Response(body=head + b'{"type":"text"}]}}', content_type="application/json")
        if self.behaviour == "refuses":
            error = {"code": -32602, "message": "unknown tool"}
            return web.json_response({"jsonrpc": "2.0", "id": number, "error": error}, status=400)
        if self.behaviour == "honest":
            return web.Response(
                body=head + b'{"type":"text","text":"hello"}]}}', content_type="application/json"
            )
        stream = web.StreamResponse()
        events = self.behaviour.startswith("event")
        stream.content_type = "text/event-stream" if events else "application/json"
        await stream.prepare(request)
        piece = {
            "large": b"a" * 100_000,
            "parts": b"[]," * 30_000,
            "event_large": b"data: " + b"a" * 100_000,
            "event_parts": b"data: " + b"[]," * 3000 + b"\n",
            "event_flood": b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n' * 100,
        }[self.behaviour]
        with suppress(ConnectionError):
            for _ in range(30 if self.behaviour == "parts" else 1000):
                await stream.write(piece)
        return stream


@asynccontextmanager
async def bad_server(behaviour):
    bad = Bad(behaviour)
    app = web.Application()
    app.router.add_route("*", "/mcp", bad.answer)
    app.router.add_route("*", "/elsewhere", bad.there)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield bad, {"url": f"http://127.0.0.1:{port}/mcp", "timeout_s": 3, "start_s": 15}
    finally:
        await runner.cleanup()


async def test_the_control(tmp_path):
    async with bad_server("honest") as (bad, settings), servers(tmp_path, far=settings) as found:
        assert (await found.by_name["far"].call("echo", {})).text == "hello"
        assert bad.calls == 1
    async with bad_server("refuses") as (_, settings), servers(tmp_path, far=settings) as found:
        with pytest.raises(ServerError, match="unknown tool"):
            await found.by_name["far"].call("echo", {})


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("redirect", "redirects"),
        ("silence", "no answer within 3"),
        ("packed", "compressed"),
        ("large", "4 MB"),
        ("parts", "parts"),
        ("event_large", "4 MB"),
        ("event_parts", "flood"),
        ("event_flood", "flood"),
        ("bad_gateway", "error response"),
        ("html", "content type"),
        ("no_answer", "is not one"),
    ],
)
async def test_a_call(tmp_path, behaviour, said):
    """The outcome is unknown, the reason is said, and it was made once; a redirect leads nowhere."""
    async with bad_server(behaviour) as (bad, settings), servers(tmp_path, far=settings) as found:
        with pytest.raises(ServerLost, match=said):
            await found.by_name["far"].call("echo", {})
        assert (bad.calls, bad.elsewhere) == (1, 0)


@pytest.mark.parametrize(("behaviour", "said"), [("login", "needs a login"), ("page", "it ")])
async def test_a_start(tmp_path, behaviour, said):
    async with bad_server(behaviour) as (_, settings), servers(tmp_path, far=settings) as found:
        assert said in found.by_name["far"].connection.trouble
        with pytest.raises(ServerUnavailable):
            await found.by_name["far"].call("echo", {})


async def test_nobody_there(tmp_path):
    async with servers(tmp_path, far={"url": f"http://127.0.0.1:{free_port()}/mcp"}) as found:
        assert "cannot be started or reached" in found.by_name["far"].connection.trouble


@pytest.mark.parametrize(
    ("piece", "is_bounded"),
    [(b"HTTP/1.1 103 Early Hints\r\n\r\n", False), (b"X-More: more\r\n", True)],
    ids=["interim answers", "headers"],
)
async def test_a_head_without_end_is_given_up(piece, is_bounded):
    """Headers after a bounded number of bytes; interim answers, which nobody keeps, at the caller's limit."""
    import httpx2

    from agent_core.tools.mcp.guarded_http import End, GuardedTransport

    sent = 0

    async def pour(stream):
        nonlocal sent
        with suppress(anyio.BrokenResourceError):
            async with stream:
                await stream.receive()
                await stream.send(b"HTTP/1.1 200 OK\r\n" if piece.startswith(b"X") else b"")
                while True:
                    await stream.send(piece * 1000)
                    sent += 1000 * len(piece)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, pour)
        async with httpx2.AsyncClient(transport=GuardedTransport(End()), timeout=None) as client:
            with anyio.move_on_after(600 if is_bounded else 1) as limit:
                with pytest.raises(httpx2.RemoteProtocolError):
                    await client.get(f"http://127.0.0.1:{port}/")
            assert limit.cancelled_caught is not is_bounded
        tasks.cancel_scope.cancel()
    assert sent < 20_000_000 or not is_bounded


_ONLY_EVENTS = """
import sys, uvicorn
from mcp.server.mcpserver import MCPServer
uvicorn.run(MCPServer("old").sse_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
"""


async def test_a_server_of_the_old_transport_is_named_as_such(tmp_path):
    """HTTP+SSE of 2024-11-05, and an address where nothing is."""
    port = free_port()
    async with real_server(port, _ONLY_EVENTS):
        for path, status in (("sse", 405), ("elsewhere", 404)):
            settings = {"url": f"http://127.0.0.1:{port}/{path}", "timeout_s": 5, "start_s": 15}
            async with servers(tmp_path, far=settings) as found:
                with pytest.raises(ServerUnavailable, match=rf"takes no messages.*HTTP {status}.*HTTP\+SSE"):
                    await found.by_name["far"].refresh()
