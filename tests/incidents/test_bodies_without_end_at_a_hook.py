"""
Whoever knew the name of a webhook could hold every connection of the HTTP server with bodies that never end: they
were read before the secret was looked at, for ten seconds each, and nobody else was answered meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import time
from contextlib import AsyncExitStack

import anyio
import pytest
from aiohttp import web

from gateway.operations.http.health import MAX_CONNECTIONS, serve
from gateway.operations.http.hook_routes import Hooks
from gateway.settings.settings import HookSettings

SECRET = "0123456789abcdef-secret"
BODY = b'{"title": "Disk full"}'
SIGNATURE = f"sha256={hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()}"


def request_of(name: str, length: int, *headers: str) -> bytes:
    lines = [f"POST /hooks/{name} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


async def status_of(port: int, request: bytes) -> int:
    """The status that a request has before the connection is closed; 0: none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        with anyio.fail_after(60):
            line = await reader.readline()
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


class Taken:
    """A server with a hook of each kind of proof; ``said`` is what it has accepted."""

    def __init__(self) -> None:
        self.said: list[str] = []
        kinds = {"signed": "github", "bearer": "bearer"}
        settings = {
            name: HookSettings.model_validate({"secret": SECRET, "signature": kind})
            for name, kind in kinds.items()
        }
        self.hooks = Hooks(settings, self._deliver, self._not_elsewhere, time.monotonic)
        self.app = web.Application()
        self.app.add_routes([*self.hooks.routes(), web.get("/livez", self._alive)])

    async def _deliver(self, name: str, delivery: str, text: str) -> int:
        self.said.append(text)
        return 1

    async def _not_elsewhere(self) -> str:
        return ""

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="alive")


@pytest.mark.parametrize("name", ["signed", "bearer"])
async def test_they_hold_nobody_up(name: str) -> None:
    """As many as there are connections, again and again: others are answered, and a signed report is taken."""
    taken = Taken()
    async with serve(taken.app, host="127.0.0.1", port=0) as port, AsyncExitStack() as held:
        for _ in range(2 * MAX_CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.callback(writer.close)
            writer.write(request_of(name, 1000, f"X-Hub-Signature-256: {SIGNATURE}", "Expect: 100-continue"))
            with contextlib.suppress(OSError, asyncio.IncompleteReadError), anyio.fail_after(60):
                await reader.readuntil(b"\r\n\r\n")  # it is at work on this one, or lets nobody in
        for _ in range(3):
            assert await status_of(port, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n") == 200
        good = request_of("signed", len(BODY), f"X-Hub-Signature-256: {SIGNATURE}") + BODY
        assert await status_of(port, good) == 202
    assert len(taken.said) == 1


async def test_without_the_secret_no_body_is_waited_for() -> None:
    """Where the secret stands in a header; the control: with it the body is read, and counts once it is whole."""
    taken = Taken()
    async with serve(taken.app, host="127.0.0.1", port=0) as port:
        wrong = request_of("bearer", 1000, "Authorization: Bearer wrong")
        assert await status_of(port, wrong) == 401
        right = request_of("bearer", len(BODY), f"Authorization: Bearer {SECRET}")
        assert await status_of(port, right + BODY) == 202
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(right)
        with anyio.move_on_after(0.2) as waited:
            await reader.readline()
        assert waited.cancelled_caught
        writer.close()
    assert taken.said == ['{\n "title": "Disk full"\n}']
