"""
A server on loopback that speaks the OpenAI chat format and does what it is told, also wrong things.

In a test::

    async with FakeOpenAI() as fake:
        fake.plan(Say("Hello"), Status(429, headers={"retry-after": "7"}))
        client = OpenAIClient("openai/any", api_base=fake.api_base, ...)

Each request takes the next planned reply; without one the last user message is echoed. By hand, as a model
that answers at once: ``python -m tests.doubles.openai_server --port 9999``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web


@dataclass(frozen=True)
class Call:
    """A tool call to be streamed; ``arguments`` goes out as it is, in pieces."""

    name: str
    arguments: str
    id: str = "call_a"
    signature: str = ""


@dataclass(frozen=True)
class Say:
    """An answer. ``pieces`` in a stream, joined otherwise; ``pause_s`` before each piece."""

    pieces: Sequence[str] = ()
    calls: Sequence[Call] = ()
    usage: tuple[int, int] | None = (11, 7)
    finish: str | None = None
    pause_s: float = 0.0
    numbered: bool = True
    thinking: Sequence[str] = ()

    def __init__(self, *pieces: str, **more: Any) -> None:
        object.__setattr__(self, "pieces", pieces)
        for name, value in more.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Status:
    """Refuse with an HTTP status."""

    status: int
    message: str = "no"
    type: str = "invalid_request_error"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stall:
    """Send ``pieces`` and then nothing more, until the client goes away. None: not even headers."""

    pieces: Sequence[str] | None = None


@dataclass(frozen=True)
class Cut:
    """Send ``pieces``, then break the connection; ``politely`` ends the body as if all were well."""

    pieces: Sequence[str] = ()
    politely: bool = False


@dataclass(frozen=True)
class ErrorEvent:
    """Send ``pieces``, then an error inside the stream."""

    pieces: Sequence[str] = ()
    message: str = "upstream broke"
    code: int | str | None = 500


@dataclass(frozen=True)
class Raw:
    """Send these bytes with status 200."""

    body: bytes
    content_type: str = "application/json"


Reply = Say | Status | Stall | Cut | ErrorEvent | Raw

TOO_LONG = Status(
    400,
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    code="context_length_exceeded",
)


class ModelServer:
    """A web server on loopback for the length of a block."""

    port = 0

    def routes(self) -> list[web.RouteDef]:
        """What it answers."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site_socket = bound(self.port)
        self.port = site_socket.getsockname()[1]
        await web.SockSite(self._runner, site_socket).start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()


class FakeOpenAI(ModelServer):
    """
    The server. ``requests`` holds the bodies of all requests, ``gone`` counts clients that left early.
    """

    def __init__(self, port: int = 0, delay_s: float = 0.0) -> None:
        self.port = port
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.gone = 0
        self._delay_s = delay_s
        self._plan: deque[Reply] = deque()

    @property
    def api_base(self) -> str:
        """What to configure as ``api_base``."""
        return f"http://127.0.0.1:{self.port}/v1"

    def plan(self, *replies: Reply) -> None:
        """Answer the next requests so."""
        self._plan.extend(replies)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self._answer), web.get("/v1/models", self._models)]

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        reply = self._plan.popleft() if self._plan else Say(*_echo(body))
        try:
            return await self._give(reply, request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise

    async def _give(self, reply: Reply, request: web.Request, body: Mapping[str, Any]) -> web.StreamResponse:
        match reply:
            case Status():
                error = {"message": reply.message, "type": reply.type, "param": None, "code": reply.code}
                return web.json_response({"error": error}, status=reply.status, headers=reply.headers)
            case Raw():
                return web.Response(body=reply.body, content_type=reply.content_type)
            case Stall(pieces=None):
                await asyncio.sleep(3600)
            case Say() if not body.get("stream"):
                await asyncio.sleep(reply.pause_s)
                return web.json_response(_whole(reply))
        return await self._stream(reply, request)

    async def _stream(self, reply: Reply, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if isinstance(reply, Cut) and reply.politely:
            response.force_close()
        else:
            response.enable_chunked_encoding()
        await response.prepare(request)
        pause = reply.pause_s if isinstance(reply, Say) else 0.0
        for chunk in _chunks(reply):
            await asyncio.sleep(pause)
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        match reply:
            case Stall():
                await asyncio.sleep(3600)
            case Cut(politely=True):
                return response
            case Cut():
                await asyncio.sleep(0.02)
                assert request.transport is not None
                request.transport.abort()
                return response
            case ErrorEvent():
                error = {"error": {"message": reply.message, "code": reply.code}}
                await response.write(b"data: " + json.dumps(error).encode() + b"\n\n")
        if not isinstance(reply, ErrorEvent):
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def bound(port: int) -> socket.socket:
    """A listening socket; port 0 means a free one below the range from which the kernel takes its own."""
    for candidate in [port] if port else random.sample(range(20_000, 32_700), 50):
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", candidate))
            server.listen(128)
        except OSError:
            server.close()
            continue
        return server
    raise OSError(f"no free port (asked for {port or 'any'})")


def _echo(body: Mapping[str, Any]) -> list[str]:
    users = [message["content"] for message in body["messages"] if message["role"] == "user"]
    return [f"echo: {users[-1] if users else ''}"]


def _whole(reply: Say) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.pieces) or None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return (
        _head("chat.completion") | {"choices": [choice]} | ({"usage": _usage(reply)} if reply.usage else {})
    )


def _chunks(reply: Reply) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": text} for text in getattr(reply, "thinking", ())]
    deltas += [{"content": text} for text in getattr(reply, "pieces", None) or ()]
    chunks = [_delta(delta) for delta in deltas]
    if not isinstance(reply, Say):
        return chunks
    for number, call in enumerate(reply.calls):
        index = {"index": number} if reply.numbered else {"index": 0}
        function = {"name": call.name, "arguments": ""}
        head = index | {"id": call.id, "type": "function", "function": function}
        if call.signature:
            head |= {"extra_content": {"google": {"thought_signature": call.signature}}}
        chunks.append(_delta({"tool_calls": [head]}))
        for start in range(0, len(call.arguments), 5):
            part = call.arguments[start : start + 5]
            chunks.append(_delta({"tool_calls": [index | {"function": {"arguments": part}}]}))
    chunks.append(_delta({}, _finish(reply)))
    if reply.usage:
        chunks.append(_head("chat.completion.chunk") | {"choices": [], "usage": _usage(reply)})
    return chunks


def _delta(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _head("chat.completion.chunk") | {"choices": [choice]}


def _finish(reply: Say) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _usage(reply: Say) -> dict[str, int]:
    assert reply.usage is not None
    prompt, completion = reply.usage
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-fake", "object": kind, "created": 1_700_000_000, "model": "fake"}


async def _serve(port: int, delay_s: float) -> None:
    async with FakeOpenAI(port, delay_s) as fake:
        print(f"listening on {fake.api_base}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A model on loopback that echoes what it is asked, at once.")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 takes a free port")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="how long it thinks before it answers")
    arguments = parser.parse_args()
    try:
        asyncio.run(_serve(arguments.port, arguments.delay_ms / 1000))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
