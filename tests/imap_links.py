"""Our hardened IMAP protocol and the stock client of aioimaplib, connected to the same script."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aioimaplib import aioimaplib

from channels.email.imap.imap_protocol import HardenedProtocol
from tests.doubles.imap_server import Dialogue, fake_imap

Script = Callable[[Dialogue], Awaitable[None]]
LIMIT_S = 30.0


@asynccontextmanager
async def ours(script: Script, *, state: str = "selected") -> AsyncIterator[HardenedProtocol]:
    """Our protocol, connected to the script; ``state`` is how far the usual beginning is played."""
    async with fake_imap(script) as port:
        loop = asyncio.get_running_loop()
        protocol = HardenedProtocol(loop)
        await loop.create_connection(lambda: protocol, "127.0.0.1", port)
        try:
            if state != "connected":
                await protocol.wait_greeting(LIMIT_S)
                await protocol.capability(LIMIT_S)
            if state in ("auth", "selected"):
                await protocol.authenticate("bot", "pw", LIMIT_S)
            if state == "selected":
                await protocol.open_folder("INBOX", read_only=False, timeout_s=LIMIT_S)
            yield protocol
        finally:
            protocol.abort()
            await protocol.closed.wait()


@asynccontextmanager
async def stock(script: Script, *, state: str = "selected") -> AsyncIterator[aioimaplib.IMAP4]:
    """The stock client at the same point."""
    loop = asyncio.get_running_loop()
    usual = loop.get_exception_handler()
    # It dies inside the event loop, where nobody can catch it.
    loop.set_exception_handler(lambda *_: None)
    async with fake_imap(script) as port:
        client = aioimaplib.IMAP4("127.0.0.1", port, timeout=LIMIT_S)
        try:
            if state != "connected":
                await client.wait_hello_from_server()
            if state in ("auth", "selected"):
                await client.login("bot", "pw")
            if state == "selected":
                await client.select("INBOX")
            yield client
        finally:
            for task in list(client.tasks) + list(client.protocol.tasks):
                task.cancel()
            if client.protocol.transport is not None:
                client.protocol.transport.abort()
            await asyncio.sleep(0.01)
            gc.collect()
            loop.set_exception_handler(usual)


async def begin(server: Dialogue) -> None:
    """Up to the selected state."""
    await server.log_in(again=False)
    await server.select()


def now() -> float:
    return asyncio.get_running_loop().time()
