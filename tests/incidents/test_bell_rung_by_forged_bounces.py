"""
A guest with one answer sent sixty reports that it had not arrived, each for another invented recipient: the owner got
an alert for each, and alerts that meant something were dropped because fifty waited already.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import MailServer
from gateway.store.states import InboxState, OutboxState
from tests.incidents.test_forged_bounces import bounce, write
from tests.incidents.test_mail_beyond_the_limit import answers
from tests.integration.test_email_loops import gateway
from tests.servers import own_mail_server

pytestmark = pytest.mark.slow

REPORTS = 60


mail_server = own_mail_server("bot", "guest", "friend", "owner", count=2)


@pytest.mark.parametrize("number", [0, 1])
async def test_one_alert_for_one_person(mail_server: MailServer, tmp_path: Path, number: int) -> None:
    """However many recipients somebody invents; and a pattern is one person. Another person's bounce is told, too."""
    bot, owner = mail_server.address(f"bot{number}"), mail_server.address(f"owner{number}")
    addresses = [mail_server.address(f"{name}{number}") for name in ("guest", "friend")]
    allowed = addresses if number == 0 else [f"*@{mail_server.domain}"]
    async with gateway(
        mail_server, tmp_path, f"bot{number}", *allowed, owner=owner, circuit_breaker={}
    ) as built:
        told: dict[str, str] = {}
        channel: Any = built.channels["email"]
        channel._services = replace(channel._services, alert=told.setdefault)
        for name in ("guest", "friend"):
            peer = mail_server.peer(f"{name}{number}")
            await write(peer, bot, "Question")
            (mail,) = await answers(peer, bot, 1)
            for each in range(REPORTS if name == "guest" else 1):
                raw = bounce(mail, f"invented{each}@elsewhere.test", bot)
                await run_sync(partial(mail_server.inject, bot, raw, sender=""))
        with anyio.fail_after(60):
            while (await built.store.maintenance.stats()).inbox.get(InboxState.IGNORED, 0) < REPORTS + 1:
                await anyio.sleep(0.1)
        whom = addresses if number == 0 else allowed
        assert set(told) == {f"undelivered {each}" for each in whom}
        assert not any(row.error for row in await built.store.outbox.rows(states=[OutboxState.SENT]))
