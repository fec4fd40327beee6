"""Forged, automatic, excessive and poisonous mails on a real mail server: seen, refused, and no obstacle."""

from __future__ import annotations

import smtplib
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from channels.email.parse.unreadable import apology_of
from devservers import MailServer
from tests.integration.mail_bot import (
    EVIDENCE,
    Bot,
    kept_back,
    make_bot,
    raw_mail,
    refused,
    server_of_bots,
    wanted,
)

mail_server = server_of_bots()


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    return make_bot(mail_server, tmp_path)


async def test_the_same_mail_delivered_again_is_no_new_message(bot: Bot) -> None:
    """A second copy has the same identity; the same Message-ID from somebody else has not."""
    raw = raw_mail(bot, message_id="<same@peer.test>")
    async with bot.running():
        await bot.inject(raw)
        await bot.inject(raw)
        await bot.inject(raw_mail(bot, message_id="<same@peer.test>", sender="carol@mail.test"))
        await bot.inject(raw_mail(bot, message_id=None))
        await bot.inject(raw_mail(bot, message_id=None))
        await bot.inject(raw_mail(bot, message_id="broken"))
        await bot.inject(raw_mail(bot, message_id="<last@peer.test>", text="the last one"))
        await bot.inbox.until(lambda inbox: "the last one" in inbox.texts)

    assert len(bot.inbox.offered) == 7
    # One pair is the same mail twice; without a usable id the same author, time and text is the same mail.
    assert len(bot.inbox.accepted) == 4


SPOOFED = {
    "no evidence": {"evidence": ""},
    "a failing verdict on top of a forged one": {
        "evidence": f"Authentication-Results: mail.test; dmarc=fail header.from=mail.test\r\n{EVIDENCE}"
    },
    "a foreign server": {"evidence": EVIDENCE.replace("mail.test;", "evil.test;")},
    "a pass inside a comment": {
        "evidence": "Authentication-Results: mail.test; spf=pass (x; dmarc=pass header.from=mail.test)\r\n"
    },
    "a pass for another domain": {"evidence": EVIDENCE.replace("from=mail", "from=evil")},
    "two From fields": {"more": "From: mallory@evil.test\r\n"},
    "two addresses": {"sender": "alice@mail.test, mallory@evil.test"},
    "an address as display name": {"sender": '"alice@mail.test" <mallory@evil.test>'},
}
ROBOTS = {
    "auto-submitted": "Auto-Submitted: auto-replied\r\n",
    "bulk": "Precedence: bulk\r\n",
    "a list": "List-Id: <list.example.test>\r\n",
    "a report": 'Content-Type: multipart/report; boundary="b"\r\n',
}


async def test_forged_senders_are_remembered_and_not_heard(bot: Bot) -> None:
    """Without sound evidence a mail is kept back, and does not stand in the way of the real one."""
    async with bot.running():
        for number, case in enumerate(SPOOFED.values()):
            await bot.inject(raw_mail(bot, message_id=f"<real{number}@peer.test>", **case))
        for number in range(len(SPOOFED)):
            await bot.inject(raw_mail(bot, message_id=f"<real{number}@peer.test>", text=f"real {number}"))
        await bot.inbox.until_accepted(2 * len(SPOOFED))

    assert [message.text for message in wanted(bot.inbox)] == [
        f"real {number}" for number in range(len(SPOOFED))
    ]
    assert set(kept_back(bot.inbox)) == {"sender_not_verified", "no_single_sender"}
    assert refused(bot.inbox) == []
    assert not any(message.sender.verified for message in bot.inbox.accepted if message.text == "hello")


async def test_robots_and_our_own_mail_are_never_answered(bot: Bot) -> None:
    """Everything that looks like a program is seen and refused with its reason."""
    async with bot.running():
        for number, more in enumerate(ROBOTS.values()):
            await bot.inject(raw_mail(bot, message_id=f"<robot{number}@peer.test>", more=more))
        await bot.inject(raw_mail(bot, message_id="<own@peer.test>", sender=bot.address))
        await bot.inject(
            raw_mail(bot, message_id="<blind@peer.test>").replace(
                bot.address.encode(), b"undisclosed@mail.test"
            )
        )
        await run_sync(
            lambda: bot.server.inject(bot.address, raw_mail(bot, message_id="<null@peer.test>"), sender="")
        )
        await bot.inject(raw_mail(bot, message_id="<ok@peer.test>", text="a person"))
        await bot.inbox.until(lambda inbox: "a person" in inbox.texts)

    explained = [message for message in wanted(bot.inbox) if bool(message.context.refusal)]
    answered = [message.text for message in wanted(bot.inbox) if message not in explained]
    assert answered == ["hello", "a person"], "blind copies are delivered to us"
    assert len(explained) == 1, "the person is told once, for the bulk mail and the list"
    assert sorted(refused(bot.inbox)) == sorted(["automatic_mail", "bounce", "bounce", "from_own_address"])


