"""What mail servers do differently, on a real one: STARTTLS, namespaces, rights, quotas, vanished folders."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from anyio.to_thread import run_sync

from agent_core.messages import InboundMessage
from channels.base import ChannelMisconfigured, ChannelUnavailable, LinkState
from channels.email.channel import EmailChannel
from channels.email.config import EmailConfig
from channels.email.imap.housekeeping import Answered, Housekeeping, UploadCopy
from channels.email.imap.mailbox import Mailbox
from channels.email.mail_credentials import verifying_context
from gateway.supervision.supervisor import Supervisor
from tests.clock import LoopClock
from tests.doubles.accounts import email_channel
from tests.doubles.imap_server import Dialogue, fake_imap
from tests.doubles.inbox import MemoryInbox, running
from tests.integration.black_hole import BlackHole
from tests.integration.mail_bot import QUICK
from tests.own_dovecot import OwnDovecot, own_dovecot


def mail(number: int = 1) -> bytes:
    return f"From: alice@mail.test\r\nTo: bot@mail.test\r\nMessage-ID: <m{number}@p.test>\r\n\r\nno. {number}\r\n".encode()


def channel(config: EmailConfig, state: Path) -> EmailChannel:
    return email_channel("email", config, state_dir=state, clock=LoopClock(datetime.now(UTC)), timing=QUICK)


def opened(config: EmailConfig) -> Any:
    context = verifying_context(config.tls_ca_file)
    return Mailbox.open(config, context, QUICK)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnDovecot]:
    with own_dovecot(tmp_path_factory.mktemp("plain")) as started:
        yield started


def starttls(post: OwnDovecot, **changes: Any) -> EmailConfig:
    return post.config(imap={"host": "127.0.0.1", "port": post.plain_port, "security": "starttls"}, **changes)


async def test_starttls(plain: OwnDovecot, tmp_path: Path) -> None:
    """Mail is read over a connection that began in the clear and says nothing there."""
    inbox = MemoryInbox()
    async with running(channel(starttls(plain), tmp_path), inbox) as run:
        await inbox.until_up()
        await run_sync(plain.inject, mail())
        await inbox.until_accepted(1)
    assert run.error is None
    assert any("method=PLAIN" in line and ", TLS," in line for line in plain.log().splitlines())


async def test_starttls_with_an_unknown_authority(plain: OwnDovecot) -> None:
    """It is verified like any other TLS, and nothing is said without it."""
    before = plain.log().count("Login: user")
    with pytest.raises(ChannelMisconfigured, match="no authority that this machine trusts"):
        async with opened(starttls(plain, tls_ca_file=None)):
            pass
    assert plain.log().count("Login: user") == before


SECRET_WORDS = ("LOGIN", "AUTHENTICATE", "bot-pw")


@pytest.mark.parametrize("trick", ["appended", "half a line", "preauth", "no starttls", "refused"])
async def test_nobody_can_talk_into_starttls(plain: OwnDovecot, trick: str) -> None:
    """Words slipped in behind the consent, a greeting that skips the login, a missing offer: no password is said."""
    said: list[str] = []

    async def script(server: Dialogue) -> None:
        await server.say("* PREAUTH hello" if trick == "preauth" else "* OK hello")
        while True:
            tag, text = await server.command()
            said.append(text)
            if text == "CAPABILITY":
                offer = "" if trick == "no starttls" else " STARTTLS"
                await server.say(f"* CAPABILITY IMAP4rev1{offer}", f"{tag} OK done")
            elif text == "STARTTLS" and trick == "refused":
                await server.say(f"{tag} NO not now")
            elif text == "STARTTLS":
                more = "* CAPABILITY IMAP4rev1 AUTH=PLAIN\r\n" if trick == "appended" else "* OK half"
                server._writer.write(f"{tag} OK begin\r\n{more}".encode())
                await server._writer.drain()
                await asyncio.sleep(0.3)
                return

    async with fake_imap(script) as port:
        config = plain.config(imap={"host": "127.0.0.1", "port": port, "security": "starttls"})
        with pytest.raises((ChannelUnavailable, ChannelMisconfigured)) as caught:
            async with opened(config):
                pass
    assert not any(word in line for line in said for word in SECRET_WORDS)
    if trick == "appended":
        assert "kept sending plaintext" in str(caught.value)


async def test_a_server_that_introduces_itself(plain: OwnDovecot) -> None:
    """ID is said where the server knows it; the real one takes it, and one that refuses is used all the same."""
    async with opened(plain.config()) as mailbox:
        assert "ID" in mailbox.capabilities
        assert (await mailbox.select()).uidvalidity > 0


NAMESPACES = {
    "slash": ("", "/", ""),
    "dot": ("namespace inbox {\n  separator = .\n}\n", ".", ""),
    "below INBOX": ("namespace inbox {\n  separator = .\n  prefix = INBOX.\n}\n", ".", "INBOX."),
}

NAMES = ["Done", "Erledigt/Schöne Post", "a * b & c", '"quoted" \\ back', "日本語"]


@pytest.mark.parametrize("space", NAMESPACES)
async def test_folders_of_every_name_in_every_namespace(space: str, tmp_path: Path) -> None:
    """Found again under the name that people use, made where it is missing, with the server's own delimiter."""
    more, delimiter, prefix = NAMESPACES[space]
    names = [name for name in NAMES if delimiter != "/" or "back" not in name]
    if space == "slash":
        more = "namespace inbox {\n  separator = /\n}\n"
    with own_dovecot(tmp_path / "server", more) as post:
        await run_sync(post.inject, mail(1))
        async with opened(post.config()) as mailbox:
            await mailbox.select()
            assert (await mailbox.sent_folder()) == f"{prefix}Sent"
            for name in names:
                made = await mailbox.folder(name)
                assert await mailbox.folder(name) == made
                assert made.startswith(prefix)
                (uid,) = await mailbox.newer_than(0)
                assert await mailbox.move([uid], made)
                assert (await mailbox.select(made)).exists == 1
                (there,) = await mailbox.newer_than(0)
                assert await mailbox.move([there], "INBOX")
                await mailbox.select()
            known = [folder.name for folder in await mailbox.folders()]
    assert {prefix + name.replace("/", delimiter) for name in names} <= set(known)


