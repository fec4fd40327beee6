"""How the bytes of a mail go over a connection that is logged in, and how it is closed."""

from __future__ import annotations

import asyncio
import re

import aiosmtplib
import anyio
import anyio.lowlevel

__all__ = ["hand_over", "hang_up", "stuffed"]

_PIECE = 64_000
_GOODBYE_S = 0.5


def stuffed(raw: bytes) -> bytes:
    """
    As it goes over the wire after DATA: dots doubled, with the end (RFC 5321, 4.5.2).

    Line ends must be whole: what is no line end here and one to the next server would end the mail there.
    """
    ends = raw.count(b"\r\n")
    if raw.count(b"\n") != ends or raw.count(b"\r") != ends:
        raw = re.sub(rb"\r\n|\r|\n", b"\r\n", raw)
    raw = raw.replace(b"\r\n.", b"\r\n..")
    raw = b"." + raw if raw.startswith(b".") else raw
    return raw + (b".\r\n" if raw.endswith(b"\r\n") else b"\r\n.\r\n")


async def hand_over(client: aiosmtplib.SMTP, ready: bytes) -> None:
    """DATA in pieces, each encrypted and gone before the next one is."""
    go_on = await client.execute_command(b"DATA")
    if go_on.code != 354:
        raise aiosmtplib.SMTPDataError(go_on.code, go_on.message)
    protocol, transport = client.protocol, client.transport
    if protocol is None or not isinstance(transport, asyncio.WriteTransport):
        raise aiosmtplib.SMTPServerDisconnected("Connection lost")
    # A server may answer before it has everything; without this that would count as noise.
    protocol._response_pending = True  # noqa: SLF001 - the library has no way to send in pieces
    view = memoryview(ready)
    for start in range(0, len(view), _PIECE):
        protocol.write(view[start : start + _PIECE])  # type: ignore[arg-type]
        await anyio.lowlevel.checkpoint()
        while (  # noqa: ASYNC110 - the library does not tell when its buffer is empty again
            transport.get_write_buffer_size() > 4 * _PIECE and not transport.is_closing()
        ):
            await anyio.sleep(0.002)
    answer = await protocol.read_response()
    if answer.code != 250:
        raise aiosmtplib.SMTPDataError(answer.code, answer.message)


async def hang_up(client: aiosmtplib.SMTP) -> None:
    """Say goodbye without waiting for the answer, and see the connection closed, or close it."""
    protocol, transport = client.protocol, client.transport
    if protocol is not None and protocol.is_connected:
        protocol.write(b"QUIT\r\n")
    client.close()
    if protocol is None or transport is None:
        return
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(_GOODBYE_S):
            while protocol.transport is not None:  # noqa: ASYNC110 - the library forgets it and has no event
                await anyio.sleep(0.002)
        if protocol.transport is not None and isinstance(transport, asyncio.WriteTransport):
            transport.abort()
            await anyio.lowlevel.checkpoint()
