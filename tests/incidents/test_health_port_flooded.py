"""
Any user of the machine could open a thousand connections to the health port and leave them open: the daemon
had no file left for histories and servers, and wrote half a megabyte of log a second about it. With a limit on
them, 112 half-open ones shut out whoever asked for /livez.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from gateway.operations.control.control_server import serve_control
from gateway.operations.http.health import MAX_CONNECTIONS, serve
from gateway.operations.operation_context import OperationContext
from gateway.system.home import open_home


async def pong(_request: web.Request) -> web.Response:
    return web.Response(text="pong")


async def broken(_request: web.Request) -> web.Response:
    raise RuntimeError("our own defect")


async def asked(port: int, request: bytes) -> bytes:
    """What the server answers before it hangs up; nothing if it does so at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        with anyio.fail_after(60):
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


async def test_half_open_connections_shut_out_nobody() -> None:
    """However many are left half-open: only so many stay, and whoever asks is answered."""
    async with serve(app(), host="127.0.0.1", port=0) as port, AsyncExitStack() as held:
        readers = []
        for _ in range(3 * MAX_CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.callback(writer.close)
            writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            readers.append(reader)
        for _ in range(3):
            assert (await asked(port, GOOD)).endswith(b"pong")
        for reader in readers[: 2 * MAX_CONNECTIONS]:  # the oldest ones had to go
            with contextlib.suppress(ConnectionError), anyio.fail_after(60):
                assert await reader.read() == b""


async def test_who_is_being_answered_stays() -> None:
    """Connections whose request is being worked on are not closed for new ones; beyond the limit nobody else gets in."""
    go_on = asyncio.Event()
    begun = asyncio.Semaphore(0)

    async def slow(_request: web.Request) -> web.Response:
        begun.release()
        await go_on.wait()
        return web.Response(text="slow")

    made = app()
    made.add_routes([web.get("/slow", slow)])
    async with serve(made, host="127.0.0.1", port=0) as port:
        answers = []

        async def one() -> None:
            answers.append(await asked(port, GOOD.replace(b"/ping", b"/slow")))

        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_CONNECTIONS):
                tasks.start_soon(one)
            for _ in range(MAX_CONNECTIONS):
                await begun.acquire()
            assert await asked(port, GOOD) == b""
            go_on.set()
        assert len(answers) == MAX_CONNECTIONS
        assert all(answer.endswith(b"slow") for answer in answers)


async def test_the_control_socket_too(tmp_path: Path) -> None:
    """The command line still gets its answers."""
    home = open_home(tmp_path / "home")
    routes = [web.get("/ping", pong)]
    async with serve_control(home, OperationContext(None, None), routes=routes), AsyncExitStack() as held:
        readers = []
        for _ in range(3 * MAX_CONNECTIONS):
            reader, writer = await asyncio.open_unix_connection(str(home.control_socket))
            held.callback(writer.close)
            writer.write(b"GET /ping HTTP/1.1\r\n")
            readers.append(reader)
        reader, writer = await asyncio.open_unix_connection(str(home.control_socket))
        held.callback(writer.close)
        writer.write(GOOD)
        with anyio.fail_after(60):
            assert (await reader.read()).endswith(b"pong")
        for reader in readers[: 2 * MAX_CONNECTIONS]:  # the oldest ones had to go
            with contextlib.suppress(ConnectionError), anyio.fail_after(60):
                assert await reader.read() == b""


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
