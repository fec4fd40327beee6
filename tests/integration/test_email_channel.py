"""The email channel against a real mail server: what goes in comes out once, whatever happens in between."""

from __future__ import annotations

import itertools
import smtplib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from anyio.abc import SocketStream
from anyio.to_thread import run_sync
from pydantic import SecretStr

from agent_core.messages import InboundMessage, OutboundMessage, SessionKey
from channels.base import (
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
    LinkState,
)
from channels.email.channel import EmailChannel
from channels.email.config import EmailConfig
from channels.email.imap_link import Timing
from channels.email.mailbox import Mailbox
from channels.email.outbound import compose
from channels.email.submit import SubmitTiming
from channels.email.tls import verifying_context
from devservers import MailPeer, MailServer, ToolsMissing
from tests.clock import LoopClock
from tests.inbox_double import MemoryInbox, running

USERS = 120
_numbers = itertools.count()
QUICK = Timing(connect_s=5, command_s=5, idle_refresh_s=2, idle_deadline_s=1, poll_s=0.3)


def wanted(inbox: MemoryInbox) -> list[InboundMessage]:
    """What shall be answered."""
    return [message for message in inbox.accepted if message.addressed]


def refused(inbox: MemoryInbox) -> list[str]:
    """Why the others are not."""
    return [message.context["refused"] for message in inbox.accepted if not message.addressed]


@dataclass
class Bot:
    """A fresh mailbox for the bot on a server, and one for a person."""

    server: MailServer
    person: MailPeer
    config: EmailConfig
    state_dir: Path
    inbox: MemoryInbox = field(default_factory=MemoryInbox)

    def channel(self, **timing: Any) -> EmailChannel:
        return EmailChannel(
            "email",
            self.config,
            state_dir=self.state_dir,
            clock=LoopClock(datetime.now(UTC)),
            timing=timing.get("timing", QUICK),
            submit_timing=SubmitTiming(connect_s=5, command_s=5, data_s=5),
        )

    @property
    def address(self) -> str:
        return self.config.address

    def peer(self) -> MailPeer:
        return self.server.peer(self.address.partition("@")[0])

    @asynccontextmanager
    async def running(self, channel: EmailChannel | None = None) -> AsyncIterator[EmailChannel]:
        """The channel at work, caught up."""
        channel = channel or self.channel()
        self.inbox.states.clear()
        async with running(channel, self.inbox):
            await self.inbox.until_up()
            yield channel
        await channel.aclose()

    async def send(self, subject: str = "Hello", text: str = "Hello bot", **more: Any) -> str:
        return await run_sync(lambda: self.person.send(self.address, subject, text, **more))

    async def inject(self, raw: bytes) -> None:
        await run_sync(lambda: self.server.inject(self.address, raw, sender="someone@elsewhere.test"))

    async def answers(self) -> list[EmailMessage]:
        return await run_sync(self.person.list)


def _bot(server: MailServer, folder: Path, **settings: Any) -> Bot:
    number = next(_numbers)
    config = EmailConfig.model_validate(_settings(server, f"bot{number}", f"alice{number}") | settings)
    return Bot(server, server.peer(f"alice{number}"), config, folder / "state")


def _settings(server: MailServer, bot: str, person: str) -> dict[str, Any]:
    return {
        "address": server.address(bot),
        "username": bot,
        "password": "bot-pw",
        "imap": {"host": "127.0.0.1", "port": server.imap_port, "security": "tls"},
        "smtp": {"host": "127.0.0.1", "port": server.smtp_port, "security": "starttls"},
        "tls_ca_file": str(server.ca_file),
        "allow_from": [server.address(person)],
        "trusted_authserv_ids": [server.domain],
        "probe_grace_s": 1.0,
        "limits": dict.fromkeys(
            ("sender_per_hour", "sender_per_day", "thread_per_hour", "total_per_hour"), 0
        ),
    }


def _server(folder: Path) -> MailServer:
    """A server that begins with users for all tests, because a new one takes a second."""
    users = {f"{name}{number}": f"{name}-pw" for name in ("bot", "alice") for number in range(USERS)}
    try:
        return MailServer.start(folder, users=users)
    except ToolsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def mail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    with _server(tmp_path_factory.mktemp("mail")) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[MailServer]:
    """A server to be mistreated."""
    with _server(tmp_path / "server") as server:
        yield server


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    return _bot(mail_server, tmp_path)


@pytest.fixture
def lone_bot(own_server: MailServer, tmp_path: Path) -> Bot:
    return _bot(own_server, tmp_path)


def _answer(to: InboundMessage, text: str = "A **fine** answer", key: str = "row-1") -> OutboundMessage:
    return OutboundMessage(
        id=key,
        channel=to.channel,
        account=to.account,
        session=to.session,
        text=text,
        created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        context=to.context,
    )


