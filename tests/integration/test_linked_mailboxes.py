"""`!link` by a real mail server: what proves two mailboxes to be one person's is what the server says of their mails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devservers import MailServer, text_of
from tests.integration.mail_world import mail_world, server_of_people

pytestmark = pytest.mark.integration
server = server_of_people()
SECOND, FORGED = "bob59", "alice59"


async def test_two_mailboxes_become_one_person(server: MailServer, tmp_path: Path) -> None:
    """The code counts from the named mailbox; a mail that only claims to come from there is not heard."""
    domain = server.address(SECOND).partition("@")[2]
    second, stranger = server.peer(SECOND), server.peer(FORGED)
    async with mail_world(server, tmp_path, allow=(f"*@{domain}",)) as world:
        access = world.built.conversations.access
        told = text_of(await world.asked(f"!link {server.address(SECOND)}", who=world.bob))
        found = re.search(r"!link (\d{4}-\d{4})", told)
        assert found, told
        other = text_of(await world.asked(f"!link {found[1]}", who=stranger))
        assert "not a code for this address" in other
        forged = f"From: {server.address(SECOND)}\r\nTo: {world.bot}\r\nMessage-ID: <f@x.test>\r\n\r\n"
        await world.inject(f"{forged}!link {found[1]}\r\n".encode(), sender=server.address(SECOND))
        shown = text_of(await world.asked(f"!link {found[1]}", who=second))
        assert world.bob.address in shown and "!link yes" in shown
        await world.inject(
            f"{forged}!link yes\r\n".replace("<f@", "<g@").encode(), sender=server.address(SECOND)
        )
        assert access.household.main_address(server.address(SECOND)) == server.address(SECOND)
        assert "Done: you are" in text_of(await world.asked("!link yes", who=second))
        assert access.household.main_address(server.address(SECOND)) == world.bob.address
        assert world.bob.address in text_of(await world.asked("!link", who=second))
