"""
A scripted IMAP server: says exactly what a test wants, when it wants, wrong things too.

A script is an async function that is given the connection. ``Dialogue.command()`` waits for the next command
and gives its tag and text; ``greet`` and ``log_in`` play the usual beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress


class Dialogue:
    """One connection, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.seen: list[str] = []

    async def line(self) -> str:
        """The next line of the client; raises `EOFError` at its end."""
        raw = await self._reader.readline()
        if not raw:
            raise EOFError
        text = raw.decode().rstrip("\r\n")
        self.seen.append(text)
        return text

    async def command(self, *expected: str) -> tuple[str, str]:
        """Tag and text of the next command; it must begin with one of ``expected``."""
        tag, _, text = (await self.line()).partition(" ")
        assert not expected or text.startswith(expected), f"{text!r} instead of {expected}"
        return tag, text

    async def say(self, *lines: str | bytes, end: bytes = b"\r\n") -> None:
        """Send lines in one piece."""
        self._writer.write(b"".join((x.encode() if isinstance(x, str) else x) + end for x in lines))
        await self._writer.drain()

    async def raw(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def greet(self, capabilities: str = "IMAP4rev1 IDLE UIDPLUS MOVE") -> None:
        """Greeting and the CAPABILITY that every client asks for then."""
        await self.say("* OK hello")
        tag, _ = await self.command("CAPABILITY")
        await self.say(f"* CAPABILITY {capabilities}", f"{tag} OK done")

    async def log_in(self, capabilities: str = "IMAP4rev1 IDLE UIDPLUS MOVE", *, again: bool = True) -> None:
        """Up to the authenticated state; ``again``: the client asks for the capabilities once more."""
        await self.greet(capabilities)
        tag, _ = await self.command("LOGIN")
        await self.say(f"{tag} OK logged in")
        if again:
            tag, _ = await self.command("CAPABILITY")
            await self.say(f"* CAPABILITY {capabilities}", f"{tag} OK done")

    async def select(self, *, exists: int = 1, uidvalidity: int = 7, uidnext: int = 2) -> None:
        """The answer to SELECT or EXAMINE."""
        tag, _ = await self.command("SELECT", "EXAMINE")
        await self.say(
            f"* {exists} EXISTS",
            f"* OK [UIDVALIDITY {uidvalidity}] valid",
            f"* OK [UIDNEXT {uidnext}] next",
            f"{tag} OK [READ-WRITE] done",
        )

    async def until_gone(self) -> None:
        """Say nothing until the client hangs up."""
        with suppress(EOFError, ConnectionError):
            while True:
                await self.line()

    def hang_up(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()


@asynccontextmanager
async def fake_imap(script: Callable[[Dialogue], Awaitable[None]]) -> AsyncIterator[int]:
    """Serve ``script`` to every connection on a free port; an error in a script is raised at the end."""
    errors: list[BaseException] = []
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await script(Dialogue(reader, writer))
        except (EOFError, ConnectionError):
            pass
        except Exception as exc:
            errors.append(exc)
        finally:
            running.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1_000_000)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        if running:
            await asyncio.wait(list(running))
        await asyncio.sleep(0)
    if errors:
        raise errors[0]
