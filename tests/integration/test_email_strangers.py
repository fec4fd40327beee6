"""Proven people whom nobody has let in: kept, told, let in, answered; on a real mail server, over a restart."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import MailServer, text_of
from gateway.store.states import UNINVITED, InboxState
from tests.integration.mail_world import mail_world, server_of_people

server = server_of_people()


@pytest.mark.smoke
async def test_a_stranger_is_let_in_and_answered(server: MailServer, tmp_path: Path) -> None:
    """Nothing goes to the stranger before the owner says so; then the mail that waited is answered, once."""
    async with mail_world(server, tmp_path, allow=()) as one:
        sent = await run_sync(lambda: one.bob.send(one.bot, "Old `sofa`", "may I ask something?"))
        row = await one.row(lambda row: row.error == UNINVITED, InboxState.QUARANTINED)
        assert row.message.text == "may I ask something?"
        listed = text_of(await one.asked("!allow"))
        assert one.bob.address in listed
        assert "Old sofa" in listed
        assert "may I ask" not in listed
        assert await run_sync(one.bob.list) == []
        told = text_of(await one.asked(f"!allow {one.bob.address}"))
        assert "may write to me now" in told
        await one.answer_to(sent, who=one.bob)
        await one.asked("and another thing", who=one.bob)
        await anyio.sleep(0.5)
        assert len(await run_sync(one.bob.list)) == 2


async def test_nobody_but_the_owner_lets_people_in(server: MailServer, tmp_path: Path) -> None:
    async with mail_world(server, tmp_path) as one:
        told = text_of(await one.asked("!allow carol@else.test", who=one.bob))
    assert "may write to me now" not in told
