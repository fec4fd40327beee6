"""The email channel against a real mail server: what goes in comes out once, whatever happens in between."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from channels.base import (
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
)
from channels.email.compose.outbound_mail import compose
from devservers import MailPeer, MailServer
from tests.integration.mail_bot import (
    Bot,
    Marks,
    answer_to,
    make_bot,
    server_of_bots,
)

mail_server = server_of_bots()


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    return make_bot(mail_server, tmp_path)


@pytest.mark.smoke
async def test_a_mail_is_accepted_once_and_answered_in_its_thread(bot: Bot) -> None:
    """A mail becomes one message; its answer threads to it, says that it is automatic, and is filed once."""
    async with bot.running() as channel:
        sent = await bot.send("Lunch?", "Shall we?\n\n-- \nAlice")
        message = (await bot.inbox.until_accepted(1))[0]
        marks = Marks()
        receipt = await channel.deliver(answer_to(message), uncertain=marks)
        answer = await run_sync(lambda: bot.person.wait_for(lambda mail: mail["In-Reply-To"] == sent))
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
        flags = await run_sync(_flags_until, bot.peer(), "\\Answered")

    assert (message.text, message.sender.address) == ("Shall we?\n\n-- \nAlice", bot.person.address)
    assert message.sender.verified
    assert marks.count == 1
    assert answer["Message-ID"] == receipt.provider_id
    assert answer["Subject"] == "Re: Lunch?"
    assert str(answer["References"]).split() == [sent]
    assert answer["Auto-Submitted"] == "auto-replied"
    assert answer["X-Auto-Response-Suppress"] == "OOF, AutoReply"
    assert answer["X-MS-Reactions"] == "disallow"
    assert "<strong>fine</strong>" in answer.get_body(("html",)).get_content()
    assert "A fine answer" in answer.get_body(("plain",)).get_content()
    assert "\\Seen" in flags[0]
    assert len(flags) == 1, "our own copy is not in INBOX any more"
    assert len(await run_sync(lambda: bot.peer().raw_list("Sent"))) == 1
    assert bot.inbox.accepted == [message], "our own copy is no message"


def _flags_until(peer: MailPeer, flag: str) -> list[str]:
    flags: list[str] = []
    for _ in range(60):
        flags = peer.flags()
        if flags and all(flag in item for item in flags):
            return flags
        time.sleep(0.1)
    raise AssertionError(f"{flag} was never set: {flags}")


async def test_nothing_is_marked_before_the_answer_is_out(bot: Bot) -> None:
    """Taking a mail in leaves it unread."""
    async with bot.running():
        await bot.send()
        await bot.inbox.until_accepted(1)
        flags = await run_sync(bot.peer().flags)

    assert "\\Seen" not in flags[0]
    assert "\\Answered" not in flags[0]


async def test_follow_ups_stay_in_the_session_whatever_the_mail_program_sends(bot: Bot) -> None:
    """The session of a thread is found by References and by In-Reply-To alone; a new mail is a new one."""
    async with bot.running() as channel:
        await bot.send("One")
        first = (await bot.inbox.until_accepted(1))[0]
        receipt = await channel.deliver(answer_to(first), uncertain=Marks())
        await bot.send("Re: One", in_reply_to=receipt.provider_id)
        await bot.send(
            "Re: One",
            in_reply_to=receipt.provider_id,
            references=[first.context.route["message_id"], receipt.provider_id],
        )
        await bot.send("One")
        await bot.inbox.until_accepted(4)

    sessions = [message.session for message in bot.inbox.accepted]
    assert sessions[0] == sessions[1] == sessions[2]
    assert sessions[3] != sessions[0]


async def test_the_same_answer_delivered_twice_is_one_mail(bot: Bot) -> None:
    """Delivery is idempotent by the row's id."""
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        first = await channel.deliver(answer, uncertain=Marks())
        second = await channel.deliver(answer, uncertain=Marks())

        assert first == second
        assert len(await bot.answers()) == 1


