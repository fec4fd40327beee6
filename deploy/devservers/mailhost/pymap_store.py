"""A mail store without a mail server installed: pymap's in-memory backend behind implicit TLS.

For machines without Dovecot. It speaks IDLE, UIDPLUS and MOVE, but neither CONDSTORE nor special-use
folders, and all mail is gone when the process ends. Three things pymap does not do by itself:

* implicit TLS: its server object is put behind `asyncio.start_server(ssl=...)` here;
* keywords: `permanent_flags` of the mailbox class gets the names that squidbot uses;
* surviving Python 3.13's garbage collector: the task of every connection is kept in a set.

Mail comes in by LMTP (aiosmtpd speaks it), so both flavours are injected into in the same way.
"""

from __future__ import annotations

import asyncio
import importlib
from argparse import Namespace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

FOLDERS = ("Sent", "Drafts")
KEYWORDS = (b"$Squidbot", b"$SquidbotDone", b"$Processed", b"$Forwarded", b"$MDNSent")
MAX_LINE = 1_000_000
MAX_BYTES = 100_000_000


class PymapStore:
    """Mailboxes in memory; a `Delivery`, and an LMTP handler by aiosmtpd's naming."""

    def __init__(self, domain: str) -> None:
        """Make an empty backend with no users."""
        backend = importlib.import_module("pymap.backend.dict")
        hashing = importlib.import_module("pysasl.hashing")
        _allow_keywords()
        arguments = Namespace(proxy_protocol=None, passlib_cfg=None)
        self._domain = domain
        self._config = backend.Config(
            arguments,
            host="127.0.0.1",
            port=0,
            demo_data=False,
            demo_user="",
            demo_password="",
            tls_enabled=False,
            reject_dnsbl=False,
            invalid_user_sleep=0.0,
            hash_context=hashing.Cleartext(),
        )
        self._config.apply_context()
        self._login = backend.Login(self._config)
        self._boxes: dict[str, Any] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def add_user(self, name: str, password: str) -> None:
        """Add a mailbox that may be logged in to as `name` and as `name@domain`."""
        backend = importlib.import_module("pymap.backend.dict")
        users = importlib.import_module("pymap.user")
        boxes = backend.MailboxSet()
        for folder in FOLDERS:
            await boxes.add_mailbox(folder)
            await boxes.set_subscribed(folder, subscribed=True)
        for login in (name, f"{name}@{self._domain}"):
            metadata = users.UserMetadata(self._config, login, password=password)
            self._login.users_dict[login] = metadata
            self._config.set_cache[login] = (boxes, backend.FilterSet())
        self._boxes[name] = boxes

    async def deliver(self, sender: str, recipient: str, raw: bytes) -> None:
        """Append to the inbox."""
        parsing = importlib.import_module("pymap.parsing.message")
        inbox = await self._boxes[self._mailbox(recipient)].get_mailbox("INBOX")
        trace = f"Return-Path: <{sender.strip('<>')}>\r\nDelivered-To: {recipient}\r\n".encode()
        await inbox.append(parsing.AppendMessage(trace + raw, datetime.now(UTC), frozenset()), recent=True)

    async def listen_imap(self, port: int, context: ssl.SSLContext) -> asyncio.Server:
        """Open the IMAP port (implicit TLS)."""
        imap = importlib.import_module("pymap.imap")
        proxy = importlib.import_module("proxyprotocol.reader")
        serve = proxy.ProxyProtocolReader(self._config.proxy_protocol).get_callback(
            imap.IMAPServer(self._login, self._config)
        )

        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            await serve(reader, writer)

        return await asyncio.start_server(connection, "127.0.0.1", port, ssl=context)

    async def listen_lmtp(self, port: int) -> asyncio.Server:
        """Open the LMTP port."""
        base: Any = importlib.import_module("aiosmtpd.lmtp").LMTP
        loop = asyncio.get_running_loop()
        # A delivery port takes what it is given, however long the lines are.
        patient = type("PatientLmtp", (base,), {"line_length_limit": MAX_LINE})

        def protocol() -> asyncio.BaseProtocol:
            made: asyncio.BaseProtocol = patient(
                self, hostname=self._domain, data_size_limit=MAX_BYTES, loop=loop
            )
            return made

        return await loop.create_server(protocol, "127.0.0.1", port)

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, _server: Any, _session: Any, envelope: Any, address: str, options: Sequence[str]
    ) -> str:
        """Accept recipients that have a mailbox."""
        if self._mailbox(address) not in self._boxes or not address.lower().endswith(f"@{self._domain}"):
            return "550 5.1.1 User unknown"
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        """Deliver to each recipient."""
        for recipient in envelope.rcpt_tos:
            await self.deliver(envelope.mail_from, recipient, bytes(envelope.content))
        return "250 2.0.0 Delivered"

    def _mailbox(self, address: str) -> str:
        return address.lower().partition("@")[0].partition("+")[0]


def _allow_keywords() -> None:
    flags = importlib.import_module("pymap.parsing.specials.flag")
    mailbox = importlib.import_module("pymap.backend.dict.mailbox").MailboxData
    before = mailbox.permanent_flags.fget
    extra = frozenset(flags.Flag(name) for name in KEYWORDS)
    mailbox.permanent_flags = property(lambda box: before(box) | extra)