async def test_verification_can_be_switched_off(mail_server: MailServer, tmp_path: Path) -> None:
    """With ``sender_verification: off`` the operator vouches for everybody."""
    bot = make_bot(mail_server, tmp_path, sender_verification="off")
    async with bot.running():
        await bot.inject(raw_mail(bot, evidence=""))
        await bot.inbox.until_accepted(1)

    assert bot.inbox.accepted[0].sender.verified
    assert bot.inbox.accepted[0].addressed


async def test_mails_beyond_the_limit_wait(mail_server: MailServer, tmp_path: Path) -> None:
    """The limit holds over a restart, and a mail that is read again does not use it up."""
    limits = {"sender_per_hour": 3, "sender_per_day": 0}
    bot = make_bot(mail_server, tmp_path, limits=limits)
    async with bot.running():
        for number in range(2):
            await bot.inject(raw_mail(bot, message_id=f"<m{number}@peer.test>"))
        await bot.inbox.until_accepted(2)
    async with bot.running():
        await bot.inject(raw_mail(bot, message_id="<m1@peer.test>"))
        for number in range(2, 5):
            await bot.inject(raw_mail(bot, message_id=f"<m{number}@peer.test>"))
        await bot.inbox.until_accepted(5)

    assert refused(bot.inbox) == []
    waits = [message.context.wait_s for message in wanted(bot.inbox)]
    assert [round(wait_s / 60) for wait_s in waits] == [0, 0, 0, 60, 60]


async def test_poison_never_stops_the_mails_behind_it(bot: Bot) -> None:
    """What cannot be read is told to its proven sender, what is no mail at all to nobody; neighbours are taken."""
    deep = "".join(f'Content-Type: multipart/mixed; boundary="b{n}"\r\n\r\n--b{n}\r\n' for n in range(40))
    poison = {
        "deep": raw_mail(bot, message_id="<deep@p.test>").replace(b"\r\n\r\nhello", b"\r\n" + deep.encode()),
        "huge header": raw_mail(
            bot, message_id="<head@p.test>", more="".join(f"X-{n}: {'y' * 900}\r\n" for n in range(400))
        ),
        "parts": raw_mail(
            bot,
            message_id="<parts@p.test>",
            more='Content-Type: multipart/mixed; boundary="b"\r\n',
            text="--b\r\n\r\nx\r\n" * 500,
        ),
        "no mail": b"this is no mail at all",
        "too large": raw_mail(bot, message_id="<large@p.test>", text=("x" * 75 + "\r\n") * 350_000),
    }
    async with bot.running():
        for name, raw in poison.items():
            await bot.inject(raw)
            await bot.inject(
                raw_mail(bot, message_id=f"<after-{len(name)}-{hash(name)}@p.test>", text=f"after {name}")
            )
        await bot.inbox.until_accepted(2 * len(poison), within_s=60)

    *texts, large, last = [m.text for m in wanted(bot.inbox) if not m.context.unreadable]
    assert [*texts, last] == [f"after {name}" for name in poison]
    assert "was not read" in large
    told = [m.context.unreadable for m in wanted(bot.inbox) if bool(m.context.unreadable)]
    assert told == [apology_of(why) for why in ("nested_too_deep", "header_too_large", "too_many_parts")]
    assert refused(bot.inbox) == ["no_single_sender"]


async def test_a_thousand_waiting_mails_are_taken_in_order_and_in_batches(bot: Bot) -> None:
    """A backlog comes in whole, in order, in far fewer transactions than mails."""
    async with bot.running():
        pass
    await run_sync(_inject_many, bot, 300)
    before = len(bot.inbox.offered)
    async with bot.running():
        pass
    assert before == 0
    assert bot.inbox.texts == [f"number {number}" for number in range(300)]


def _inject_many(bot: Bot, count: int) -> None:
    with smtplib.LMTP("127.0.0.1", bot.server.lmtp_port, local_hostname="localhost", timeout=60) as lmtp:
        for number in range(count):
            raw = raw_mail(bot, message_id=f"<many{number}@peer.test>", text=f"number {number}")
            lmtp.sendmail("alice@mail.test", [bot.address], raw)