def answered(uid: int, uidvalidity: int) -> Answered:
    return Answered(uid, uidvalidity)


@pytest.mark.parametrize("lacking", ["nothing", "MOVE", "MOVE UIDPLUS"])
async def test_answered_mails_are_marked_and_filed(plain: OwnDovecot, lacking: str) -> None:
    """Flags, keyword and folder with MOVE, with COPY and UID EXPUNGE, and without either: then it stays, marked."""
    folder = f"Processed {lacking}"
    await run_sync(plain.inject, mail(7))
    session_tasks = Housekeeping(keyword="$Done", processed=folder)
    async with opened(plain.config()) as mailbox:
        selected = await mailbox.select()
        uid = (await mailbox.newer_than(0))[-1]
        mailbox._protocol.capabilities -= set(lacking.split())
        session_tasks.add(answered(uid, selected.uidvalidity))
        await session_tasks.do(mailbox, selected.uidvalidity)
        stays = lacking == "MOVE UIDPLUS"
        assert (uid in await mailbox.newer_than(0)) == stays
    flags = await run_sync(plain.peer.flags, "INBOX" if stays else folder)
    assert {"\\Seen", "\\Answered", "$Done"} <= set(flags[-1].split())


READ_ONLY = """
mail_plugins = $mail_plugins acl
protocol imap {
  mail_plugins = $mail_plugins imap_acl
}
plugin {
  acl = vfile:FOLDER/acl
}
"""


async def test_a_mailbox_that_can_only_be_read(tmp_path: Path) -> None:
    """Mails are taken in, nothing is tried that cannot work, and the failure to mark them harms nobody."""
    rights = {"acl": "INBOX owner lrp\nINBOX anyone lrp\n"}
    with own_dovecot(tmp_path / "server", READ_ONLY, rights) as post:
        inbox = MemoryInbox()
        bot = channel(post.config(processed_folder="Processed"), tmp_path)
        async with running(bot, inbox) as run:
            await inbox.until_up()
            assert bot._mailbox is not None
            assert bot._mailbox.read_only
            await run_sync(post.inject, mail(1))
            message = (await inbox.until_accepted(1))[0]
            bot._add_task(answered(message.context.route["uid"], message.context.route["uidvalidity"]))
            await run_sync(post.inject, mail(2))
            await inbox.until_accepted(2)
        assert run.error is None


QUOTA = """
mail_plugins = $mail_plugins quota
plugin {
  quota = maildir:User quota
  quota_rule = *:storage=20K
  quota_grace = 0
}
"""


async def test_a_mailbox_that_is_full(tmp_path: Path) -> None:
    """What is there is read; a refused upload or copy is noted and forgotten, and the connection lives on."""
    with own_dovecot(tmp_path / "server", QUOTA) as post:
        inbox = MemoryInbox()
        bot = channel(post.config(processed_folder="Processed"), tmp_path)
        async with running(bot, inbox) as run:
            await inbox.until_up()
            await run_sync(post.inject, mail(1) + b"x" * 15_000 + b"\r\n")
            message = (await inbox.until_accepted(1))[0]
            bot._add_task(UploadCopy(mail(2) + b"y" * 15_000))
            bot._add_task(answered(message.context.route["uid"], message.context.route["uidvalidity"]))
            await run_sync(post.inject, mail(3))
            await inbox.until_accepted(2)
            async with asyncio.timeout(10):
                while not await run_sync(lambda: post.peer.raw_list("Processed")):
                    await asyncio.sleep(0.1)
        assert run.error is None
        assert await run_sync(lambda: post.peer.raw_list("Sent")) == []


