"""
A little web on loopback: servers that answer byte for byte as told, names of our own, and a canary.

Every address of 127.0.0.0/8 is this machine, so two of them stand for two networks: `PUBLIC` is allowed to
the client under test, and on `PRIVATE` sits the canary, which counts who has connected to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from aiohttp.abc import AbstractResolver, ResolveResult

from agent_core.tools.web.ip_rules import AddressReach, IPAddress, IPNetwork
from agent_core.tools.web.web_client import WebClient, WebLimits

PUBLIC, PRIVATE = "127.0.0.1", "127.0.0.2"
SAFE = AddressReach(allow_private=(ip_network(PUBLIC),))


@dataclass(frozen=True)
class _Public(AddressReach):
    """Takes networks for public ones."""

    public: tuple[IPNetwork, ...] = ()

    def refusal(self, address: IPAddress, port: int) -> str | None:
        return AddressReach((*self.allow_private, *self.public)).refusal(address, port)


OPEN = _Public(public=(ip_network("127.0.0.0/8"), ip_network("::1")))
"""What the negative controls use: as if nothing were checked."""
INTERNET = _Public(public=(ip_network(PUBLIC),))
"""`PUBLIC` as a part of the Internet."""

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class HttpServer:
    """``asked`` has the head of each request."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.port = 0
        self.connections = 0
        self.asked: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.answers: dict[str, bytes | Handler] = {}

    def url(self, path: str = "/", host: str = "") -> str:
        name = host or (f"[{self.host}]" if ":" in self.host else self.host)
        return f"http://{name}:{self.port}{path}"

    async def end(self) -> None:
        """Leave no connection open."""
        for task in tuple(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._answer(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self.tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"content-length:" in head.lower():
                size = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
                head += await reader.readexactly(size)
            self.asked.append(head.decode())
            path = head.split(b" ")[1].decode()
            answer = self.answers.get(path.partition("?")[0], http(404, b"not here"))
            if callable(answer):
                await answer(head, writer)
            else:
                writer.write(answer)
                await writer.drain()


def http(status: int, body: bytes = b"", content_type: str = "text/html", **headers: str) -> bytes:
    """One answer, as it goes over the wire."""
    named = {"Content-Type": content_type, "Content-Length": str(len(body)), "Connection": "close"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value)
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


def redirect(target: str, status: int = 302) -> bytes:
    return http(status, b"elsewhere", Location=target)


@asynccontextmanager
async def server(host: str = PUBLIC, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[HttpServer]:
    """A server that runs as long as the block."""
    world = HttpServer(host)
    running = await asyncio.start_server(world.serve, host, 0, limit=1_000_000, ssl=tls)
    world.port = running.sockets[0].getsockname()[1]
    try:
        yield world
    finally:
        running.close()
        await world.end()


class Names(AbstractResolver):
    """Answers of each name, one per lookup; the last one stays."""

    def __init__(self, **names: list[str]) -> None:
        self.names = {name.replace("_", "."): list(addresses) for name, addresses in names.items()}
        self.looked_up: list[str] = []

    def __call__(self) -> Names:
        return self

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.looked_up.append(host)
        answers = self.names.get(host)
        if not answers:
            raise OSError(f"there is no {host}")
        said = answers.pop(0) if len(answers) > 1 else answers[0]
        return [self._result(host, each, port) for each in said.split()]

    def _result(self, host: str, address: str, port: int) -> ResolveResult:
        family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
        return ResolveResult(
            hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
        )

    async def close(self) -> None:
        pass


def client(
    reach: AddressReach = SAFE,
    names: Names | None = None,
    *,
    tls: ssl.SSLContext | bool = True,
    **limits: float,
) -> WebClient:
    """A client of the world; ``limits`` are those of `WebLimits`."""
    given = {"apart_s": 0.0, **limits}
    made = WebClient(reach, WebLimits(**given))  # type: ignore[arg-type]
    made.resolver, made.tls = names or Names(), tls  # type: ignore[assignment]
    return made
