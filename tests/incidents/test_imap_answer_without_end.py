"""
A mail server that answered one FETCH with mail after mail, none of them asked for, filled the memory: each was below
its limit, half a million of them were allowed, and nobody counted what they were together.
"""

from __future__ import annotations

import pytest

from channels.email.imap import imap_protocol as imap
from tests.doubles.imap_server import Dialogue
from tests.imap_links import begin, ours

pytestmark = pytest.mark.virtual_time
MAIL = b"x" * 100_000


async def test_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is, before much more than the limit was taken; each command has its own."""
    monkeypatch.setattr(imap, "MAX_ANSWER_BYTES", 1_000_000)
    sent = 0

    async def script(server: Dialogue) -> None:
        nonlocal sent
        await begin(server)
        for mails in (5, 5, 5, 1_000):
            tag, _ = await server.command("UID FETCH")
            for number in range(1, mails + 1):
                await server.say(f"* {number} FETCH (UID {number} BODY[] {{{len(MAIL)}}}")
                await server.raw(MAIL + b")\r\n")
                sent += mails > 5
            await server.say(f"{tag} OK done")

    async with ours(script) as link:
        for _ in range(3):
            reply = await link.run("FETCH", "1", "(UID BODY.PEEK[])", uid=True, timeout_s=10)
            assert len(reply.untagged) == 5
        with pytest.raises(imap.LinkLost, match="does not end"):
            await link.run("FETCH", "1", "(UID BODY.PEEK[])", uid=True, timeout_s=10)
    assert sent < 500
