"""Encrypted files as a person with Element sends and opens them: WebCrypto against our cipher, both ways."""

from __future__ import annotations

import base64
import secrets

import pytest

from channels.attachments import AttachmentStore
from tests.integration.element.client import Person
from tests.integration.matrix_bot import Bot
from tests.pictures import png

pytestmark = [pytest.mark.integration]


async def test_files_are_opened_on_both_sides(modules, synapse, fresh_credentials, tmp_path):
    """A picture with a caption arrives as it was, and what the bot sends is decrypted with the right hash."""
    bot = Bot(fresh_credentials("bot"), synapse.url, tmp_path / "bot")
    bot.attachments = AttachmentStore(tmp_path / "home")
    account = fresh_credentials("uma")
    bot.settings["allow_from"] = [account.user_id]
    content = secrets.token_bytes(200_001)
    async with Person.up(modules, synapse.url, account) as uma, bot.up() as channel:
        await uma.do("bootstrap", password=account.password)
        room = await uma.do("create", invite=[bot.user_id], encrypted=True)
        await uma.do("joined", room=room, user=bot.user_id)
        said = {
            "msgtype": "m.image",
            "body": "my cat",
            "filename": "cat.png",
            "info": {"mimetype": "image/png"},
        }
        await uma.do("sendFile", room=room, content=said, base64=base64.b64encode(png(30, 20)).decode())
        [question] = await bot.inbox.until_accepted(1)
        file = await bot.attachments.save("plan.bin", "", content)
        answer = bot.message(room, "Here.", context=question.context, attachments=(file,))
        await channel.deliver(answer, uncertain=bot.mark)
        shown = await uma.until(lambda event: event["content"].get("msgtype") == "m.file")
        opened = await uma.do("openFile", file=shown["content"]["file"])

    assert question.text == "my cat"
    [picture] = question.attachments
    assert await bot.attachments.read(picture, max_bytes=10**6) == png(30, 20)
    assert (shown["wire"], shown["unreadable"], shown["shield"]) == ("m.room.encrypted", None, 0)
    assert opened["right"]
    assert base64.b64decode(opened["base64"]) == content
