"""A responder on loopback that answers one model call with one word, to warm a client up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

_CHUNK = (
    b'data: {"id":"w","object":"chat.completion.chunk","created":1,"model":"w","choices":'
    b'[{"index":0,"delta":{"role":"assistant","content":"x"},"finish_reason":null}]}\n\n'
    b'data: {"id":"w","object":"chat.completion.chunk","created":1,"model":"w","choices":'
    b'[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"w","object":"chat.completion.chunk","created":1,"model":"w","choices":[],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nContent-Length: "
    + str(len(_CHUNK)).encode()
    + b"\r\n\r\n"
    + _CHUNK
)


async def _respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b"0"
        )
        await reader.readexactly(int(length))
        writer.write(_ANSWER)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def warm_up_responder() -> AsyncGenerator[str, None]:
    """The ``api_base`` of a responder that lives as long as the block."""
    server = await asyncio.start_server(_respond, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
