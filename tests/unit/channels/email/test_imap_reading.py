"""
What an IMAP server says, read by our protocol and by the stock class.

Each trap has one script and one outcome per class: what ours promises, and what the stock class does instead.
If a new aioimaplib no longer falls into a trap, the second test says so, and the work-around can go.
"""

from __future__ import annotations

import pytest
from aioimaplib import aioimaplib

from tests.doubles.imap_server import Dialogue
from tests.imap_links import LIMIT_S, begin, ours, stock

pytestmark = pytest.mark.virtual_time


class TestCapabilities:
    """Trap 10."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await server.greet("IMAP4rev1 AUTH=PLAIN")
        tag, _ = await server.command("LOGIN")
        await server.say(f"{tag} OK [CAPABILITY IMAP4rev1 IDLE MOVE] logged in")
        tag, _ = await server.command("CAPABILITY")
        await server.say("* 1 RECENT", "* capability imap4rev1 Idle", "* CAPABILITY MOVE", f"{tag} OK done")
        await server.until_gone()

    async def test_ours_asks_again(self) -> None:
        """After the login the capabilities are what the server says, in whatever case and lines."""
        async with ours(self.script, state="auth") as protocol:
            await protocol.capability(LIMIT_S)
            assert protocol.capabilities == {"IMAP4REV1", "IDLE", "MOVE"}

    async def test_stock_believes_junk(self) -> None:
        """The stock class takes the human text for capabilities and misses the last real one."""
        async with stock(self.script, state="auth") as client:
            assert not client.has_capability("MOVE")
            assert client.has_capability("logged")


class TestStarsInside:
    """Trap 11."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("LIST")
        await server.say('* LIST () "/" "a * b"', f"{tag} OK done")
        await server.until_gone()

    async def test_ours_keeps_them(self) -> None:
        """Only the star in front is syntax."""
        async with ours(self.script) as protocol:
            reply = await protocol.run("LIST", '""', '"*"', timeout_s=LIMIT_S)
            assert reply.untagged == ((b'* LIST () "/" "a * b"',),)

    async def test_stock_removes_them(self) -> None:
        """The stock class gives back another folder."""
        async with stock(self.script) as client:
            reply = await client.list('""', '"*"')
            assert reply.lines[0] == b'() "/" "a b"'


class TestBracesInText:
    """Trap 12."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("NOOP")
        await server.say("* OK the quota is {5}", f"{tag} OK done")
        await server.until_gone()

    async def test_ours_reads_a_sentence(self) -> None:
        """Human text that ends like a literal is human text."""
        async with ours(self.script) as protocol:
            reply = await protocol.run("NOOP", timeout_s=LIMIT_S)
            assert reply.untagged == ((b"* OK the quota is {5}",),)

    async def test_stock_swallows_the_next_line(self) -> None:
        """The stock class takes five bytes of the answer for the literal, and never sees it."""
        async with stock(self.script) as client:
            with pytest.raises(TimeoutError):
                await client.noop()


class TestEightBit:
    """Trap 12."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("NOOP")
        await server.say(b"* \xff\xfe hello", tag.encode() + b" OK \xe9")
        await server.until_gone()

    async def test_ours_keeps_bytes(self) -> None:
        """Bytes that are no text do no harm."""
        async with ours(self.script) as protocol:
            reply = await protocol.run("NOOP", timeout_s=LIMIT_S)
            assert reply.text == b"\xe9"

    async def test_stock_dies(self) -> None:
        """The stock class decodes the first word as UTF-8, and the session is dead."""
        async with stock(self.script) as client:
            with pytest.raises(TimeoutError):
                await client.noop()


class TestUidSearchAndLiterals:
    """Trap 13."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, text = await server.command("UID SEARCH", "UID FETCH")
        if text.startswith("UID SEARCH"):
            await server.say("* SEARCH 5 3", "* SEARCH 4", f"{tag} OK done")
            tag, _ = await server.command("UID FETCH")
        await server.say("* 1 FETCH (UID 3 BODY[] {5}")
        await server.raw(b"a)\r\nb)\r\n* 2 FETCH (UID 4 BODY[] {0}\r\n)\r\n")
        await server.say(f"{tag} OK done")
        await server.until_gone()

    async def test_ours_gives_numbers_and_whole_responses(self) -> None:
        """UIDs come sorted, and a literal stays with its response, whatever is in it."""
        async with ours(self.script) as protocol:
            assert await protocol.uid_search("UID", "1:*", timeout_s=LIMIT_S) == [3, 4, 5]
            reply = await protocol.run("FETCH", "3:4", "(UID BODY.PEEK[])", uid=True, timeout_s=LIMIT_S)
            assert reply.untagged == (
                (b"* 1 FETCH (UID 3 BODY[] ", b"a)\r\nb", b")"),
                (b"* 2 FETCH (UID 4 BODY[] ", b"", b")"),
            )

    async def test_stock_has_no_uid_search_and_a_flat_list(self) -> None:
        """The stock class raises for the one, and loses which line belongs to which mail in the other."""
        async with stock(self.script) as client:
            with pytest.raises(aioimaplib.Abort):
                await client.uid("search", "UID 1:*")
            reply = await client.uid("fetch", "3:4", "(UID BODY.PEEK[])")
            assert isinstance(reply.lines[1], bytearray)


class TestSloppyServers:
    """Trap 14."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("NOOP")
        await server.say("* 3 exists", f"{tag} ok done", end=b"\n")
        await server.until_gone()

    async def test_ours_understands_them(self) -> None:
        """A bare LF ends a line, and words have no case."""
        async with ours(self.script) as protocol:
            await protocol.run("NOOP", timeout_s=LIMIT_S)
            assert protocol.exists == 3

    async def test_stock_does_not(self) -> None:
        """The stock class waits for a CR that never comes."""
        async with stock(self.script) as client:
            with pytest.raises(TimeoutError):
                await client.noop()
