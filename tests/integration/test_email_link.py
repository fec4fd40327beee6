"""Dead, frozen and wrongly certified mail servers, wrong passwords: noticed, and said in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
import trustme
from anyio.abc import SocketStream
from anyio.to_thread import run_sync
from pydantic import SecretStr

from channels.base import (
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    LinkState,
)
from channels.email.channel import EmailChannel
from channels.email.config import EmailConfig
from channels.email.imap.imap_connect import Timing
from channels.email.imap.mailbox import Mailbox
from channels.email.mail_credentials import verifying_context
from devservers import MailServer
from tests.clock import LoopClock
from tests.doubles.accounts import email_channel
from tests.doubles.inbox import MemoryInbox, running
from tests.integration.mail_bot import (
    QUICK,
    Bot,
    Marks,
    answer_to,
    anything,
    make_bot,
    open_server,
    raw_mail,
    server_of_bots,
    settings,
)

mail_server = server_of_bots()


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    return make_bot(mail_server, tmp_path)


@pytest.fixture
def lone_bot(tmp_path: Path) -> Iterator[Bot]:
    """On a server to be mistreated."""
    with open_server(tmp_path / "server") as server:
        yield make_bot(server, tmp_path)


async def test_a_killed_server_is_noticed_and_the_next_run_goes_on(lone_bot: Bot) -> None:
    """Death is noticed at once, not at the next refresh; mail that comes afterwards is answered."""
    bot = lone_bot
    channel = bot.channel(timing=Timing(idle_refresh_s=600))
    async with running(channel, bot.inbox) as run:
        await bot.inbox.until_up()
        await run_sync(lambda: bot.server.kill("imap"))
        error = await run.until_ended(within_s=5)
    assert isinstance(error, ChannelUnavailable)
    with pytest.raises(ChannelUnavailable):
        await channel.probe(anything())
    await run_sync(bot.server.restart)
    if bot.server.flavour == "dovecot":
        await bot.send("After", "after the crash")
        async with bot.running(channel):
            await bot.inbox.until_accepted(1)
        assert bot.inbox.texts == ["after the crash"]


async def test_a_frozen_server_is_noticed_within_refresh_and_deadline(lone_bot: Bot) -> None:
    """A server that stops answering keeps its connections open; the refresh finds out."""
    bot = lone_bot
    channel = bot.channel()
    async with running(channel, bot.inbox) as run:
        await bot.inbox.until_up()
        await run_sync(bot.server.pause)
        error = await run.until_ended(within_s=QUICK.idle_refresh_s + QUICK.idle_deadline_s + 3)
        assert isinstance(error, ChannelUnavailable)
        with pytest.raises(ChannelUnavailable):
            await channel.deliver(anything(), uncertain=Marks())
    await run_sync(bot.server.resume)
    await bot.send("After", "after the frost")
    async with bot.running(channel):
        await bot.inbox.until_accepted(1)


async def _fails(channel: EmailChannel, error: type[ChannelError]) -> str:
    inbox = MemoryInbox()
    async with running(channel, inbox) as run:
        ended = await run.until_ended(within_s=60)
    assert type(ended) is error, ended
    assert inbox.state is LinkState.FAILED
    return str(ended)


async def test_a_wrong_password_is_said_in_plain_words(bot: Bot) -> None:
    """Receiving and sending name the user and never the password."""
    wrong = bot.config.model_copy(update={"password": SecretStr("wrong-secret")})
    channel = email_channel("email", wrong, state_dir=bot.state_dir, clock=LoopClock())
    text = await _fails(channel, ChannelAuthFailed)
    with pytest.raises(ChannelAuthFailed) as caught:
        await channel.deliver(anything(), uncertain=Marks())

    assert bot.config.username in text
    assert "wrong-secret" not in text + str(caught.value) + repr(wrong)


async def test_certificates_that_do_not_fit_are_refused_on_both_sides(bot: Bot, tmp_path: Path) -> None:
    """An unknown authority, a missing file and a foreign name are told apart, and nothing goes out in the clear."""
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    cases = {
        "signed": {"tls_ca_file": None},
        "signed it": {"tls_ca_file": stranger},
        "cannot be used": {"tls_ca_file": tmp_path / "missing.pem"},
        "not valid for": {
            "imap": bot.config.imap.model_copy(update={"host": "127.0.0.2"}),
            "smtp": bot.config.smtp.model_copy(update={"host": "127.0.0.2"}),
        },
    }
    forwards = [
        await anyio.create_tcp_listener(local_host="127.0.0.2", local_port=port)
        for port in (bot.config.imap.port, bot.config.smtp.port)
    ]
    async with anyio.create_task_group() as tasks:
        for listener, port in zip(forwards, (bot.config.imap.port, bot.config.smtp.port), strict=True):
            tasks.start_soon(listener.serve, partial(_forward, port))
        for words, changes in cases.items():
            config = bot.config.model_copy(update=changes)
            channel = email_channel("email", config, state_dir=bot.state_dir, clock=LoopClock())
            assert words in await _fails(channel, ChannelMisconfigured)
            with pytest.raises(ChannelMisconfigured) as caught:
                await channel.deliver(anything(), uncertain=Marks())
            assert words in str(caught.value)
        tasks.cancel_scope.cancel()
    for listener in forwards:
        await listener.aclose()


async def _forward(port: int, client: SocketStream) -> None:
    async with (
        client,
        await anyio.connect_tcp("127.0.0.1", port) as server,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_pump, client, server)
        await _pump(server, client)
        tasks.cancel_scope.cancel()


async def _pump(source: SocketStream, target: SocketStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await target.send(await source.receive())


async def test_a_port_without_tls_is_no_reason_to_go_on_without_it(bot: Bot) -> None:
    """The plain submission port, addressed as TLS, is a configuration error."""
    plain = bot.config.imap.model_copy(update={"port": bot.config.smtp.port})
    config = bot.config.model_copy(update={"imap": plain})
    channel = email_channel("email", config, state_dir=bot.state_dir, clock=LoopClock())

    assert "does not speak TLS" in await _fails(channel, ChannelMisconfigured)


async def test_implicit_tls_for_submission(bot: Bot) -> None:
    """``security: tls`` on the port for it."""
    smtp = {"host": "127.0.0.1", "port": bot.server.smtps_port, "security": "tls"}
    config = EmailConfig.model_validate(
        settings(bot.server, bot.config.username, bot.person.address.partition("@")[0]) | {"smtp": smtp}
    )
    bot.config = config
    async with bot.running() as channel:
        await bot.send()
        await channel.deliver(answer_to((await bot.inbox.until_accepted(1))[0]), uncertain=Marks())
    assert len(await bot.answers()) == 1


async def test_check_logs_in_on_both_sides(bot: Bot) -> None:
    """`check` sends itself a mail, finds it, removes it, and says what it has seen on it."""
    facts = await bot.channel().check()

    assert facts["sent folder"] == "Sent"
    assert facts["a mail to ourselves"] == "sent and found"
    assert "Authentication-Results of mail.test" in facts["senders are verified by"]
    assert "IDLE" in facts["the server supports"]
    assert await run_sync(bot.peer().raw_list) == []


async def test_moving_without_move_uses_uidplus_and_never_a_plain_expunge(bot: Bot) -> None:
    """Copy, mark, UID EXPUNGE: what somebody else has marked as deleted stays."""
    context = verifying_context(bot.config.tls_ca_file)
    await bot.inject(raw_mail(bot, message_id="<stays@p.test>"))
    await bot.inject(raw_mail(bot, message_id="<goes@p.test>"))
    async with Mailbox.open(bot.config, context, QUICK) as mailbox:
        await mailbox.select()
        await mailbox.add_flags([1], "\\Deleted")
        mailbox._protocol.capabilities.discard("MOVE")
        first, second = await mailbox.newer_than(0)
        assert await mailbox.move([second], await mailbox.sent_folder())
        assert await mailbox.newer_than(0) == [first]
        mailbox._protocol.capabilities.discard("UIDPLUS")
        assert not await mailbox.move([first], "Sent")
        assert await mailbox.newer_than(0) == [first]
