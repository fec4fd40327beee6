"""
A guest took the Message-ID of an answer, wrote another text under the bot's address, and sent it to the bot: where the
mail server writes no Authentication-Results it was filed into the bot's Sent folder, as if the bot had written it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from devservers import MailServer
from tests.incidents.test_forged_copy_filed import behind, in_our_name, sent
from tests.integration.mail_bot import Bot, Marks, answer_to, make_bot, server_of_bots

pytestmark = [pytest.mark.anyio]


mail_server = server_of_bots()


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    return make_bot(mail_server, tmp_path)


async def test_only_the_first_copy_is_filed(bot: Bot) -> None:
    """What comes later with the id of the answer is not filed, and no copy is a question; the answer is."""
    async with bot.running() as channel:
        await bot.send()
        receipt = await channel.deliver(answer_to((await bot.inbox.until_accepted(1))[0]), uncertain=Marks())
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
        [answer] = await bot.answers()
        for word in ("unproven", "from a neighbour"):
            await bot.inject(in_our_name(bot, receipt.provider_id, word))
        await behind(bot, 2)
        [copy] = await sent(bot)
    assert copy["Subject"] == answer["Subject"]
    assert all(message.sender.address == bot.person.address for message in bot.inbox.accepted)
