"""A mailbox for the bot and a person to write to it, on a real mail server: what the email tests share."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync

from agent_core.messages import InboundMessage, OutboundMessage, SessionKey
from channels.attachments import AttachmentStore
from channels.email.channel import EmailChannel
from channels.email.config import EmailConfig
from channels.email.imap.imap_connect import Timing
from channels.email.smtp.submission import SubmitTiming
from devservers import MailPeer, MailServer
from tests.clock import LoopClock
from tests.doubles.accounts import email_channel
from tests.doubles.inbox import MemoryInbox, running
from tests.servers import own_mail_server, skipped_without_tools

USERS = 120
_numbers = itertools.count()
QUICK = Timing(connect_s=5, command_s=5, idle_refresh_s=2, idle_deadline_s=1, poll_s=0.3)


def wanted(inbox: MemoryInbox) -> list[InboundMessage]:
    """What shall be answered."""
    return [message for message in inbox.accepted if message.addressed and not _kept(message)]


def kept_back(inbox: MemoryInbox) -> list[str]:
    """Why some are for a person to judge."""
    return [_kept(message) for message in inbox.accepted if _kept(message)]


def _kept(message: InboundMessage) -> str:
    return str(message.context.quarantine or "")


def refused(inbox: MemoryInbox) -> list[str]:
    """Why the others are not."""
    return [message.context.refused for message in inbox.accepted if not message.addressed]


@dataclass
class Bot:
    """A fresh mailbox for the bot on a server, and one for a person."""

    server: MailServer
    person: MailPeer
    config: EmailConfig
    state_dir: Path
    inbox: MemoryInbox = field(default_factory=MemoryInbox)
    alerts: list[str] = field(default_factory=list)
    """What the owner was told."""

    def channel(self, **timing: Any) -> EmailChannel:
        return email_channel(
            "email",
            self.config,
            state_dir=self.state_dir,
            clock=LoopClock(datetime.now(UTC)),
            timing=timing.get("timing", QUICK),
            submit_timing=timing.get("submit_timing", SubmitTiming(connect_s=5, command_s=5, data_s=5)),
            attachments=self.files,
            alert=lambda _, text, once="": self.alerts.append(text),
        )

    @property
    def files(self) -> AttachmentStore:
        return AttachmentStore(self.state_dir.parent / "home")

    @property
    def address(self) -> str:
        return self.config.address

    def peer(self) -> MailPeer:
        return self.server.peer(self.address.partition("@")[0])

    @asynccontextmanager
    async def running(self, channel: EmailChannel | None = None) -> AsyncIterator[EmailChannel]:
        """The channel at work, caught up."""
        channel = channel or self.channel()
        self.inbox.states.clear()
        async with running(channel, self.inbox):
            await self.inbox.until_up()
            yield channel
        await channel.aclose()

    async def send(self, subject: str = "Hello", text: str = "Hello bot", **more: Any) -> str:
        return await run_sync(lambda: self.person.send(self.address, subject, text, **more))

    async def inject(self, raw: bytes) -> None:
        await run_sync(lambda: self.server.inject(self.address, raw, sender="someone@elsewhere.test"))

    async def answers(self) -> list[EmailMessage]:
        return await run_sync(self.person.list)


def settings(server: MailServer, bot: str, person: str) -> dict[str, Any]:
    return {
        "address": server.address(bot),
        "username": bot,
        "password": "bot-pw",
        "imap": {"host": "127.0.0.1", "port": server.imap_port, "security": "tls"},
        "smtp": {"host": "127.0.0.1", "port": server.smtp_port, "security": "starttls"},
        "tls_ca_file": str(server.ca_file),
        "allow_from": [server.address(person)],
        "trusted_authserv_ids": [server.domain],
        "probe_grace_s": 1.0,
        "limits": dict.fromkeys(("sender_per_hour", "sender_per_day"), 0),
    }


def open_server(folder: Path) -> MailServer:
    """A server that begins with users for all tests, because a new one takes a second."""
    users = {f"{name}{number}": f"{name}-pw" for name in ("bot", "alice") for number in range(USERS)}
    with skipped_without_tools():
        return MailServer.start(folder, users=users)


def server_of_bots() -> Callable[..., Iterator[MailServer]]:
    """`open_server` as a fixture of a module."""
    return own_mail_server("bot", "alice", count=USERS, password="{name}-pw")


def make_bot(server: MailServer, folder: Path, **changes: Any) -> Bot:
    number = next(_numbers)
    config = EmailConfig.model_validate(settings(server, f"bot{number}", f"alice{number}") | changes)
    return Bot(server, server.peer(f"alice{number}"), config, folder / "state")


def answer_to(to: InboundMessage, text: str = "A **fine** answer", key: str = "row-1") -> OutboundMessage:
    return OutboundMessage(
        id=key,
        channel=to.channel,
        account=to.account,
        session=to.session,
        text=text,
        created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        context=to.context,
    )


class Marks:
    """The point of no return, counted."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


def anything() -> OutboundMessage:
    return OutboundMessage(
        id="row-x",
        channel="email",
        account="bot@mail.test",
        session=SessionKey("email", "thread-" + "0" * 24, "alice@mail.test"),
        text="x",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


EVIDENCE = "Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\n"


def raw_mail(
    bot: Bot,
    *,
    message_id: str | None = "<one@peer.test>",
    sender: str | None = None,
    text: str = "hello",
    evidence: str = EVIDENCE,
    more: str = "",
) -> bytes:
    identity = f"Message-ID: {message_id}\r\n" if message_id else ""
    return (
        f"{evidence}From: {sender or bot.person.address}\r\nTo: {bot.address}\r\nSubject: Test\r\n"
        f"Date: Fri, 02 Jan 2026 03:04:05 +0000\r\n{identity}{more}\r\n{text}\r\n"
    ).encode()
