"""
`FaultProxy`: an HTTP server between a client and a server, which misbehaves on demand.

It forwards everything until a `Rule` says otherwise for requests whose method and path fit: answer with a
status and a body of one's own, forward and then cut the connection (the server has accepted, the client
does not know), cut the connection at once, cut the body in the middle, or hang. Every request is counted.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
from aiohttp import web

_HOP_BY_HOP = {
    "connection", "keep-alive", "transfer-encoding", "upgrade", "content-length", "content-encoding", "host",
    "server", "date",
}  # fmt: skip


class Fault(StrEnum):
    """What happens to a request that a rule fits."""

    STATUS = "status"
    """The rule's own answer; the server never hears of the request."""
    CUT_AFTER = "cut_after"
    """The server does it, then the connection is cut instead of the answer."""
    CUT_BODY = "cut_body"
    """The server does it, the answer's body ends in the middle."""
    REFUSE = "refuse"
    """The connection is cut before the server hears of the request."""
    HANG = "hang"
    """Nothing is answered until the client gives up or the rule is removed."""


@dataclass(eq=False)
class Rule:
    """One way to misbehave. ``times`` is how often it is applied; None: until it is removed."""

    path: str
    fault: Fault
    method: str | None = None
    status: int = 502
    body: str = "<html><h1>502 Bad Gateway</h1></html>"
    content_type: str = "text/html"
    headers: dict[str, str] = field(default_factory=dict)
    times: int | None = None
    applied: int = 0
    removed: asyncio.Event = field(default_factory=asyncio.Event)

    def fits(self, request: web.Request) -> bool:
        if self.removed.is_set() or (self.times is not None and self.applied >= self.times):
            return False
        return (self.method in (None, request.method)) and re.search(self.path, request.raw_path) is not None


@dataclass(frozen=True)
class Seen:
    """One request that came by."""

    at: float
    method: str
    path: str
    authorization: str


class FaultProxy:
    """Use `FaultProxy.in_front_of`."""

    def __init__(self, target: str, session: aiohttp.ClientSession) -> None:
        self.target = target
        self.url = ""
        self.seen: list[Seen] = []
        self._rules: list[Rule] = []
        self._session = session

    @classmethod
    @asynccontextmanager
    async def in_front_of(cls, target: str) -> AsyncIterator[FaultProxy]:
        """Run a proxy on a free port of this machine."""
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=True) as session:
            proxy = cls(target.rstrip("/"), session)
            app = web.Application(client_max_size=100 * 1024 * 1024)
            app.router.add_route("*", "/{path:.*}", proxy._handle)
            runner = web.AppRunner(app, shutdown_timeout=0.2, handler_cancellation=True)
            await runner.setup()
            listener = free_socket()
            await web.SockSite(runner, listener).start()
            proxy.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            try:
                yield proxy
            finally:
                proxy.clear()
                await runner.cleanup()

    def add(self, path: str, fault: Fault, **options: object) -> Rule:
        """Misbehave for requests whose path (with query) contains the pattern."""
        rule = Rule(path, fault, **options)
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Behave again."""
        rule.removed.set()
        self._rules = [other for other in self._rules if other is not rule]

    def clear(self) -> None:
        """Forget all rules."""
        for rule in list(self._rules):
            self.remove(rule)

    def count(self, path: str, *, method: str | None = None, since: float = 0.0) -> int:
        """How many requests fitted, since a `time.monotonic` instant."""
        return sum(
            1
            for seen in self.seen
            if seen.at >= since and method in (None, seen.method) and re.search(path, seen.path)
        )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(
            Seen(time.monotonic(), request.method, request.raw_path, request.headers.get("Authorization", ""))
        )
        rule = next((rule for rule in self._rules if rule.fits(request)), None)
        if rule is None:
            return await self._forward(request)
        rule.applied += 1
        match rule.fault:
            case Fault.STATUS:
                return web.Response(
                    status=rule.status, text=rule.body, content_type=rule.content_type, headers=rule.headers
                )
            case Fault.REFUSE:
                return _cut(request)
            case Fault.HANG:
                await rule.removed.wait()
                return _cut(request)
            case Fault.CUT_AFTER:
                await self._forward(request)
                return _cut(request)
            case Fault.CUT_BODY:
                whole = await self._forward(request)
                answer = web.StreamResponse(status=whole.status, headers={"Content-Length": "100000"})
                answer.content_type = "application/json"
                await answer.prepare(request)
                await answer.write(bytes(whole.body or b"")[:20])
                return _cut(request)

    async def _forward(self, request: web.Request) -> web.Response:
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP_BY_HOP}
        body = await request.read()
        # The raw path: a percent-encoded "/" must stay one.
        from yarl import URL

        address = URL(f"{self.target}{request.raw_path}", encoded=True)
        try:
            async with self._session.request(
                request.method, address, data=body or None, headers=headers, allow_redirects=False
            ) as answer:
                content = await answer.read()
                kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP_BY_HOP}
                return web.Response(status=answer.status, body=content, headers=kept)
        except aiohttp.ClientError:
            return web.Response(status=502, text="no server behind the proxy")


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def free_socket() -> socket.socket:
    """A listening port below the range that the system gives to outgoing connections."""
    import random

    for _ in range(200):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", random.randrange(10_000, 32_768)))
        except OSError:
            listener.close()
            continue
        listener.listen(64)
        listener.setblocking(False)
        return listener
    raise RuntimeError("no free port")


class Relay:
    """Passes bytes on to a server, until `fall_silent`: what is connected then hears nothing ever again."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition("//")[2].rpartition(":")
        self._port = int(port)
        self._open = asyncio.Event()
        self.connections = 0
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def in_front_of(cls, target: str) -> AsyncIterator[Relay]:
        """Run one on a free port of this machine."""
        relay = cls(target)
        listener = free_socket()
        server = await asyncio.start_server(relay._serve, sock=listener)
        relay.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield relay
        finally:
            relay._open.set()
            server.close()
            await server.wait_closed()

    def fall_silent(self) -> None:
        """Half open from now on: neither side is told that the other one is gone. New connections work."""
        self._open.set()
        self._open = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        gone = self._open
        there = await asyncio.open_connection(self._host, self._port)
        both = [
            asyncio.create_task(_pass_on(reader, there[1])),
            asyncio.create_task(_pass_on(there[0], writer)),
        ]
        waiting = asyncio.create_task(gone.wait())
        try:
            await asyncio.wait([*both, waiting], return_when=asyncio.FIRST_COMPLETED)
            if gone.is_set():
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
                # The client's own limit has to find it out; what it sends meanwhile is taken and lost.
                while await reader.read(65_536):
                    pass
        except ConnectionError:
            pass
        finally:
            for task in (*both, waiting):
                task.cancel()
            await asyncio.gather(*both, waiting, return_exceptions=True)
            for end in (writer, there[1]):
                end.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
