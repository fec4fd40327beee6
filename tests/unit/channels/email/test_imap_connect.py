"""What an IMAP link of ours bears and what ends it: slow bodies, rubbish, bursts, and passwords beyond ASCII."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from channels.email.imap.imap_protocol import ImapRefused, LinkLost
from tests.doubles.imap_server import Dialogue
from tests.imap_links import LIMIT_S, begin, ours

pytestmark = pytest.mark.virtual_time


async def test_a_slow_literal_is_not_a_timeout() -> None:
    """The limit is for silence: a body that takes longer than it, but keeps coming, is read."""

    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("UID FETCH")
        await server.say("* 1 FETCH (UID 3 BODY[] {40}")
        for _ in range(40):
            await asyncio.sleep(4)
            await server.raw(b"x")
        await server.say(")", f"{tag} OK done")
        await server.until_gone()

    async with ours(script) as protocol:
        reply = await protocol.run("FETCH", "3", "(UID BODY.PEEK[])", uid=True, timeout_s=5)
        assert reply.untagged[0][1] == b"x" * 40


async def test_a_stream_that_is_not_imap_ends_the_link() -> None:
    """An answer that nobody asked for, or an endless line, is not waited out."""

    async def script(server: Dialogue) -> None:
        await begin(server)
        await server.command("NOOP")
        await server.say("zzz OK what?")
        await server.until_gone()

    async def endless(server: Dialogue) -> None:
        await begin(server)
        await server.command("NOOP")
        for _ in range(50):
            await server.raw(b"x" * 100_000)
        await server.until_gone()

    for bad in (script, endless):
        async with ours(bad) as protocol:
            with pytest.raises(LinkLost):
                await protocol.run("NOOP", timeout_s=LIMIT_S)


async def test_a_burst_of_flags_does_not_wake_an_idle() -> None:
    """Somebody marks 3,000 mails as read: nothing to look at, nothing piles up."""

    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("IDLE")
        await server.say("+ idling", *(f"* {number} FETCH (FLAGS (\\Seen))" for number in range(1, 3001)))
        assert await server.line() == "DONE"
        await server.say(f"{tag} OK done")
        await server.until_gone()

    async with ours(script) as protocol:
        protocol.pushed.clear()
        async with protocol.idling(deadline_s=10):
            with anyio.move_on_after(60):
                await protocol.pushed.wait()
            assert not protocol.pushed.is_set()
        assert protocol.lost is None


async def test_login_goes_by_sasl_where_quoting_cannot() -> None:
    """A password beyond ASCII is sent as SASL PLAIN; quotes and backslashes are quoted."""
    seen: list[str] = []

    async def script(server: Dialogue) -> None:
        await server.greet()
        for _ in range(2):
            tag, text = await server.command()
            seen.append(text)
            if text.startswith("AUTHENTICATE"):
                await server.say("+ ")
                seen.append(await server.line())
            await server.say(f"{tag} NO no")
        await server.until_gone()

    async with ours(script, state="greeted") as protocol:
        with pytest.raises(ImapRefused):
            await protocol.authenticate("bot", 'a"b\\c', LIMIT_S)
        with pytest.raises(ImapRefused):
            await protocol.authenticate("bot", "pässword", LIMIT_S)
    assert seen == [r'LOGIN "bot" "a\"b\\c"', "AUTHENTICATE PLAIN", "AGJvdABww6Rzc3dvcmQ="]
