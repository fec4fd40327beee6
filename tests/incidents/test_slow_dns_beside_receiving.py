"""
A guest whose domain's DNS hangs cost two seconds of receiving for each eight of their mails, and fifteen for the first
ones; everybody else's mail stood behind them. Later they put the owner's address where their own name stands, and the
owner's mail stood behind theirs for two minutes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from channels.email.imap.imap_connect import Timing
from channels.email.receive.verification_queue import MAX_OF_DOMAIN, TOO_MUCH
from channels.email.trust.dns import NoSuchName
from tests.clock import LoopClock
from tests.doubles import mailbox
from tests.doubles.accounts import email_channel
from tests.doubles.imap_server import fake_imap
from tests.doubles.inbox import MemoryInbox, running
from tests.doubles.mailbox import Store, config
from tests.unit.channels.email.test_dkim import KEY_NAME, record, signed

pytestmark = pytest.mark.virtual_time
FRIEND, GUEST = "alice@mail.test", "alice@slow.test"
WAITS_S = 2.5
"""So long at most, in the time of the test's clock, with what the channel does besides."""


class Dns:
    """That of ``mail.test`` answers at once, that of ``slow.test`` after ``takes_s``."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    async def __call__(self, name: str, limit_s: float) -> Sequence[str]:
        if name.endswith("slow.test"):
            await anyio.sleep(self.takes_s)
        elif not name.endswith(KEY_NAME.partition(".")[2]):
            raise NoSuchName(name)
        return [record()]


def mail(number: int, sender: str, *, told: bool = False, selector: str = "", header_from: str = "") -> bytes:
    domain = sender.partition("@")[2]
    raw = (
        f"From: {header_from or sender}\r\nTo: bot@mail.test\r\nSubject: Hi\r\nDate: now\r\nMessage-ID: <{number}@{domain}>\r\n\r\n"
        f"mail {number}\r\n"
    ).encode()
    if told:
        return f"Authentication-Results: mx.test; dmarc=pass header.from={domain}\r\n".encode() + raw
    selector = selector or ("sel" if sender == FRIEND else f"sel{number}")
    return signed(raw, domain=domain.encode()).replace(b"s=sel;", f"s={selector};".encode())


class Scenario:
    """A mailbox, and the inbox that outlasts the channel."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, dns: Dns) -> None:
        self.mails: dict[int, bytes] = {}
        self.store = Store()
        self.inbox = MemoryInbox()
        self._folder = folder
        self._dns = dns
        monkeypatch.setattr(mailbox, "raw_mail", self.mails.__getitem__)

    def put(self, *mails: bytes) -> None:
        for raw in mails:
            self.mails[len(self.mails) + 1] = raw
        self.store.uids = sorted(self.mails)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with fake_imap(self.store) as port:
            settings = config(
                port, dkim="verify", sender_verification="enforce", trusted_authserv_ids=["mx.test"]
            )
            channel = email_channel(
                "email",
                settings,
                state_dir=self._folder,
                clock=LoopClock(datetime.now(UTC)),
                lookup=self._dns,
            )
            self.inbox.states.clear()
            async with running(channel, self.inbox):
                await self.inbox.until_up(within_s=60)
                yield

    def texts(self, sender: str) -> list[str]:
        return [one.text for one in self.inbox.accepted if one.sender.address == sender]

    def ids(self, sender: str) -> list[str]:
        return [
            one.context.route["message_id"] for one in self.inbox.accepted if one.sender.address == sender
        ]

    async def until(self, count: int) -> None:
        await self.inbox.until(lambda inbox: len(inbox.accepted) >= count, within_s=600)


async def test_fifty_mails_delay_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A friend's mail behind them is there after two seconds; they follow in their order, and none is skipped."""
    world = Scenario(tmp_path, monkeypatch, Dns(1e6))
    async with world.running():
        pass
    world.put(*(mail(number, GUEST) for number in range(50)), mail(50, FRIEND))
    began = anyio.current_time()
    async with world.running():
        await world.until(1)
        assert world.texts(FRIEND) == ["mail 50"]
        assert anyio.current_time() - began < WAITS_S
        assert world.inbox.positions["uid"] == "0", "it goes past no mail that is not accepted"
        world.put(mail(51, FRIEND))
        await world.until(2)
        assert anyio.current_time() - began < 2 * WAITS_S + Timing().idle_refresh_s
        await world.until(52)
    assert world.ids(GUEST) == [f"<{number}@slow.test>" for number in range(50)]
    assert world.inbox.positions["uid"] == "52"
    assert not any(one.sender.verified for one in world.inbox.accepted if one.sender.address == GUEST)


@pytest.mark.parametrize(
    "twice", [[], [f"{GUEST}, {FRIEND}"]], ids=["in the name", "and one of two senders behind them"]
)
async def test_the_name_of_somebody_else_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: list[str]
) -> None:
    """Whose mail it is the address says, not what else stands in the field."""
    world = Scenario(tmp_path, monkeypatch, Dns(1e6))
    async with world.running():
        pass
    named = [f'"{FRIEND}" <{GUEST}>'] * 50
    mails = [mail(number, GUEST, header_from=who) for number, who in enumerate([*named, *twice])]
    world.put(*mails, mail(len(mails), FRIEND))
    began = anyio.current_time()
    async with world.running():
        while not world.texts(FRIEND):
            await anyio.sleep(0.1)
        assert anyio.current_time() - began < WAITS_S
        await world.until(len(mails) + 1)


async def test_the_order_of_one_sender_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mail server vouches for waits, too, for the same sender's earlier mail."""
    world = Scenario(tmp_path, monkeypatch, Dns(2.5))
    async with world.running():
        world.put(mail(0, GUEST, selector="sel"), mail(1, GUEST, told=True), mail(2, FRIEND))
        await world.until(3)
        assert world.inbox.positions["uid"] == "3"
    assert [one.text for one in world.inbox.accepted] == ["mail 2", "mail 0", "mail 1"]
    assert all(one.sender.verified for one in world.inbox.accepted)


async def test_an_end_while_they_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read again at the next start; what was taken in before them is the same mail."""
    dns = Dns(1e6)
    world = Scenario(tmp_path, monkeypatch, dns)
    async with world.running():
        world.put(mail(0, GUEST), mail(1, FRIEND))
        await world.until(1)
    assert (world.texts(GUEST), world.inbox.positions["uid"]) == ([], "0")
    dns.takes_s = 0
    async with world.running():
        await world.until(2)
    assert (world.texts(GUEST), world.texts(FRIEND)) == (["mail 0"], ["mail 1"])
    assert world.inbox.positions["uid"] == "2"


async def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a hundred of one domain nobody is asked any more; a person judges."""
    world = Scenario(tmp_path, monkeypatch, Dns(1e6))
    count = MAX_OF_DOMAIN + 20
    async with world.running():
        pass
    world.put(*(mail(number, GUEST) for number in range(count)), mail(count, FRIEND))
    began = anyio.current_time()
    async with world.running():
        await world.until(1)
        assert anyio.current_time() - began < WAITS_S
        await world.until(count + 1)
    doubts = [one.context.doubt for one in world.inbox.accepted if one.sender.address == GUEST]
    assert doubts.count(TOO_MUCH) >= 10
    assert world.ids(GUEST) == [f"<{number}@slow.test>" for number in range(count)]
