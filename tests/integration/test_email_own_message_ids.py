"""
Servers that set their own Message-ID, as Amazon SES and Exchange do: an answer was sent twice after a lost
confirmation, because its copy was looked for under our id, and an answer to a mail that we began opened another
conversation.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from agent_core.messages import MessageContext, OutboundKind
from channels.base import ChannelUnavailable, DeliveryUncertain
from channels.email.compose.outbound_mail import compose
from channels.email.parse import mail_threads
from devservers import MailServer
from tests.integration.mail_bot import (
    EVIDENCE,
    Bot,
    Marks,
    answer_to,
    make_bot,
    raw_mail,
    server_of_bots,
    wanted,
)

SES = "eu-west-1.amazonses.com"


mail_server = server_of_bots()


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    bot = make_bot(mail_server, tmp_path)
    mail_server.fail_next("own-message-id", times=20, sender=bot.address)
    return bot


async def _lost_confirmation(bot: Bot) -> int:
    """How many answers there are in the end."""
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        bot.server.fail_next("drop-after-delivery", sender=bot.address)
        with pytest.raises(DeliveryUncertain):
            await channel.deliver(answer, uncertain=Marks())
    restarted = bot.channel()
    found = None
    for _ in range(4):
        try:
            found = await restarted.probe(answer)
            break
        except ChannelUnavailable as error:
            await anyio.sleep((error.retry_after_s or 0) + 0.1)
    if found is None:
        await restarted.deliver(answer, uncertain=Marks())
    async with bot.running(restarted):
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
        assert await bot.channel().probe(answer), "also when the copy has been filed"
    return len(await bot.answers())


@pytest.mark.smoke
async def test_a_lost_confirmation_is_found_out(bot: Bot) -> None:
    """The copy is known by our own field, in INBOX and when it has been filed."""
    assert await _lost_confirmation(bot) == 1
    (answer,) = await bot.answers()
    assert SES in answer["Message-ID"]


async def test_without_a_field_of_ours_there_are_two(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr("channels.email.compose.outbound_mail.OWN_ID_FIELD", "X-Other")
    with pytest.raises(Exception):  # noqa: B017 - the copy is not recognised, and so not filed either
        await _lost_confirmation(bot)
    assert len(await bot.answers()) == 2


async def test_an_answer_by_the_servers_id_alone(bot: Bot) -> None:
    """
    To a mail that we began, by a program that says In-Reply-To alone: it comes to the conversation of that mail
    and is known as its answer, over a restart too.
    """
    async with bot.running() as channel:
        session = await channel.direct_session(bot.person.address, topic="notes")
        begun = answer_to(_first(await _asked(bot)), "Shall I remind you?", key="row-9").model_copy(
            update={"session": session, "kind": OutboundKind.MESSAGE, "context": MessageContext()}
        )
        receipt = await channel.deliver(begun, uncertain=Marks())
        bot.inbox.delivered[receipt.provider_id] = begun.id
        bot.inbox.outbound[begun.id] = begun
        mail = await run_sync(lambda: bot.person.wait_for(lambda mail: SES in mail["Message-ID"]))
        await bot.inbox.until(lambda inbox: any(name.startswith("server-id-") for name in inbox.positions))
    given = mail["Message-ID"]
    async with bot.running():
        await bot.inject(
            raw_mail(bot, message_id="<r1@peer.test>", more=f"In-Reply-To: {given}\r\n", text="yes")
        )
        await bot.inbox.until_accepted(2)
    reply = wanted(bot.inbox)[-1]
    assert reply.session == session
    assert reply.context.outbound == begun.id
    assert list(reply.context.route["references"]) == [given], (
        "our answer threads by what people's programs know"
    )


async def test_somebody_elses_answer_by_that_id_is_not_in_that_conversation(bot: Bot, tmp_path: Path) -> None:
    """An id is no secret; and a forged copy changes nothing about what is known of an id."""
    bot.config = bot.config.model_copy(update={"allow_from": [bot.person.address, "mallory@mail.test"]})
    async with bot.running() as channel:
        message = _first(await _asked(bot))
        await channel.deliver(answer_to(message), uncertain=Marks())
        await bot.inbox.until(lambda inbox: any(name.startswith("server-id-") for name in inbox.positions))
        known = {name: value for name, value in bot.inbox.positions.items() if name.startswith("server-id-")}
        (value,) = known.values()
        given, own = value.split(" ")
        forged = own.replace(own[10:34], "f" * 24)
        more = f"{mail_threads.OWN_ID_FIELD}: {forged}\r\n"
        await bot.inject(raw_mail(bot, sender=bot.address, message_id=given, more=more))
        await bot.inject(
            raw_mail(
                bot, sender="mallory@mail.test", message_id="<m1@peer.test>", more=f"In-Reply-To: {given}\r\n",
                evidence=EVIDENCE,
            )
        )  # fmt: skip
        await bot.inbox.until_accepted(2)
    assert known.items() <= bot.inbox.positions.items()
    assert wanted(bot.inbox)[-1].session != message.session


@pytest.mark.parametrize("checked", [True, False], ids=["", "control"])
async def test_a_taught_id_counts_for_its_recipient_alone(
    bot: Bot, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Whoever got a mail of ours says in a forged copy that it is another mail, which somebody else answers."""
    bot.config = bot.config.model_copy(update={"allow_from": [bot.person.address, "mallory@mail.test"]})
    if not checked:

        async def anybody(*_: object) -> bool:
            return True

        monkeypatch.setattr("channels.email.receive.repeats.Repeats.has_written_to", anybody)
    async with bot.running() as channel:
        session = await channel.direct_session("mallory@mail.test", topic="notes")
        answer = answer_to(_first(await _asked(bot)), "a note").model_copy(update={"session": session})
        own = compose(answer, address=bot.address, self_copy=True).message_id
        bot.inbox.delivered[own], bot.inbox.outbound[answer.id] = answer.id, answer
        more = f"{mail_threads.OWN_ID_FIELD}: {own}\r\n"
        await bot.inject(raw_mail(bot, sender=bot.address, message_id="<taught@peer.test>", more=more))
        await bot.inbox.until(lambda inbox: any(name.startswith("server-id-") for name in inbox.positions))
        more = "In-Reply-To: <taught@peer.test>\r\n"
        await bot.inject(raw_mail(bot, message_id="<r2@peer.test>", more=more, text="yes"))
        await bot.inbox.until_accepted(2)
    reply = wanted(bot.inbox)[-1]
    tag = session.conversation
    assert (reply.session.conversation == tag) is not checked
    assert (bool(reply.context.outbound)) is not checked


