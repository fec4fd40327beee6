"""
A stranger wrote in the bot's own name, which the mail server called forged, with a Message-ID of the form that
the bot gives to its mails; it was filed into the bot's Sent folder, as if the bot had written it.
"""

from __future__ import annotations

from email.message import EmailMessage
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import MailServer
from tests.integration.mail_bot import Bot, Marks, answer_to, make_bot, server_of_bots

pytestmark = [pytest.mark.slow, pytest.mark.anyio]
UNKNOWN = "<squidbot." + "0" * 24 + "." + "1" * 24 + "@{domain}>"
WORDS = {
    "forged": "Authentication-Results: {domain}; dmarc=fail header.from={domain}\r\n",
    "unproven": "",
    "from a neighbour": "Authentication-Results: {domain}; dmarc=pass header.from={domain}\r\n",
}


mail_server = server_of_bots()


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    return make_bot(mail_server, tmp_path)


def in_our_name(bot: Bot, message_id: str, word: str = "forged") -> bytes:
    domain = bot.server.domain
    head = WORDS[word].format(domain=domain)
    return (
        f"{head}From: {bot.address}\r\nTo: {bot.person.address}\r\nSubject: I owe you money\r\n"
        f"Message-ID: {message_id}\r\n\r\nhello\r\n"
    ).encode()


async def sent(bot: Bot) -> list[EmailMessage]:
    return await run_sync(lambda: bot.peer().list("Sent"))


async def behind(bot: Bot, messages: int) -> None:
    """Until everything that came before this moment has been taken in, and the mailbox was tidied up."""
    await bot.send()
    await bot.inbox.until(lambda inbox: len([one for one in inbox.accepted if one.addressed]) == messages)
    await anyio.sleep(0.5)


@pytest.mark.parametrize("word", list(WORDS))
async def test_only_what_the_bot_has_sent_is_filed(bot: Bot, word: str) -> None:
    """An id that no outbox row has, whatever is said of its sender; not after a restart either."""
    async with bot.running():
        await bot.inject(in_our_name(bot, UNKNOWN.format(domain=bot.server.domain), word))
        await behind(bot, 1)
        assert await sent(bot) == []
    async with bot.running():
        await behind(bot, 2)
        assert await sent(bot) == []


async def test_a_mail_that_left_is_filed_and_its_forgery_is_not(bot: Bot) -> None:
    """The negative control; and whoever got an answer knows its id, but not how to pass for the bot."""
    async with bot.running() as channel:
        await bot.send()
        receipt = await channel.deliver(answer_to((await bot.inbox.until_accepted(1))[0]), uncertain=Marks())
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
        await bot.inject(in_our_name(bot, receipt.provider_id))
        await behind(bot, 2)
        [copy] = await sent(bot)
    assert copy["Subject"] != "I owe you money"
