"""A mail that a real Dovecot lists and cannot read: the others go on, and it comes when the server can."""

from __future__ import annotations

import json
import os
from pathlib import Path

from devservers import MailServer
from tests.integration.mail_bot import Bot, make_bot, raw_mail, server_of_bots

mail_server = server_of_bots()


def _file_of(bot: Bot, words: bytes) -> Path:
    store = bot.server._store
    assert store is not None
    name = bot.address.partition("@")[0]
    files = [
        path for path in store.folder.rglob("*") if name in path.parts and path.parent.name in ("new", "cur")
    ]
    return next(path for path in files if words in path.read_bytes())


async def test_a_file_that_cannot_be_read(mail_server: MailServer, tmp_path: Path) -> None:
    """As after a damaged disk: a link to itself cannot be opened, by root neither."""
    bot = make_bot(mail_server, tmp_path)
    async with bot.running():
        pass
    for number in range(1, 4):
        await bot.inject(raw_mail(bot, message_id=f"<{number}@peer.test>", text=f"number {number}"))
    file = _file_of(bot, b"number 2")
    content = file.read_bytes()
    file.unlink()
    os.symlink(file.name, file)
    async with bot.running():
        await bot.inbox.until(lambda inbox: {"number 1", "number 3"} <= set(inbox.texts), within_s=60)
    assert len(json.loads(bot.inbox.positions["withheld"])) == 1
    assert "number 2" not in bot.inbox.texts
    link = next(
        path for path in file.parent.parent.rglob(f"{file.name}*") if path.is_symlink()
    )  # Dovecot moves it
    link.unlink()
    link.write_bytes(content)
    async with bot.running():
        await bot.inbox.until(lambda inbox: "number 2" in inbox.texts, within_s=120)
    assert sorted(bot.inbox.texts) == ["number 1", "number 2", "number 3"]
    assert bot.alerts == []
