"""
A connection to the mail server on which nobody answers any more, with TCP alive, was noticed after 270 seconds; a mail
that came meanwhile got no answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from agent_core.oauth import ProviderUnreachable
from agent_core.oauth_http import HttpProvider
from channels.base import ChannelUnavailable, DeliveryUncertain
from tests.clock import LoopClock
from tests.doubles.accounts import email_channel
from tests.doubles.imap_server import Dialogue, fake_imap
from tests.doubles.inbox import MemoryInbox, running
from tests.doubles.mailbox import CAPABILITIES, Store, config
from tests.unit.channels.email.test_submission import ENVELOPE, SILENCE, submitter
from tests.unit.channels.email.test_submission import Post as SmtpPost

pytestmark = pytest.mark.virtual_time
LATEST_S = 60.0


class Hangs(Store):
    """Answers a command of this beginning, once it is armed, with nothing at all, on the connection that it came on."""

    def __init__(self, at: str, capabilities: str) -> None:
        super().__init__(capabilities=capabilities)
        self.at, self.armed, self.hung = at, False, False

    async def _answer(self, server: Dialogue, tag: str, text: str) -> None:
        if self.armed and not self.hung and self.at != "DONE" and text.startswith(self.at):
            self.hung = True
            await anyio.sleep_forever()
        if text == "IDLE" and self.at == "DONE":
            await server.say("+ idling")
            assert await server.line() == "DONE"
            if self.armed and not self.hung:
                self.hung = True
                await anyio.sleep_forever()
            await server.say(f"{tag} OK done")
            return
        await super()._answer(server, tag, text)


@pytest.mark.parametrize(
    ("at", "capabilities"),
    [
        ("DONE", CAPABILITIES),
        ("IDLE", CAPABILITIES),
        ("UID SEARCH", CAPABILITIES),
        ("UID FETCH", CAPABILITIES),
        ("NOOP", "IMAP4rev1"),
    ],
)
async def test_a_mail_is_taken_within_a_minute(tmp_path: Path, at: str, capabilities: str) -> None:
    """Wherever the connection stands still, and however soon after the last sign of life."""
    store, inbox = Hangs(at, capabilities), MemoryInbox()
    async with fake_imap(store) as port:
        channel = email_channel("email", config(port), state_dir=tmp_path, clock=LoopClock())
        async with running(channel, inbox) as run:
            await inbox.until_up(within_s=3600)
            store.armed = True
            store.uids.append(1)
            since = asyncio.get_running_loop().time()
            error = await run.until_ended(within_s=3600)
        assert isinstance(error, ChannelUnavailable)
        assert store.hung
        async with running(channel, inbox):
            await inbox.until_accepted(1, within_s=3600)
        took_s = asyncio.get_running_loop().time() - since
    assert took_s < LATEST_S


@pytest.mark.parametrize("at", ["CAPABILITY", "LOGIN", "SELECT"])
async def test_a_connection_that_hangs_from_the_start(tmp_path: Path, at: str) -> None:
    """It is given up as soon, and the next one serves."""
    store, inbox = Hangs(at, CAPABILITIES), MemoryInbox()
    store.armed = True
    async with fake_imap(store) as port:
        channel = email_channel("email", config(port), state_dir=tmp_path, clock=LoopClock())
        since = asyncio.get_running_loop().time()
        async with running(channel, inbox) as run:
            assert isinstance(await run.until_ended(within_s=3600), ChannelUnavailable)
        async with running(channel, inbox):
            await inbox.until_up(within_s=3600)
        took_s = asyncio.get_running_loop().time() - since
    assert store.hung
    assert took_s < LATEST_S


async def test_a_connection_that_answers_is_kept(tmp_path: Path) -> None:
    """The control: an hour of silence with signs of life is one connection."""
    store, inbox = Store(), MemoryInbox()
    async with fake_imap(store) as port:
        channel = email_channel("email", config(port), state_dir=tmp_path, clock=LoopClock())
        async with running(channel, inbox):
            await inbox.until_up(within_s=3600)
            await anyio.sleep(3600)
    assert sum(command.startswith("LOGIN") for command in store.commands) == 1


@pytest.mark.parametrize("at", ["greeting", "EHLO", "AUTH", "MAIL", "RCPT", "DATA", "end"])
async def test_a_submission_server_that_hangs(at: str) -> None:
    """Wherever it stands still, another connection is tried within a minute; after DATA it is first looked for."""
    post = SmtpPost(**{at: SILENCE})
    async with submitter(post) as sends:
        since = asyncio.get_running_loop().time()
        with pytest.raises(DeliveryUncertain if at in ("DATA", "end") else ChannelUnavailable):
            await sends.submit(ENVELOPE, b"Subject: x\r\n\r\ny\r\n", context=None, uncertain=post.uncertain)
        assert asyncio.get_running_loop().time() - since < LATEST_S + 1


async def test_a_token_provider_that_hangs() -> None:
    """It is given up within a minute, and so is whoever waits for a token at the same time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"
    try:
        since = asyncio.get_running_loop().time()
        with pytest.raises(ProviderUnreachable):
            await HttpProvider()(url, {"refresh_token": "x"})
        assert asyncio.get_running_loop().time() - since < LATEST_S
    finally:
        server.close()
