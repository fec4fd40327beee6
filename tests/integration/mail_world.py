"""A whole gateway with the demo model on a mailbox of a real mail server: what the answering tests share."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from channels.base import LinkState
from devservers import MailPeer, MailServer
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.store.states import InboxState
from gateway.store.stores import InboxRow, OutboxRow
from gateway.supervision.gateway import Gateway
from gateway.system.home import open_home
from tests.daemon import email_settings
from tests.running_gateway import running
from tests.servers import own_mail_server

USERS = 60
"""For all tests of a run that share the numbers, whichever file they are in."""
_numbers = itertools.count()
NO_BRAKE = dict.fromkeys(("answers_per_hour", "thread_answers_per_hour"), 0)


def server_of_people() -> Callable[..., Iterator[MailServer]]:
    """A server with people ``bot0 …``, ``alice0 …`` and ``bob0 …``, as a fixture of a module."""
    return own_mail_server("bot", "alice", "bob", count=USERS)


@dataclass(slots=True)
class MailWorld:
    """A running gateway. ``alice`` is the owner, ``bob`` may write, too."""

    server: MailServer
    built: Gateway
    home: Path
    bot: str
    alice: MailPeer
    bob: MailPeer

    async def inject(self, raw: bytes, *, sender: str = "x@elsewhere.test", to: str = "") -> None:
        """Put bytes into the bot's mailbox as another server would."""
        await run_sync(lambda: self.server.inject(to or self.bot, raw, sender=sender))

    async def asked(
        self, text: str, *, who: MailPeer | None = None, subject: str = "Hi", **more: Any
    ) -> EmailMessage:
        """Write a mail and wait for its answer."""
        peer = who or self.alice
        sent = await run_sync(lambda: peer.send(self.bot, subject, text, **more))
        return await self.answer_to(sent, who=peer)

    async def answer_to(self, message_id: str, *, who: MailPeer | None = None) -> EmailMessage:
        """The answer to one mail, as soon as it is there."""
        return await self.mail(lambda mail: mail["In-Reply-To"] == message_id, who=who)

    async def mail(
        self, wanted: Callable[[EmailMessage], bool], *, who: MailPeer | None = None
    ) -> EmailMessage:
        """A mail in somebody's mailbox, as soon as it is there."""
        return await run_sync(lambda: (who or self.alice).wait_for(wanted))

    async def row(self, wanted: Callable[[InboxRow], bool], *states: InboxState) -> InboxRow:
        """A row of the inbox, as soon as it is in one of these states."""
        found: list[InboxRow] = []
        with anyio.fail_after(60):
            while not found:
                await anyio.sleep(0.05)
                found = [
                    row for row in await self.built.store.inbox.rows(states=states, limit=500) if wanted(row)
                ]
        return found[0]

    async def out(self, wanted: Callable[[OutboxRow], bool]) -> OutboxRow:
        """A row of the outbox, as soon as it is like this."""
        found: list[OutboxRow] = []
        with anyio.fail_after(60):
            while not found:
                await anyio.sleep(0.05)
                found = [row for row in await self.built.store.outbox.rows(limit=500) if wanted(row)]
        return found[0]


@asynccontextmanager
async def mail_world(server: MailServer, folder: Path, **email: Any) -> AsyncIterator[MailWorld]:
    """
    Run a gateway for the length of the block; ``email`` changes the settings of its mailbox.

    ``settings`` among it are other parts of the configuration, ``overrides`` parts that are replaced.
    """
    number = next(_numbers)
    bot, alice, bob = (server.address(f"{name}{number}") for name in ("bot", "alice", "bob"))
    overrides = email.pop("overrides", Overrides())
    settings: dict[str, Any] = {
        "owner": {"aliases": [alice]},
        "agents": {"heartbeat": {"enabled": False}},
        "llm": {"models": {"demo": {"model": "demo/demo"}}, "pools": {"main": ["demo"]}},
        **email.pop("settings", {}),
        "channels": {
            "email": email_settings(
                server,
                bot,
                "pw",
                *email.pop("allow", (alice, bob)),
                **{"circuit_breaker": NO_BRAKE, "probe_grace_s": 2, **email},
            )
        },
    }
    built = await build(Settings.model_validate(settings), open_home(folder), overrides)
    async with running(built):
        with anyio.fail_after(60):
            await built.supervisor.wait(lambda: built.supervisor.status("email").state is LinkState.UP)
        yield MailWorld(
            server, built, folder, bot, *(server.peer(one.partition("@")[0]) for one in (alice, bob))
        )