class Marks:
    """The point of no return, counted."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


async def test_a_mail_is_accepted_once_and_answered_in_its_thread(bot: Bot) -> None:
    """A mail becomes one message; its answer threads to it, says that it is automatic, and is filed once."""
    async with bot.running() as channel:
        sent = await bot.send("Lunch?", "Shall we?\n\n-- \nAlice")
        message = (await bot.inbox.until_accepted(1))[0]
        marks = Marks()
        receipt = await channel.deliver(_answer(message), uncertain=marks)
        answer = await run_sync(lambda: bot.person.wait_for(lambda mail: mail["In-Reply-To"] == sent))
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
        flags = await run_sync(_flags_until, bot.peer(), "\\Answered")

    assert (message.text, message.sender.address) == ("Shall we?", bot.person.address)
    assert message.sender.verified
    assert marks.count == 1
    assert answer["Message-ID"] == receipt.provider_id
    assert answer["Subject"] == "Re: Lunch?"
    assert str(answer["References"]).split() == [sent]
    assert answer["Auto-Submitted"] == "auto-replied"
    assert answer["X-Auto-Response-Suppress"] == "OOF, AutoReply"
    assert "<strong>fine</strong>" in answer.get_body(("html",)).get_content()
    assert "**fine**" in answer.get_body(("plain",)).get_content()
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
        receipt = await channel.deliver(_answer(first), uncertain=Marks())
        await bot.send("Re: One", in_reply_to=receipt.provider_id)
        await bot.send(
            "Re: One",
            in_reply_to=receipt.provider_id,
            references=[first.context["message_id"], receipt.provider_id],
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
        answer = _answer((await bot.inbox.until_accepted(1))[0])
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


async def test_the_same_mail_delivered_again_is_no_new_message(bot: Bot) -> None:
    """A second copy has the same identity; the same Message-ID from somebody else has not."""
    raw = _raw(bot, message_id="<same@peer.test>")
    async with bot.running():
        await bot.inject(raw)
        await bot.inject(raw)
        await bot.inject(_raw(bot, message_id="<same@peer.test>", sender="carol@mail.test"))
        await bot.inject(_raw(bot, message_id=None))
        await bot.inject(_raw(bot, message_id=None))
        await bot.inject(_raw(bot, message_id="broken"))
        await bot.inject(_raw(bot, message_id="<last@peer.test>", text="the last one"))
        await bot.inbox.until(lambda inbox: "the last one" in inbox.texts)

    assert len(bot.inbox.offered) == 7
    # One pair is the same mail twice; without a usable id the same author, time and text is the same mail.
    assert len(bot.inbox.accepted) == 4


EVIDENCE = "Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\n"


def _raw(
    bot: Bot,
    *,
    message_id: str | None = "<one@peer.test>",
    sender: str | None = None,
    text: str = "hello",
    evidence: str = EVIDENCE,
    more: str = "",
) -> bytes:
    identity = f"Message-ID: {message_id}\r\n" if message_id else ""
    return (
        f"{evidence}From: {sender or bot.person.address}\r\nTo: {bot.address}\r\nSubject: Test\r\n"
        f"Date: Fri, 02 Jan 2026 03:04:05 +0000\r\n{identity}{more}\r\n{text}\r\n"
    ).encode()


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
    "suppressed": "X-Auto-Response-Suppress: All\r\n",
    "a report": 'Content-Type: multipart/report; boundary="b"\r\n',
    "a loop": "X-Loop: bot\r\n",
}


async def test_forged_senders_are_remembered_and_not_heard(bot: Bot) -> None:
    """Without sound evidence a mail is seen and refused, and does not stand in the way of the real one."""
    async with bot.running():
        for number, case in enumerate(SPOOFED.values()):
            await bot.inject(_raw(bot, message_id=f"<real{number}@peer.test>", **case))
        for number in range(len(SPOOFED)):
            await bot.inject(_raw(bot, message_id=f"<real{number}@peer.test>", text=f"real {number}"))
        await bot.inbox.until_accepted(2 * len(SPOOFED))

    assert [message.text for message in wanted(bot.inbox)] == [
        f"real {number}" for number in range(len(SPOOFED))
    ]
    assert set(refused(bot.inbox)) == {"sender_not_verified", "no_single_sender"}


async def test_robots_and_our_own_mail_are_never_answered(bot: Bot) -> None:
    """Everything that looks like a program is seen and refused with its reason."""
    async with bot.running():
        for number, more in enumerate(ROBOTS.values()):
            await bot.inject(_raw(bot, message_id=f"<robot{number}@peer.test>", more=more))
        await bot.inject(_raw(bot, message_id="<own@peer.test>", sender=bot.address))
        await bot.inject(_raw(bot, message_id="<daemon@peer.test>", sender="MAILER-DAEMON@mail.test"))
        await bot.inject(
            _raw(bot, message_id="<blind@peer.test>").replace(bot.address.encode(), b"undisclosed@mail.test")
        )
        await run_sync(
            lambda: bot.server.inject(bot.address, _raw(bot, message_id="<null@peer.test>"), sender="")
        )
        await bot.inject(_raw(bot, message_id="<ok@peer.test>", text="a person"))
        await bot.inbox.until(lambda inbox: "a person" in inbox.texts)

    assert [message.text for message in wanted(bot.inbox)] == ["hello", "a person"], (
        "blind copies are delivered to us"
    )
    assert sorted(refused(bot.inbox)) == sorted(
        ["automatic_mail"] * 4 + ["mailing_list", "bounce", "bounce", "from_own_address", "robot_sender"]
    )


async def test_verification_can_be_switched_off(mail_server: MailServer, tmp_path: Path) -> None:
    """With ``sender_verification: off`` the operator vouches for everybody."""
    bot = _bot(mail_server, tmp_path, sender_verification="off")
    async with bot.running():
        await bot.inject(_raw(bot, evidence=""))
        await bot.inbox.until_accepted(1)

    assert bot.inbox.accepted[0].sender.verified
    assert bot.inbox.accepted[0].addressed


async def test_too_many_mails_are_remembered_and_not_answered(
    mail_server: MailServer, tmp_path: Path
) -> None:
    """The limit holds over a restart, and a mail that is read again does not use it up."""
    limits = {"sender_per_hour": 3, "sender_per_day": 0, "thread_per_hour": 0, "total_per_hour": 0}
    bot = _bot(mail_server, tmp_path, limits=limits)
    async with bot.running():
        for number in range(2):
            await bot.inject(_raw(bot, message_id=f"<m{number}@peer.test>"))
        await bot.inbox.until_accepted(2)
    async with bot.running():
        await bot.inject(_raw(bot, message_id="<m1@peer.test>"))
        for number in range(2, 5):
            await bot.inject(_raw(bot, message_id=f"<m{number}@peer.test>"))
        await bot.inbox.until_accepted(5)

    assert len(wanted(bot.inbox)) == 3
    assert refused(bot.inbox) == ["over_limit", "over_limit"]


async def test_poison_never_stops_the_mails_behind_it(bot: Bot) -> None:
    """What is too large, too deep or no mail at all is seen and refused; its neighbours are taken."""
    deep = "".join(f'Content-Type: multipart/mixed; boundary="b{n}"\r\n\r\n--b{n}\r\n' for n in range(40))
    poison = {
        "deep": _raw(bot, message_id="<deep@p.test>").replace(b"\r\n\r\nhello", b"\r\n" + deep.encode()),
        "huge header": _raw(
            bot, message_id="<head@p.test>", more="".join(f"X-{n}: {'y' * 900}\r\n" for n in range(400))
        ),
        "parts": _raw(
            bot,
            message_id="<parts@p.test>",
            more='Content-Type: multipart/mixed; boundary="b"\r\n',
            text="--b\r\n\r\nx\r\n" * 500,
        ),
        "no mail": b"this is no mail at all",
        "too large": _raw(bot, message_id="<large@p.test>", text=("x" * 75 + "\r\n") * 350_000),
    }
    async with bot.running():
        for name, raw in poison.items():
            await bot.inject(raw)
            await bot.inject(
                _raw(bot, message_id=f"<after-{len(name)}-{hash(name)}@p.test>", text=f"after {name}")
            )
        await bot.inbox.until_accepted(2 * len(poison), within_s=40)

    assert [m.text for m in wanted(bot.inbox)] == [f"after {name}" for name in poison]
    assert refused(bot.inbox) == [
        "unreadable_nested_too_deep",
        "unreadable_header_too_large",
        "unreadable_too_many_parts",
        "no_single_sender",
        "unreadable_too_large",
    ]


async def test_a_lost_confirmation_is_found_out(bot: Bot) -> None:
    """The server delivers and drops the connection: uncertain, and the probe of a new process finds it."""
    async with bot.running() as channel:
        await bot.send()
        answer = _answer((await bot.inbox.until_accepted(1))[0])
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
        answer = _answer((await bot.inbox.until_accepted(1))[0])
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
        answer = _answer((await bot.inbox.until_accepted(1))[0])
    await bot.inject(compose(answer, address=bot.address, self_copy=True).raw)
    bot.inbox.positions["uid"] = str(int(bot.inbox.positions["uid"]) + 1)
    async with bot.running():
        await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))

    assert len(await run_sync(bot.peer().raw_list)) == 1
    assert len(bot.inbox.offered) == 1


async def test_delivering_without_having_probed_is_caught(bot: Bot) -> None:
    """Who repeats an uncertain delivery without a probe gets the first mail, not a second."""
    async with bot.running() as channel:
        await bot.send()
        answer = _answer((await bot.inbox.until_accepted(1))[0])
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
        answer = _answer((await bot.inbox.until_accepted(1))[0])
        bot.server.fail_next(fault, reply=reply, sender=bot.address)
        with pytest.raises(error) as caught:
            await channel.deliver(answer, uncertain=Marks())
        assert type(caught.value) is error
        assert await bot.answers() == []
        await channel.deliver(answer, uncertain=Marks())
    assert len(await bot.answers()) == 1


@pytest.mark.parametrize("strategy", ["server", "append"])
async def test_other_ways_to_a_sent_copy(mail_server: MailServer, tmp_path: Path, strategy: str) -> None:
    """``append`` uploads one copy after sending; ``server`` leaves it to the provider and adds nothing."""
    bot = _bot(mail_server, tmp_path, sent_copy=strategy)
    async with bot.running() as channel:
        await bot.send()
        answer = _answer((await bot.inbox.until_accepted(1))[0])
        await channel.deliver(answer, uncertain=Marks())
        if strategy == "append":
            await run_sync(lambda: bot.peer().wait_for(lambda mail: True, folder="Sent"))
            assert await bot.channel().probe(answer) is not None
    copies = await run_sync(lambda: bot.peer().raw_list("Sent"))
    assert len(copies) == (1 if strategy == "append" else 0)
    assert len(await run_sync(bot.peer().raw_list)) == 1


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
        await channel.probe(_anything())
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
            await channel.deliver(_anything(), uncertain=Marks())
    await run_sync(bot.server.resume)
    await bot.send("After", "after the frost")
    async with bot.running(channel):
        await bot.inbox.until_accepted(1)


def _anything() -> OutboundMessage:
    return OutboundMessage(
        id="row-x",
        channel="email",
        account="bot@mail.test",
        session=SessionKey("email", "thread-" + "0" * 24, "alice@mail.test"),
        text="x",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def _fails(channel: EmailChannel, error: type[ChannelError]) -> str:
    inbox = MemoryInbox()
    async with running(channel, inbox) as run:
        ended = await run.until_ended(within_s=15)
    assert type(ended) is error, ended
    assert inbox.state is LinkState.FAILED
    return str(ended)


async def test_a_wrong_password_is_said_in_plain_words(bot: Bot) -> None:
    """Receiving and sending name the user and never the password."""
    wrong = bot.config.model_copy(update={"password": SecretStr("wrong-secret")})
    channel = EmailChannel("email", wrong, state_dir=bot.state_dir, clock=LoopClock())
    text = await _fails(channel, ChannelAuthFailed)
    with pytest.raises(ChannelAuthFailed) as caught:
        await channel.deliver(_anything(), uncertain=Marks())

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
        "another name": {
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
            channel = EmailChannel("email", config, state_dir=bot.state_dir, clock=LoopClock())
            assert words in await _fails(channel, ChannelMisconfigured)
            with pytest.raises(ChannelMisconfigured) as caught:
                await channel.deliver(_anything(), uncertain=Marks())
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
    channel = EmailChannel("email", config, state_dir=bot.state_dir, clock=LoopClock())

    assert "does not speak TLS" in await _fails(channel, ChannelMisconfigured)


async def test_implicit_tls_for_submission(bot: Bot) -> None:
    """``security: tls`` on the port for it."""
    smtp = {"host": "127.0.0.1", "port": bot.server.smtps_port, "security": "tls"}
    config = EmailConfig.model_validate(
        _settings(bot.server, bot.config.username, bot.person.address.partition("@")[0]) | {"smtp": smtp}
    )
    bot.config = config
    async with bot.running() as channel:
        await bot.send()
        await channel.deliver(_answer((await bot.inbox.until_accepted(1))[0]), uncertain=Marks())
    assert len(await bot.answers()) == 1


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
            raw = _raw(bot, message_id=f"<many{number}@peer.test>", text=f"number {number}")
            lmtp.sendmail("alice@mail.test", [bot.address], raw)


async def test_check_logs_in_on_both_sides(bot: Bot) -> None:
    """`check` sends nothing and says what it has found."""
    facts = await bot.channel().check()

    assert facts["sent folder"] == "Sent"


async def test_moving_without_move_uses_uidplus_and_never_a_plain_expunge(bot: Bot) -> None:
    """Copy, mark, UID EXPUNGE: what somebody else has marked as deleted stays."""
    context = verifying_context(bot.config.tls_ca_file)
    await bot.inject(_raw(bot, message_id="<stays@p.test>"))
    await bot.inject(_raw(bot, message_id="<goes@p.test>"))
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
