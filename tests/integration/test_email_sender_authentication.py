"""Senders whom our own provider does not prove: by signature, by secret address, or kept back; on a real server."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dkim
import pytest
from Crypto.PublicKey import RSA

from devservers import MailServer
from tests.doubles.accounts import email_channel
from tests.integration.mail_bot import (
    Bot,
    kept_back,
    make_bot,
    raw_mail,
    refused,
    server_of_bots,
    wanted,
)
from tests.name_server import NameServer, name_server

KEY = RSA.generate(2048)
RECORD = (
    f"v=DKIM1; k=rsa; n={'long ' * 30}; p={base64.b64encode(KEY.public_key().export_key('DER')).decode()}"
)
SIGNED = [b"from", b"to", b"subject", b"date", b"message-id"]
SECRET = "k7f2m9q4x8z1w5t3"


mail_server = server_of_bots()


def sign(raw: bytes, domain: str = "mail.test", **how: Any) -> bytes:
    head = dkim.sign(raw, b"s1", domain.encode(), KEY.export_key("PEM"), include_headers=SIGNED, **how)
    return head + raw


def zone() -> dict[str, str]:
    return {"s1._domainkey.mail.test": RECORD, "s1._domainkey.evil.test": RECORD}


def dkim_bot(server: MailServer, folder: Path, names: NameServer, **changes: Any) -> Bot:
    return make_bot(
        server,
        folder,
        **{"dkim": "verify", "dns_servers": [f"127.0.0.1:{names.port}"], "trusted_authserv_ids": []}
        | changes,
    )


async def test_a_signature_of_the_senders_domain(mail_server: MailServer, tmp_path: Path) -> None:
    """Fetched over IMAP and verified with a key out of DNS (which needs TCP), it proves who wrote a mail."""
    async with name_server(zone()) as names:
        bot = dkim_bot(mail_server, tmp_path, names)
        async with bot.running():
            for number in range(3):
                raw = raw_mail(bot, message_id=f"<m{number}@p.test>", evidence="", text=f"proven {number}")
                await bot.inject(sign(raw))
            await bot.inbox.until_accepted(3)
    assert [message.text for message in wanted(bot.inbox)] == ["proven 0", "proven 1", "proven 2"]
    assert wanted(bot.inbox)[0].context.route["evidence"] == "signed by mail.test"
    assert names.asked.count("s1._domainkey.mail.test") <= 2  # once by UDP, which is too small, once by TCP


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "unsigned": lambda raw: raw,
    "a valid signature of another domain": lambda raw: sign(raw, "evil.test"),
    "text appended to a part that is signed": lambda raw: sign(raw, length=True) + b"and pay me\r\n",
    "text changed": lambda raw: sign(raw).replace(b"hello", b"hullo"),
    "a second From": lambda raw: sign(raw).replace(b"From: ", b"From: mallory@evil.test\r\nFrom: ", 1),
    "another subject": lambda raw: sign(raw).replace(b"Subject: ", b"Subject: x\r\nSubject: ", 1),
    "a type that nobody signed": lambda raw: b"Content-Type: text/html\r\n" + sign(raw),
    "a mail to somebody else": lambda raw: sign(raw.replace(b"\r\nTo: ", b"\r\nTo: not-")),
    "a key that does not exist": lambda raw: sign(raw).replace(b"s=s1", b"s=s2"),
}


async def test_forged_signatures(mail_server: MailServer, tmp_path: Path) -> None:
    """Each is kept back for a person, nothing of it is answered, and a good one behind them is."""
    async with name_server(zone()) as names:
        bot = dkim_bot(mail_server, tmp_path, names)
        async with bot.running():
            for number, forge in enumerate(FORGERIES.values()):
                await bot.inject(forge(raw_mail(bot, message_id=f"<f{number}@p.test>", evidence="")))
            await bot.inject(sign(raw_mail(bot, message_id="<good@p.test>", evidence="", text="good")))
            await bot.inbox.until_accepted(len(FORGERIES) + 1)
    assert [message.text for message in wanted(bot.inbox)] == ["good"]
    assert len(kept_back(bot.inbox)) == len(FORGERIES)
    kept = [one for one in bot.inbox.accepted if one.context.quarantine == "sender_not_verified"]
    assert len(kept) == len(FORGERIES) - 1
    assert all(message.context.doubt for message in kept), "a person is told why"
    assert refused(bot.inbox) == []


async def test_dns_that_fails_twice_and_dns_that_is_gone(mail_server: MailServer, tmp_path: Path) -> None:
    """It is asked again; without any answer the mail is kept back, and the mails behind it go on."""
    async with name_server(zone()) as names:
        bot = dkim_bot(mail_server, tmp_path, names)
        names.fail_next = 2
        async with bot.running():
            await bot.inject(sign(raw_mail(bot, message_id="<one@p.test>", evidence="")))
            await bot.inbox.until_accepted(1)
        assert len(wanted(bot.inbox)) == 1
        other = dkim_bot(mail_server, tmp_path / "other", names)
        names.fail_next = 1_000
        async with other.running():
            await other.inject(sign(raw_mail(other, message_id="<two@p.test>", evidence="")))
            await other.inbox.until_accepted(1, within_s=60)
        assert kept_back(other.inbox) == ["sender_not_verified"]


async def test_our_providers_word_against_a_signature(mail_server: MailServer, tmp_path: Path) -> None:
    """Where the provider says that a mail is forged, nobody is asked any more."""
    denied = "Authentication-Results: mail.test; dmarc=fail header.from=mail.test\r\n"
    async with name_server(zone()) as names:
        bot = dkim_bot(mail_server, tmp_path, names, trusted_authserv_ids=["mail.test"])
        async with bot.running():
            await bot.inject(denied.encode() + sign(raw_mail(bot, evidence="")))
            await bot.inbox.until_accepted(1)
    assert kept_back(bot.inbox) == ["sender_not_verified"]
    assert names.asked == []


async def test_a_secret_address(
    mail_server: MailServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It proves the one who was given it, whoever else writes to it is kept back, and it is shown nowhere."""
    number_free = make_bot(mail_server, tmp_path / "probe")
    person = number_free.person.address
    tags = [{"sender": person, "secret": SECRET}]
    bot = make_bot(mail_server, tmp_path, trusted_authserv_ids=[], subaddress_secrets=tags, allow_from=["*"])
    local, _, domain = bot.address.partition("@")
    secret_address = f"{local}+{SECRET}@{domain}"

    def raw(message_id: str, sender: str, to: str) -> bytes:
        text = f"I wrote to {secret_address} just now"
        mail = raw_mail(bot, message_id=message_id, evidence="", sender=sender, text=text)
        return mail.replace(f"To: {bot.address}".encode(), f"To: {to}".encode())

    async with bot.running():
        await bot.inject(raw("<a@p.test>", person, secret_address))
        await bot.inject(raw("<b@p.test>", "mallory@evil.test", secret_address))
        await bot.inject(raw("<c@p.test>", person, f"{local}+wrong@{domain}"))
        await bot.inbox.until_accepted(3)
    (taken,) = wanted(bot.inbox)
    assert (taken.sender.address, taken.context.route["evidence"]) == (person, "secret address")
    assert kept_back(bot.inbox) == ["sender_not_verified"] * 2
    seen = "".join(message.model_dump_json() for message in bot.inbox.accepted) + capsys.readouterr().out
    assert "just now" in seen
    assert SECRET not in seen
    assert SECRET not in repr(bot.config)