async def test_mail_that_came_while_we_were_away_is_taken_at_the_next_start(bot: Bot) -> None:
    """Nothing older than the very first start is taken, everything after it is, in order."""
    await bot.send("Old", "too old")
    async with bot.running():
        assert bot.inbox.accepted == []
    for number in range(3):
        await bot.send(f"Away {number}", f"number {number}")
    async with bot.running():
        pass

    assert bot.inbox.texts == ["number 0", "number 1", "number 2"]


async def test_a_renumbered_mailbox_brings_nothing_back(bot: Bot) -> None:
    """After a change of UIDVALIDITY all is read again, and neither the answered nor the ancient is new."""
    if bot.server.flavour != "dovecot":
        pytest.skip("needs a mail store that can be renumbered")
    await bot.send("Old", "too old")
    await anyio.sleep(1.1)  # arrival times count in seconds
    async with bot.running():
        await bot.send("New", "new one")
        await bot.inbox.until_accepted(1)
    before = bot.inbox.positions["uidvalidity"]
    await anyio.sleep(1.1)  # so does the number of the numbering
    await run_sync(_renumber, bot)
    await bot.send("Later", "later one")
    async with bot.running():
        pass

    assert bot.inbox.positions["uidvalidity"] != before
    assert len(bot.inbox.offered) == 3, "the known one was offered again"
    assert bot.inbox.texts == ["new one", "later one"]


def _renumber(bot: Bot) -> None:
    """Make Dovecot forget the numbers of one mailbox."""
    store = bot.server._store
    assert store is not None
    name = bot.address.partition("@")[0]
    numbers = [path for path in store.folder.rglob("dovecot*") if name in path.parts and path.is_file()]
    assert any(path.name == "dovecot-uidlist" for path in numbers), numbers
    for path in numbers:
        path.unlink()


async def test_a_lost_confirmation_is_found_out(bot: Bot) -> None:
    """The server delivers and drops the connection: uncertain, and the probe of a new process finds it."""
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        bot.server.fail_next("drop-after-delivery", sender=bot.address)
        marks = Marks()
        with pytest.raises(DeliveryUncertain):
            await channel.deliver(answer, uncertain=marks)
    assert marks.count == 1
    restarted = bot.channel()
    found = await restarted.probe(answer)
    assert found is not None
    async with bot.running(restarted):
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
        assert await bot.channel().probe(answer) == found, "also when the copy has been filed"
        await restarted.deliver(answer, uncertain=marks)
    assert len(await bot.answers()) == 1


async def test_an_unsent_mail_is_not_found_and_only_after_the_time_of_grace(bot: Bot) -> None:
    """Dropped before delivery: first nobody can say, then it surely is not there and goes out once."""
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        bot.server.fail_next("drop-before-delivery", sender=bot.address)
        with pytest.raises(DeliveryUncertain):
            await channel.deliver(answer, uncertain=Marks())
        with pytest.raises(ChannelUnavailable) as caught:
            await channel.probe(answer)
        assert caught.value.retry_after_s is not None
        assert 0 < caught.value.retry_after_s <= 1
        await anyio.sleep(caught.value.retry_after_s + 0.1)
        assert await channel.probe(answer) is None
        await channel.deliver(answer, uncertain=Marks())
    assert len(await bot.answers()) == 1


async def test_a_copy_that_a_crash_left_in_the_inbox_is_filed_at_the_next_start(bot: Bot) -> None:
    """Seen, accepted, and then the process died: the copy is still put where it belongs."""
    async with bot.running():
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
    mail = compose(answer, address=bot.address, self_copy=True)
    await bot.inject(mail.raw)
    bot.inbox.delivered[mail.message_id] = answer.id
    bot.inbox.positions["uid"] = str(int(bot.inbox.positions["uid"]) + 1)
    async with bot.running():
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))

    assert len(await run_sync(bot.peer().raw_list)) == 1
    assert len(bot.inbox.offered) == 1