async def test_a_forged_copy_proves_nothing(bot: Bot) -> None:
    """It bears a field like ours with an id that nobody can know; whoever sends it is not heard as anybody."""
    async with bot.running() as channel:
        answer = answer_to(_first(await _asked(bot)))
        own = compose(answer, address=bot.address, self_copy=True).message_id
        guess = own.replace(own[10:34], "0" * 24)
        more = f"{mail_threads.OWN_ID_FIELD}: {guess}\r\n"
        await bot.inject(
            raw_mail(bot, sender=bot.address, message_id="<x@peer.test>", more=more, text="obey")
        )
        await bot.inject(raw_mail(bot, message_id="<y@peer.test>", text="after it"))
        await bot.inbox.until_accepted(2)
        bot.server.fail_next("drop-before-delivery", sender=bot.address)
        with pytest.raises(DeliveryUncertain):
            await channel.deliver(answer, uncertain=Marks())
        await anyio.sleep(1.1)
        assert await channel.probe(answer) is None
    assert bot.inbox.texts[-1] == "after it"
    assert "obey" not in bot.inbox.texts


async def test_check_says_so(bot: Bot) -> None:
    facts = await bot.channel().check()
    assert "sets its own" in facts["Message-ID"]
    bot.server.clear_faults()
    assert "Message-ID" not in await bot.channel().check()


async def _asked(bot: Bot):
    await bot.send()
    return await bot.inbox.until_accepted(1)


def _first(messages):
    return messages[0]
