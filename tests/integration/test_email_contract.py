"""The email channel keeps the contract of all channels, against a real mail server."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from anyio.to_thread import run_sync

from agent_core.messages import SessionKey
from channels.email.channel import EmailChannel
from channels.email.config import EmailConfig
from channels.email.imap.imap_connect import Timing
from channels.email.parse.mail_threads import session_of, thread_tag
from channels.email.smtp.submission import SubmitTiming
from devservers import MailServer, text_of
from tests.clock import LoopClock
from tests.contract import channel as contract
from tests.doubles.accounts import email_channel
from tests.doubles.inbox import running
from tests.servers import skipped_without_tools

ROOT = "<root@peer.test>"
QUICK = Timing(connect_s=5, command_s=5, idle_refresh_s=2, idle_deadline_s=1)
PEOPLE = ("bot", "alice", "bob")
USERS = 60
_numbers = itertools.count()
A_MAIL = 700
"""Bytes of a TLS record that is a mail and not a command."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    """
    A server of our own: it is killed. It begins with users for all tests, because a new one takes a second.
    """
    users = {f"{name}{number}": f"{name}-pw" for name in PEOPLE for number in range(USERS)}
    with skipped_without_tools():
        started = MailServer.start(tmp_path_factory.mktemp("mail"), users=users)
    with started:
        yield started


class MailFarSide(contract.FarSide):
    patience_s = 20.0

    def __init__(self, server: MailServer, folder: Path) -> None:
        super().__init__()
        self.server = server
        self.folder = folder
        self.password = "bot-pw"
        self.stalling = False
        self.smtp_port = server.smtp_port
        number = next(_numbers)
        self.users = {name: f"{name}{number}" for name in PEOPLE}
        self.account = server.address(self.users["bot"])
        tag = thread_tag(ROOT, (), account=self.account)
        self.session = session_of("email", tag, server.address(self.users["alice"]))
        self.other_session = session_of("email", tag, server.address(self.users["bob"]))

    def channel(self) -> EmailChannel:
        config = EmailConfig.model_validate(
            {
                "address": self.account,
                "username": self.users["bot"],
                "password": self.password,
                "imap": {"host": "127.0.0.1", "port": self.server.imap_port},
                "smtp": {"host": "127.0.0.1", "port": self.smtp_port},
                "tls_ca_file": self.server.ca_file,
                "trusted_authserv_ids": [self.server.domain],
                "limits": dict.fromkeys(("sender_per_hour", "sender_per_day"), 0),
                "probe_grace_s": 0,
            }
        )
        return email_channel(
            "email",
            config,
            state_dir=self.folder,
            clock=LoopClock(datetime.now(UTC)),
            timing=QUICK,
            submit_timing=SubmitTiming(connect_s=5, command_s=5, data_s=60),
        )

    async def say(self, text: str, *, session: SessionKey | None = None) -> None:
        person = self.server.peer((session or self.session).thread.partition("@")[0])
        await run_sync(lambda: person.send(self.account, "Contract", text, references=[ROOT]))

    async def seen(self, session: SessionKey | None = None) -> list[str]:
        person = self.server.peer((session or self.session).thread.partition("@")[0])
        with suppress(OSError):  # nobody sees anything on a server that is down
            return [text_of(mail).strip() for mail in await run_sync(person.list)]
        return []

    async def go_down(self) -> None:
        await run_sync(self.server.kill)

    async def come_back(self) -> None:
        await run_sync(self.server.restart)

    async def refuse_login(self) -> None:
        self.password = "wrong"

    async def refuse_message(self) -> None:
        self.server.fail_next("refuse-rcpt", reply="550 5.1.1 no such person", sender=self.account)

    async def lose_answer(self) -> None:
        self.server.fail_next("drop-after-delivery", sender=self.account)

    async def stall_answer(self) -> None:
        self.stalling = True
        self.stalled = anyio.Event()

    async def until_seen(self, count: int) -> list[str]:
        seen = await super().until_seen(count)
        if self.stalling:
            with anyio.fail_after(self.patience_s):
                await self.stalled.wait()
        self.stalling = False
        return seen

    async def serve_proxy(self, client: SocketStream) -> None:
        """Pass everything on; while stalling, nothing of what the server says after it has got a mail."""
        got_mail = False

        async def up(upstream: SocketStream) -> None:
            nonlocal got_mail
            hello = True
            while True:
                data = await client.receive()
                got_mail = got_mail or (len(data) > A_MAIL and not hello)
                hello = hello and len(data) <= 200
                await upstream.send(data)

        async def down(upstream: SocketStream) -> None:
            while True:
                data = await upstream.receive()
                if got_mail and self.stalling:
                    self.stalled.set()
                    await anyio.sleep_forever()
                await client.send(data)

        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, OSError):
            async with client, await anyio.connect_tcp("127.0.0.1", self.server.smtp_port) as upstream:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_quietly, up, upstream, tasks.cancel_scope)
                    tasks.start_soon(_quietly, down, upstream, tasks.cancel_scope)


async def _quietly(pump, upstream: SocketStream, scope: anyio.CancelScope) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await pump(upstream)
    scope.cancel()


class _Real:
    proxied = False

    @pytest.fixture(autouse=True)
    def _take(self, server: MailServer, tmp_path: Path) -> None:
        self._server, self._folder = server, tmp_path

    @asynccontextmanager
    async def far_side(self) -> AsyncIterator[MailFarSide]:
        far = await run_sync(MailFarSide, self._server, self._folder)
        # The first start ever only marks the place; the contract begins after it.
        async with running(far.channel(), far.inbox):
            await far.inbox.until_up(within_s=far.patience_s)
        far.inbox.states.clear()
        try:
            if not self.proxied:
                yield far
                return
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
            far.smtp_port = listener.extra(anyio.abc.SocketAttribute.local_port)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, far.serve_proxy)
                yield far
                tasks.cancel_scope.cancel()
            await listener.aclose()
        finally:
            self._server.clear_faults() if self._server.pids else self._server.restart()


class TestReceiving(_Real, contract.ReceivingContract):
    pass


class TestLink(_Real, contract.LinkContract):
    @pytest.fixture(autouse=True)
    def _needs_a_store_that_lasts(self, server: MailServer) -> None:
        if server.flavour != "dovecot":
            pytest.skip("this mail server forgets everything when it is killed")


class TestLogin(_Real, contract.LoginContract):
    pass


class TestDelivery(_Real, contract.DeliveryContract):
    pass


class TestRefusal(_Real, contract.RefusalContract):
    pass


class TestLostAnswer(_Real, contract.LostAnswerContract):
    proxied = True


class TestProbe(_Real, contract.ProbeContract):
    @pytest.fixture(autouse=True)
    def _back(self, server: MailServer) -> Iterator[None]:
        yield
        if len(server.pids) < 1:
            server.restart()


class TestPrivacy(_Real, contract.PrivacyContract):
    pass


class TestClose(_Real, contract.CloseContract):
    pass
