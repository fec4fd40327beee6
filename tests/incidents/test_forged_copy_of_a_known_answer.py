"""
A guest took the Message-ID of an answer, wrote another text under the bot's address, and sent it to the bot: where the
mail server writes no Authentication-Results it was filed into the bot's Sent folder, as if the bot had written it.
"""

from __future__ import annotations

import email.policy
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from channels.email.compose.copy_mac import FIELD, CopyMac, fingerprint
from channels.email.parsing.mime import parse_headers
from devservers import MailServer
from tests.incidents.test_forged_copy_filed import behind, in_our_name, sent
from tests.integration.mail_bot import Bot, Marks, answer_to, make_bot, open_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def mail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    with open_server(tmp_path_factory.mktemp("mail")) as server:
        yield server


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    return make_bot(mail_server, tmp_path)


async def test_only_what_the_bot_has_said_is_filed(bot: Bot) -> None:
    """With the mac of the answer, too, and after a restart; the answer itself is filed, and no copy is a question."""
    async with bot.running() as channel:
        await bot.send()
        receipt = await channel.deliver(answer_to((await bot.inbox.until_accepted(1))[0]), uncertain=Marks())
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
        [answer] = await bot.answers()
        mac = f"X-Squidbot-Copy: {answer[FIELD]}\r\n".encode()
        assert answer[FIELD]
        for word in ("unproven", "from a neighbour"):
            forged = in_our_name(bot, receipt.provider_id, word)
            await bot.inject(forged)
            await bot.inject(mac + forged)
        await behind(bot, 2)
        assert len(await sent(bot)) == 1
    async with bot.running():
        await behind(bot, 3)
        [copy] = await sent(bot)
    assert copy["Subject"] == answer["Subject"]
    assert all(message.sender.address == bot.person.address for message in bot.inbox.accepted)


async def test_the_forgery_came_first(bot: Bot) -> None:
    """While nobody knows yet whether the answer left: it does not take the place of the real copy."""
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0])
        message_id = (await channel.deliver(answer, uncertain=Marks())).provider_id
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
    fresh = bot.channel()
    bot.inbox.delivered.clear()
    async with bot.running(fresh):
        await bot.inject(in_our_name(bot, message_id, "unproven"))
        await behind(bot, 2)
        fresh._delivered_now(answer, None)
        await anyio.sleep(0.5)
        assert len(await sent(bot)) == 1


MAIL = (
    b"From: bot@mail.test\r\nTo: al@mail.test\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nDate: now\r\n"
    b"Message-ID: <a@mail.test>\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=o\r\n\r\n"
    b"--o\r\nContent-Type: multipart/alternative; boundary=i\r\n\r\n"
    b"--i\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    b"Gr=C3=BC=C3=9Fe =\r\nan alle\r\n"
    b"--i\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<b>Hi</b>\r\n--i--\r\n"
    b"--o\r\nContent-Type: text/csv\r\nContent-Disposition: attachment; filename=a.csv\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\nMSwyCg==\r\n--o--\r\n"
)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.replace(b"quoted-printable", b"base64").replace(
            b"Gr=C3=BC=C3=9Fe =\r\nan alle", b"R3LDvMOfZSBh\r\nbiBhbGxl"
        ),
        lambda raw: raw.replace(b"=?utf-8?q?Gr=C3=BC=C3=9Fe?=", b"\r\n =?utf-8?b?R3LDvMOfZQ==?="),
        lambda raw: raw.replace(b"<b>Hi</b>", b"<b>Hi</b>  "),
        lambda raw: raw.replace(b"\r\n", b"\n"),
        lambda raw: b"Received: by mx.test\r\nReturn-Path: <bot@mail.test>\r\n" + raw,
        lambda raw: raw.replace(b"bot@mail.test", b'"Bot" <bot@mail.test>'),
    ],
)
def test_what_servers_do_to_a_mail(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """Other encodings, folding, fields on top: it is still the same mail."""
    assert change(MAIL) != MAIL
    assert known(tmp_path, change)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"an alle", b"an dich"),
        (b"<b>Hi</b>", b"<b>Pay</b>"),
        (b"MSwyCg==", b"MSwzCg=="),
        (b"a.csv", b"b.csv"),
        (b"To: al@", b"To: eve@"),
        (b"Date: now", b"Date: then"),
        (b"Subject: ", b"Subject: Pay. "),
        (b"Subject: ", b"Subject: Pay\r\nSubject: "),
        (b"--i--\r\n", b"--i\r\nContent-Type: text/plain\r\n\r\nPay\r\n--i--\r\n"),
        (b"<a@mail.test>", b"<b@mail.test>"),
        (b"From: ", b"X-Squidbot-Copy: 00\r\nFrom: "),
    ],
)
def test_what_others_do_to_a_mail(tmp_path: Path, old: bytes, new: bytes) -> None:
    """Whatever a reader sees of it cannot be changed."""
    assert old in MAIL
    assert not known(tmp_path, lambda raw: raw.replace(old, new))


def test_another_key(tmp_path: Path) -> None:
    """The key outlasts the run, is nobody else's to read, and without it nothing is known."""
    assert known(tmp_path, lambda raw: raw)
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    raw = CopyMac(tmp_path / "key").authenticated(MAIL)
    other = CopyMac(tmp_path / "other")
    other.load()
    assert not other.fits(parse_headers(raw), fingerprint(raw))


def known(tmp_path: Path, change: Callable[[bytes], bytes]) -> bool:
    raw = change(CopyMac(tmp_path / "key").authenticated(MAIL))
    assert isinstance(email.message_from_bytes(raw, policy=email.policy.default), EmailMessage)
    mac = CopyMac(tmp_path / "key")
    mac.load()
    return mac.fits(parse_headers(raw), fingerprint(raw))
