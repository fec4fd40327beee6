"""
One guest who reported five answers as undeliverable stopped mail for everybody for an hour; the owner's proven mail lay
in quarantine until somebody let it in by hand, and nobody told the owner.
"""

from __future__ import annotations

from collections.abc import Callable
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import MailPeer, MailServer
from gateway.operations.operation_context import OperationContext
from gateway.store.states import InboxState, OutboxState
from tests.incidents.test_mail_beyond_the_limit import answers
from tests.integration.test_email_loops import NO_BRAKE, Gateway, gateway, own
from tests.servers import own_mail_server

pytestmark = pytest.mark.slow


mail_server = own_mail_server("bot", "guest", "friend", "owner", count=3)


def bounce(about: EmailMessage, recipient: str, bot: str) -> bytes:
    """As mail servers write them, and as anybody can."""
    return (
        f"Return-Path: <>\r\nFrom: MAILER-DAEMON@mx.test\r\nTo: {bot}\r\nSubject: Undelivered\r\n"
        'MIME-Version: 1.0\r\nContent-Type: multipart/report; report-type=delivery-status; boundary="b"\r\n\r\n'
        "--b\r\nContent-Type: text/plain\r\n\r\nIt did not arrive.\r\n"
        "--b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.test\r\n\r\n"
        f"Final-Recipient: rfc822; {recipient}\r\nAction: failed\r\nStatus: 5.1.1\r\n"
        "Diagnostic-Code: smtp; 550 nobody here\r\n\r\n"
        f"--b\r\nContent-Type: text/rfc822-headers\r\n\r\nMessage-ID: {about['Message-ID']}\r\n\r\n--b--\r\n"
    ).encode()


async def write(peer: MailPeer, bot: str, subject: str) -> None:
    await run_sync(partial(peer.send, bot, subject, f"hello {subject}"))


async def came(peer: MailPeer, bot: str, fits: Callable[[EmailMessage], bool]) -> None:
    """Until the bot has sent a mail that fits; others may come too, such as alerts."""
    with anyio.fail_after(120):
        while not any(map(fits, own(await run_sync(peer.list), bot))):
            await anyio.sleep(0.1)


async def held_back(built: Gateway, count: int) -> None:
    """Until so many answers wait for the circuit breaker; none of their mails is in quarantine."""
    with anyio.fail_after(120):
        while (
            sum(
                "circuit breaker" in (row.error or "")
                for row in await built.store.outbox.rows(states=[OutboxState.PENDING])
            )
            < count
        ):
            await anyio.sleep(0.1)
    assert not await built.store.inbox.rows(states=[InboxState.QUARANTINED])


@pytest.mark.parametrize("whose", ["guest", "friend"])
async def test_five_forged_bounces(
    mail_server: MailServer, tmp_path: Path, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    About the guest's own mails or in somebody else's name: everybody is answered all the time.
    """
    # That a mail did not arrive is an alert, too; by mail the next one would wait for a quarter of an hour.
    monkeypatch.setattr("gateway.proactive.owner_alerts.EMAIL_INTERVAL_S", 0.5)
    number = 0 if whose == "guest" else 1
    bot, owner = mail_server.address(f"bot{number}"), mail_server.address(f"owner{number}")
    addresses = {name: mail_server.address(f"{name}{number}") for name in ("guest", "friend")}
    peers = {name: mail_server.peer(f"{name}{number}") for name in ("guest", "friend", "owner")}
    limits: dict[str, Any] = {"circuit_breaker": {}}
    async with gateway(
        mail_server, tmp_path, f"bot{number}", *addresses.values(), owner=owner, **limits
    ) as built:
        for each in range(5):
            await write(peers["guest"], bot, f"Question {each}")
        for mail in await answers(peers["guest"], bot, 5):
            await run_sync(partial(mail_server.inject, bot, bounce(mail, addresses[whose], bot), sender=""))
        channel: Any = built.channels["email"]
        with anyio.fail_after(120):
            while (await built.store.maintenance.stats()).inbox.get(InboxState.IGNORED, 0) < 5:
                await anyio.sleep(0.1)
        assert channel._safety.describe() == ""
        await write(peers["friend"], bot, "Me too")
        await write(peers["owner"], bot, "And me")
        await came(peers["friend"], bot, lambda mail: mail["Subject"] == "Re: Me too")
        await came(peers["owner"], bot, lambda mail: mail["Subject"] == "Re: And me")
        assert not await built.store.inbox.rows(states=[InboxState.QUARANTINED])


async def test_answers_wait_for_the_brake(mail_server: MailServer, tmp_path: Path) -> None:
    """Two answers an hour are too many here: the next guest waits, the owner does not, and then all are answered."""
    bot, owner = mail_server.address("bot2"), mail_server.address("owner2")
    peers = {name: mail_server.peer(f"{name}2") for name in ("guest", "friend", "owner")}
    guests = [mail_server.address(name) for name in ("guest2", "friend2")]
    brake: dict[str, Any] = {"circuit_breaker": NO_BRAKE | {"answers_per_hour": 2}}
    async with gateway(mail_server, tmp_path, "bot2", *guests, owner=owner, **brake) as built:
        for each in range(2):
            await write(peers["guest"], bot, f"Question {each}")
            await answers(peers["guest"], bot, each + 1)
        await write(peers["guest"], bot, "Question 2")
        await held_back(built, 1)
        await write(peers["friend"], bot, "Hello")
        await held_back(built, 2)
        await write(peers["owner"], bot, "Hello")
        await came(peers["owner"], bot, lambda mail: mail["Subject"] == "Re: Hello")
        assert not own(await run_sync(peers["friend"].list), bot)

    # Over a restart, too.
    async with gateway(mail_server, tmp_path, "bot2", *guests, owner=owner, **brake) as built:
        await held_back(built, 2)
        desk = OperationContext(built.store, built.memory, channels=built.channels)
        await desk.call("email_reset_breaker", {})
        assert len(await answers(peers["friend"], bot, 1)) == 1
        assert len(await answers(peers["guest"], bot, 3)) == 3
