"""
Somebody sent a mail of seventy megabytes that had no body: all of it was its header, of which as much was fetched as
there was. It was more than one piece of an answer may be, so the connection was abandoned, and the next one met the
same mail: nobody's mail was received any more.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from channels.email.imap import imap_syntax
from channels.email.receive import mail_fetching, mail_receiver
from devservers import MailServer
from tests.integration.mail_bot import make_bot, raw_mail, refused, server_of_bots, wanted

SIZE = 3_000_000


mail_server = server_of_bots()


async def test_the_next_mail_is_received(
    mail_server: MailServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the beginning of a header is fetched. The limits are a twentieth of the real ones."""
    monkeypatch.setattr(mail_fetching, "MAX_MAIL_BYTES", 1_000_000)
    monkeypatch.setattr(mail_receiver, "MAX_MAIL_BYTES", 1_000_000)
    monkeypatch.setattr(imap_syntax, "MAX_LITERAL_BYTES", SIZE)
    bot = make_bot(mail_server, tmp_path)
    async with bot.running():
        fields = "X-Long: " + "x" * 900 + "\r\n"
        await bot.inject(raw_mail(bot, message_id="<long@peer.test>", more=fields * (SIZE // 900)))
        large = "Subject: large\r\n" + "x" * 70 + "\r\n"
        await bot.inject(raw_mail(bot, message_id="<large@peer.test>", text=large * 15_000))
        await bot.send("after it", "are you there?")
        with anyio.fail_after(60):
            while len(bot.inbox.accepted) < 3:
                await anyio.sleep(0.05)
    # With a whole header, that of a large mail is read as ever.
    assert [message.context.subject for message in wanted(bot.inbox)] == ["Test", "after it"]
    assert refused(bot.inbox) == ["no_single_sender"]
