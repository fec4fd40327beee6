"""A server whose certificate nobody has signed gets no request, whatever a library asks for."""

from __future__ import annotations

import asyncio
import ssl

import aiohttp
import pytest
import trustme
from aiohttp import connector

from agent_core.http_guards import verify_always


async def _asked(port: int) -> bytes:
    async with aiohttp.ClientSession() as session:
        answer = await session.get(f"https://localhost:{port}/", ssl=False)
        return await answer.read()


async def test_a_request_that_would_not_verify_is_refused(monkeypatch):
    """aiohttp alone asks such a server (the control); afterwards it gets no request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    requests = []

    async def answer(reader, writer):
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    monkeypatch.setattr(connector, "_SSL_CONTEXT_UNVERIFIED", connector._SSL_CONTEXT_UNVERIFIED)
    async with await asyncio.start_server(answer, "localhost", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        assert await _asked(port) == b"hi"
        assert len(requests) == 1
        assert verify_always()
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await _asked(port)
        assert len(requests) == 1
