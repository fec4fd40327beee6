"""
A web server's endless headers slowed everybody, so mail servers were tried, too: one that never ends its greeting, its
answers, or what it says unasked is given up, whether it is quick or sends a line now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from channels.base import ChannelUnavailable
from channels.email.imap import imap_protocol as imap
from channels.email.imap.mailbox import Mailbox
from tests.doubles.imap_server import Dialogue, fake_imap
from tests.doubles.mailbox import config
from tests.imap_links import begin, ours
from tests.unit.channels.email.test_submission import Post, submit

pytestmark = pytest.mark.virtual_time
PIECE = b"x" * 100_000
MAX_SENT = 400
"""Pieces: what the limit lets through, and what sockets hold beside it."""


async def floods_unasked(server: Dialogue) -> None:
    """What nobody keeps: it was not counted while no command ran, or an IDLE."""
    await begin(server)
    await server.command("IDLE")
    while True:
        await server.raw(b"* OK busy\r\n" * 10_000)


async def test_what_comes_during_an_idle_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "MAX_RESPONSES", 50_000)
    async with ours(floods_unasked) as link:
        with pytest.raises(imap.LinkLost, match="does not end"):
            async with link.idling(deadline_s=10):
                pass
        assert isinstance(link.lost, imap.WireError)


async def drips_in_the_login(server: Dialogue) -> None:
    """A line before each silence would be too long, without an end: only the step's own deadline helps."""
    await server.greet()
    await server.command("LOGIN")
    while True:
        await server.say("* OK wait")
        await asyncio.sleep(20)


async def drips_in_the_greeting(server: Dialogue) -> None:
    while True:
        await server.raw(b"x")
        await asyncio.sleep(5)


async def floods_the_greeting(server: Dialogue) -> None:
    for _ in range(MAX_SENT):
        await server.raw(PIECE)
    raise AssertionError("all of it was taken")


@pytest.mark.parametrize("script", [drips_in_the_login, drips_in_the_greeting, floods_the_greeting])
async def test_a_mailbox_is_not_opened_for_ever(script: Callable[[Dialogue], Awaitable[None]]) -> None:
    """Within the limits, by virtual time, and with an error that says so."""
    async with fake_imap(script) as port, asyncio.timeout(3_600):
        with pytest.raises(ChannelUnavailable):
            async with Mailbox.open(config(port), None):
                pass


class Endless(Post):
    """An SMTP server that answers without end: ``line`` after ``line``, with a pause in between."""

    def __init__(self, at: str, line: bytes, pause_s: float = 0.0) -> None:
        super().__init__()
        self.at, self.line, self.pause_s = at, line, pause_s
        self.sent = 0

    async def _say(self, writer: asyncio.StreamWriter, answer: str) -> None:
        if (self.commands[-1:] or ["greeting"])[0].startswith(self.at):
            while True:
                writer.write(self.line)
                await writer.drain()
                self.sent += len(self.line)
                await asyncio.sleep(self.pause_s)
        await super()._say(writer, answer)


@pytest.mark.parametrize("at", ["greeting", "EHLO", "MAIL"])
@pytest.mark.parametrize(
    ("line", "pause_s"), [(PIECE, 0.0), (b"220-busy\r\n" * 1_000, 0.0), (b"220-busy\r\n", 10.0)]
)
async def test_a_mail_is_not_submitted_for_ever(at: str, line: bytes, pause_s: float) -> None:
    """Nothing was sent, so it is tried again later; little of it was taken."""
    post = Endless(at, line, pause_s)
    async with asyncio.timeout(3_600):
        with pytest.raises(ChannelUnavailable):
            await submit(post)
    assert post.sent < MAX_SENT * len(PIECE)
    assert not post.uncertain_before