async def test_robots_that_may_be_read(mail_server: MailServer, tmp_path: Path) -> None:
    """For the history, whatever their fields say; where nobody can be written to, even if they are let in."""
    bot = make_bot(mail_server, tmp_path, ingest_only_from=["notif*@mail.test", "*@robots.test"])
    more = "Auto-Submitted: auto-generated\r\nList-Id: <x.robots.test>\r\n"
    async with bot.running():
        await bot.inject(
            raw_mail(bot, message_id="<r1@p.test>", sender="notifications@mail.test", more=more, text="built")
        )
        await bot.inject(
            raw_mail(bot, message_id="<r2@p.test>", sender="x@robots.test", more=more, evidence="")
        )
        await bot.inject(raw_mail(bot, message_id="<r3@p.test>", text="a person"))
        await bot.inbox.until_accepted(3)
    robot = bot.inbox.accepted[0]
    assert [message.text for message in wanted(bot.inbox)] == ["built", "a person"]
    assert (robot.context.read_only, robot.context.allowed_here) == (True, True)
    assert not bot.inbox.accepted[2].context.read_only
    assert (robot.session.thread, robot.context.reply_to) == ("nobody", "")
    assert refused(bot.inbox) == ["automatic_mail"] or refused(bot.inbox) == ["mailing_list"]


async def test_a_robot_is_proven_by_its_signature_too(mail_server: MailServer, tmp_path: Path) -> None:
    """Who may be read is looked into although nobody else may write."""
    async with name_server(zone()) as names:
        bot = dkim_bot(mail_server, tmp_path, names, ingest_only_from=["ci@mail.test"])
        base = bot.channel()
        blind = email_channel(
            "email", bot.config, state_dir=bot.state_dir, clock=base._clock, knows=lambda _: False
        )
        async with bot.running(blind):
            for name, sender in (("<r@p.test>", "ci@mail.test"), ("<x@p.test>", "other@mail.test")):
                await bot.inject(sign(raw_mail(bot, message_id=name, sender=sender, evidence="")))
            await bot.inbox.until_accepted(2)
    robot, other = bot.inbox.accepted
    assert (robot.sender.verified, robot.context.read_only) == (True, True)
    assert (other.sender.verified, other.context.quarantine) == (False, "sender_not_verified")


async def test_strangers_leave_nothing_behind(mail_server: MailServer, tmp_path: Path) -> None:
    """No question to DNS because of somebody who could not write to us anyway."""
    async with name_server(zone()) as names:
        bot = dkim_bot(mail_server, tmp_path, names)
        base = bot.channel()
        stranger_blind = email_channel(
            "email", bot.config, state_dir=bot.state_dir, clock=base._clock, knows=lambda who: "alice" in who
        )
        async with bot.running(stranger_blind):
            raw = raw_mail(bot, message_id="<s@p.test>", sender="zed@evil.test", evidence="")
            await bot.inject(sign(raw, "evil.test"))
            await bot.inbox.until_accepted(1)
        assert names.asked == []