async def test_a_folder_that_somebody_deletes(plain: OwnDovecot) -> None:
    """The folder for processed mails is made again."""
    session_tasks = Housekeeping(processed="Gone")
    for number in (11, 12):
        await run_sync(plain.inject, mail(number))
        async with opened(plain.config()) as mailbox:
            selected = await mailbox.select()
            uid = (await mailbox.newer_than(0))[-1]
            session_tasks.add(answered(uid, selected.uidvalidity))
            await session_tasks.do(mailbox, selected.uidvalidity)
            assert (await mailbox.select("Gone")).exists == 1
            await mailbox.select()
            await mailbox._simple("DELETE", "Gone")


async def test_numbers_that_change(plain: OwnDovecot, tmp_path: Path) -> None:
    """After the server has numbered its mails anew nothing is taken for new that was there before."""
    inbox = MemoryInbox()
    bot = channel(plain.config(), tmp_path)
    async with running(bot, inbox):
        await inbox.until_up()
        await run_sync(plain.inject, mail(21))
        await inbox.until_accepted(1)
    for path in (plain.server.folder / "mail" / "bot" / "Maildir").glob("dovecot*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    await asyncio.sleep(1.1)  # the new number is made of the clock's seconds
    async with running(channel(plain.config(), tmp_path), inbox):
        await inbox.until_up()
        await run_sync(plain.inject, mail(22))
        await inbox.until(lambda box: "no. 22" in box.texts)
    ids = [message.native_id for message in inbox.accepted if isinstance(message, InboundMessage)]
    assert len(ids) == len(set(ids)) == 2


async def test_a_connection_that_is_only_half_there(plain: OwnDovecot, tmp_path: Path) -> None:
    """Packets vanish and nobody closes: the refresh of IDLE finds out, and the next connection goes on."""
    hole = BlackHole(plain.imap_port)
    server = await asyncio.start_server(hole, "127.0.0.1", 0)
    hole.port = server.sockets[0].getsockname()[1]
    config = plain.config(imap={"host": "127.0.0.1", "port": hole.port})
    inbox = MemoryInbox()
    async with running(channel(config, tmp_path), inbox) as run:
        await inbox.until_up()
        hole.swallows = True
        error = await run.until_ended(within_s=QUICK.idle_refresh_s + QUICK.idle_deadline_s + 3)
    assert isinstance(error, ChannelUnavailable)
    hole.swallows = False
    before = len(inbox.accepted)
    async with running(channel(config, tmp_path), inbox):
        await inbox.until_up()
        await run_sync(plain.inject, mail(31))
        await inbox.until_accepted(before + 1)
    await hole.aclose()
    server.close()


async def test_a_certificate_that_has_expired(tmp_path: Path) -> None:
    """It is refused with the reason, on the port for TLS and by STARTTLS."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", not_after=yesterday)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    leaf.configure_cert(context)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    config = EmailConfig.model_validate(
        {
            "address": "bot@mail.test",
            "username": "bot",
            "password": "bot-pw",
            "imap": {"host": "127.0.0.1", "port": server.sockets[0].getsockname()[1]},
            "smtp": {"host": "127.0.0.1"},
            "tls_ca_file": str(tmp_path / "ca.pem"),
            "sender_verification": "off",
        }
    )
    with pytest.raises(ChannelMisconfigured, match="it has expired"):
        async with opened(config):
            pass
    server.close()


async def test_a_wrong_password_is_tried_once(plain: OwnDovecot, tmp_path: Path) -> None:
    """The daemon's own pace: one login, one alert, and then minutes of silence, also when there is mail to send."""
    told: list[str] = []
    before = plain.log().count("auth failed")
    config = plain.config(password="wrong")
    bot, inbox = channel(config, tmp_path), MemoryInbox()
    supervisor = Supervisor(
        LoopClock(datetime.now(UTC)),
        on_change=lambda status: told.append(status.detail) if status.state is LinkState.FAILED else None,
    )
    supervisor.watch(bot, inbox)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(60):
            await supervisor.wait(lambda: supervisor.status("email").state is LinkState.FAILED)
        await anyio.sleep(3)
        retry_at = supervisor.status("email").retry_at
        supervisor.stop()
    assert plain.log().count("auth failed") == before + 1
    assert "does not accept the password of bot" in told[0]
    assert retry_at is not None
    assert retry_at - datetime.now(UTC) > timedelta(minutes=2)