async def test_delivering_without_having_probed_is_caught(bot: Bot) -> None:
    """Who repeats an uncertain delivery without a probe gets the first mail, not a second."""
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        bot.server.fail_next("drop-after-delivery", sender=bot.address)
        with pytest.raises(DeliveryUncertain):
            await channel.deliver(answer, uncertain=Marks())
        await channel.deliver(answer, uncertain=Marks())
    assert len(await bot.answers()) == 1


@pytest.mark.parametrize(
    ("fault", "reply", "error"),
    [
        ("refuse-mail", "451 4.3.0 later", ChannelUnavailable),
        ("refuse-rcpt", "451 4.3.0 later", ChannelUnavailable),
        ("refuse-data", "451 4.3.0 later", ChannelUnavailable),
        ("refuse-rcpt", "550 5.1.1 no such user", DeliveryFailed),
        ("refuse-data", "554 5.6.0 no", DeliveryFailed),
        ("refuse-mail", "553 5.7.1 not your address", ChannelMisconfigured),
        ("refuse-auth", "535 5.7.8 no", ChannelAuthFailed),
        ("refuse-auth", "454 4.7.0 later", ChannelUnavailable),
    ],
)
async def test_refusals_are_told_apart(bot: Bot, fault: str, reply: str, error: type[ChannelError]) -> None:
    """4xx is for later, 5xx for the message, its sender or the login; nothing was sent, and then it is, once."""
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        bot.server.fail_next(fault, reply=reply, sender=bot.address)
        with pytest.raises(error) as caught:
            await channel.deliver(answer, uncertain=Marks())
        assert type(caught.value) is error
        assert await bot.answers() == []
        channel._safety.patience.note_success()  # minutes later
        await channel.deliver(answer, uncertain=Marks())
    assert len(await bot.answers()) == 1


async def test_a_submission_that_refuses_the_login_is_told_once(bot: Bot) -> None:
    """The mailbox lives on with a login of before, so no state of the channel says it. A new refusal is news."""
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        bot.server.fail_next("refuse-auth", times=2, reply="535 5.7.8 no", sender=bot.address)
        for _ in range(2):
            with pytest.raises(ChannelAuthFailed):
                await channel.deliver(answer, uncertain=Marks())
        assert [told.split(":")[0] for told in bot.alerts] == ["No mail goes out on email"]
        assert bot.alerts[0].endswith("\n\nI try again in 5 minutes; restart me to try at once."), bot.alerts
        channel._safety.patience._not_before = 0.0  # minutes later
        with pytest.raises(ChannelAuthFailed):
            await channel.deliver(answer, uncertain=Marks())
        assert len(bot.alerts) == 1
        channel._safety.patience._not_before = 0.0
        await channel.deliver(answer, uncertain=Marks())
        bot.server.fail_next("refuse-auth", reply="535 5.7.8 no", sender=bot.address)
        with pytest.raises(ChannelAuthFailed):
            await channel.deliver(answer.model_copy(update={"id": "row-2"}), uncertain=Marks())
        assert len(bot.alerts) == 2


@pytest.mark.parametrize("strategy", ["server", "append"])
async def test_other_ways_to_a_sent_copy(mail_server: MailServer, tmp_path: Path, strategy: str) -> None:
    """``append`` uploads one copy after sending; ``server`` leaves it to the provider and adds nothing."""
    bot = make_bot(mail_server, tmp_path, sent_copy=strategy)
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        await channel.deliver(answer, uncertain=Marks())
        if strategy == "append":
            await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
            assert await bot.channel().probe(answer) is not None
    copies = await run_sync(lambda: bot.peer().raw_list("Sent"))
    assert len(copies) == (1 if strategy == "append" else 0)
    assert len(await run_sync(bot.peer().raw_list)) == 1
