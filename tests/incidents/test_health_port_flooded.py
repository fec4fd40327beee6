"""
Any user of the machine could open a thousand connections to the health port and leave them open: the daemon
had no file left for histories and servers, and wrote half a megabyte of log a second about it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import anyio
import pytest
from aiohttp import web

from gateway.health import MAX_CONNECTIONS, serve


async def pong(_request: web.Request) -> web.Response:
    return web.Response(text="pong")


async def broken(_request: web.Request) -> web.Response:
    raise RuntimeError("our own defect")


async def asked(port: int, request: bytes) -> bytes:
    """What the server answers before it hangs up; nothing if it does so at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        with anyio.fail_after(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def app() -> web.Application:
    made = web.Application()
    made.add_routes([web.get("/ping", pong), web.get("/broken", broken)])
    return made


GOOD = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def test_only_so_many_may_stay() -> None:
    """Beyond a number of open connections the next ones are closed at once; when there is room, all is well."""
    async with serve(app(), host="127.0.0.1", port=0) as port:
        async with AsyncExitStack() as held:
            for _ in range(MAX_CONNECTIONS):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                held.callback(writer.close)
                writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            await anyio.sleep(0.1)
            for _ in range(3):
                assert await asked(port, GOOD) == b""
        for _ in range(100):
            if await asked(port, GOOD):
                break
            await anyio.sleep(0.05)

        assert (await asked(port, GOOD)).endswith(b"pong")


async def test_bad_requests_leave_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """What a client does wrong is the client's; a defect of ours is logged."""
    with caplog.at_level(logging.DEBUG):
        async with serve(app(), host="127.0.0.1", port=0) as port:
            for request in (
                b"\x16\x03\x01\x00\xff\r\n\r\n",
                b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
            ):
                assert b" 400 " in (await asked(port, request)).partition(b"\r\n")[0]
            assert not [record for record in caplog.records if record.exc_info]
            await asked(port, GOOD.replace(b"/ping", b"/broken"))

    assert [record.exc_info for record in caplog.records if record.exc_info]
