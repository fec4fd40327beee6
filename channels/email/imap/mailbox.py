"""
A logged-in IMAP connection: the only user of aioimaplib. It returns plain values and raises `ChannelError`s.
Every step has a limit, and a connection that misses one is aborted, never used again: after a timeout nobody
knows which answer belongs to which question. So a `Mailbox` lives until its first error; then a new one is
opened. Mails are read with ``BODY.PEEK[]`` only, so that nothing is marked as read by looking at it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Self

import anyio
import anyio.to_thread

from channels.base import ChannelAuthFailed, ChannelMisconfigured, ChannelUnavailable
from channels.email.config import EmailConfig, ImapServer
from channels.email.imap.folders import SENT, WantedFolder
from channels.email.imap.imap_connect import Timing, connect, introduce, log_in, secure
from channels.email.imap.imap_protocol import HardenedProtocol, ImapRefused, ImapReply, LinkLost
from channels.email.imap.imap_syntax import (
    Fetched,
    Folder,
    WireError,
    parse_fetch,
    parse_list,
    quote,
    response_code,
    uid_set,
)
from channels.email.mail_credentials import Credentials, PasswordCredentials, tls_error, verifying_context
from channels.email.parse.mail_threads import OWN_ID_FIELD

DATES_AT_ONCE = 500
HEADER_BYTES = 2_000_000
"""More of a header is never fetched: a mail of any size may be nothing but that."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The open folder. UIDs are valid only together with ``uidvalidity``."""

    uidvalidity: int
    uidnext: int
    exists: int


@dataclass(frozen=True, slots=True)
class MailInfo:
    """The data of a mail before it is fetched."""

    uid: int
    size: int
    received_at: datetime | None


class Mailbox:
    """One connection. Only one task at a time may use it."""

    def __init__(self, protocol: HardenedProtocol, server: ImapServer, timing: Timing) -> None:
        self._protocol = protocol
        self._server = server
        self._timing = timing
        self.takes_keywords = False
        """The open folder can store new keywords (a star in its PERMANENTFLAGS)."""
        self.read_only = False
        """The server allows no change in the open folder."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: EmailConfig,
        context: ssl.SSLContext | None,
        timing: Timing | None = None,
        credentials: Credentials | None = None,
    ) -> AsyncIterator[Self]:
        """
        Connect and log in during the block; ``credentials`` default to the configured password.

        Raises ChannelUnavailable, ChannelAuthFailed or ChannelMisconfigured, in plain words.
        """
        timing = timing or Timing()
        credentials = credentials or PasswordCredentials.from_config(config)
        login = await credentials.get()
        loop = asyncio.get_running_loop()
        protocol = HardenedProtocol(loop)
        mailbox = cls(protocol, config.imap, timing)
        try:
            with mailbox._door("connect"):
                with anyio.fail_after(timing.connect_s):
                    await connect(loop, protocol, config.imap, context)
                await protocol.wait_greeting(timing.connect_s)
                if config.imap.security == "starttls":
                    await secure(loop, protocol, config.imap, context, timing.connect_s)
                await protocol.capability(timing.command_s)
            with mailbox._door("login"):
                try:
                    await log_in(protocol, login, config.imap, timing.command_s)
                except ChannelAuthFailed:
                    credentials.note_rejection()
                    raise
            with mailbox._door("capability"):
                await introduce(protocol, timing.command_s)
            yield mailbox
        finally:
            await mailbox._close()

    async def _close(self) -> None:
        protocol = self._protocol
        if protocol.transport is None:
            return
        if protocol.lost is None:
            protocol.send(f"{protocol.new_tag()} LOGOUT")
            protocol.transport.close()
            with anyio.CancelScope(shield=True), anyio.move_on_after(0.5):
                await protocol.closed.wait()
        protocol.abort()
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await protocol.closed.wait()

    def abort(self) -> None:
        """Drop the connection; whoever waits on it gets `ChannelUnavailable`."""
        self._protocol.abort()

    @property
    def capabilities(self) -> frozenset[str]:
        """Return the server's capabilities, in capitals."""
        return frozenset(self._protocol.capabilities)

    async def select(self, folder: str = "INBOX", *, read_only: bool = False) -> Selected:
        """Open a folder."""
        with self._door("select"):
            reply = await self._protocol.open_folder(
                folder, read_only=read_only, timeout_s=self._timing.command_s
            )
        codes = (response_code(line[0], "PERMANENTFLAGS") for line in reply.untagged)
        self.takes_keywords = "\\*" in next((code for code in codes if code), "")
        self.read_only = response_code(reply.text, "READ-ONLY") is not None
        uidvalidity = _number_in(reply, "UIDVALIDITY")
        uidnext = _number_in(reply, "UIDNEXT")
        if uidvalidity is None:
            raise ChannelUnavailable(
                "the mail server reports no UIDVALIDITY, so its folder cannot be followed"
            )
        if uidnext is None:
            uidnext = max(await self.search("UID", "*"), default=0) + 1
        return Selected(uidvalidity, uidnext, self._protocol.exists)

    async def search(self, *criteria: str) -> list[int]:
        """UIDs of the open folder, ascending."""
        with self._door("search"):
            return await self._protocol.uid_search(*criteria, timeout_s=self._timing.command_s)

    async def newer_than(self, uid: int, *, sender: str = "") -> list[int]:
        """Return UIDs above ``uid``, optionally of one sender (``n:*`` always includes the last mail)."""
        of_sender = ("FROM", quote(sender)) if sender else ()
        return [found for found in await self.search("UID", f"{uid + 1}:*", *of_sender) if found > uid]

    async def find(self, message_id: str, sender: str) -> list[int]:
        """Mails in the open folder with this Message-ID of ours that come from ``sender``."""
        return await self._find_own(message_id, "FROM", quote(sender))

    async def find_own(self, sender: str, id_prefix: str, *, since_uid: int) -> list[int]:
        """Unread mails from ourselves whose Message-ID begins like ours."""
        more = ("UID", f"{since_uid}:*", "UNSEEN", "FROM", quote(sender))
        return await self._find_own(id_prefix, *more)

    async def _find_own(self, own: str, *more: str) -> list[int]:
        """Search for our id, where our server left it and where it set one of its own; as far as it can."""
        by_id = ("HEADER", "Message-ID", quote(own))
        try:
            return await self.search(*more, "OR", *by_id, "HEADER", OWN_ID_FIELD, quote(own))
        except ChannelUnavailable as exc:
            if not isinstance(exc.__cause__, ImapRefused):
                raise
        return await self.search(*more, *by_id)

    async def describe(self, uids: Sequence[int]) -> list[MailInfo]:
        """Sizes and arrival times; a mail that was deleted meanwhile is missing."""
        infos = {}
        for fetched in await self._fetch(uids, "(UID RFC822.SIZE INTERNALDATE)"):
            if fetched.uid is not None and fetched.size is not None:
                infos[fetched.uid] = MailInfo(fetched.uid, fetched.size, fetched.received_at)
        return [infos[uid] for uid in sorted(infos)]

    async def bodies(self, uids: Sequence[int], *, header_only: bool = False) -> dict[int, bytes]:
        """The raw mails, or the beginnings of their headers; a mail that was deleted meanwhile is missing."""
        item = f"BODY.PEEK[HEADER]<0.{HEADER_BYTES}>" if header_only else "BODY.PEEK[]"
        found = await self._fetch(uids, f"(UID {item})")
        return {fetched.uid: fetched.body for fetched in found if fetched.uid and fetched.body is not None}

    async def _fetch(self, uids: Sequence[int], items: str) -> list[Fetched]:
        if not uids:
            return []
        wanted = set(uids)
        with self._door("fetch"):
            reply = await self._protocol.run(
                "FETCH", uid_set(uids), items, uid=True, timeout_s=self._timing.command_s
            )
        parsed = (parse_fetch(response) for response in reply.untagged)
        # The server may throw in news about other mails.
        return [fetched for fetched in parsed if fetched is not None and fetched.uid in wanted]

    async def latest_arrival(self) -> datetime | None:
        """The newest arrival time of all mails in the open folder: by the server's clock, not by ours."""
        latest: datetime | None = None
        # In pieces small enough that nothing else waits for them to be read.
        for first in range(1, self._protocol.exists + 1, DATES_AT_ONCE):
            last = min(first + DATES_AT_ONCE - 1, self._protocol.exists)
            with self._door("fetch"):
                reply = await self._protocol.run(
                    "FETCH", f"{first}:{last}", "(UID INTERNALDATE)", timeout_s=self._timing.command_s
                )
            for response in reply.untagged:
                fetched = parse_fetch(response)
                if fetched is not None and fetched.received_at is not None:
                    latest = max(latest, fetched.received_at) if latest else fetched.received_at
        return latest

    async def add_flags(self, uids: Sequence[int], *flags: str) -> None:
        """Add flags to mails."""
        await self._simple("STORE", uid_set(uids), "+FLAGS.SILENT", f"({' '.join(flags)})", uid=True)

    async def move(self, uids: Sequence[int], folder: str) -> bool:
        """
        Move mails. False: the server cannot remove single mails safely, so they stay.

        Without MOVE it is copy, mark, and UID EXPUNGE of exactly these; a plain EXPUNGE would also remove
        what somebody else has marked.
        """
        name, chosen = quote(folder), uid_set(uids)
        if "MOVE" in self.capabilities:
            await self._simple("MOVE", chosen, name, uid=True)
            return True
        if "UIDPLUS" not in self.capabilities:
            return False
        await self._simple("COPY", chosen, name, uid=True)
        await self._simple("STORE", chosen, "+FLAGS.SILENT", "(\\Deleted)", uid=True)
        await self._simple("EXPUNGE", chosen, uid=True)
        return True

    async def remove(self, uids: Sequence[int]) -> bool:
        """Delete these mails for good. False: the server cannot remove single mails safely, so they stay."""
        if "UIDPLUS" not in self.capabilities:
            return False
        chosen = uid_set(uids)
        await self._simple("STORE", chosen, "+FLAGS.SILENT", "(\\Deleted)", uid=True)
        await self._simple("EXPUNGE", chosen, uid=True)
        return True

    async def refresh(self) -> None:
        """Ask for news: some servers announce new mail only to a client that has asked."""
        await self._simple("NOOP")

    async def append(self, folder: str, raw: bytes, flags: Collection[str] = ("\\Seen",)) -> None:
        """Put a mail into a folder."""
        with self._door("append"):
            await self._protocol.append(folder, raw, flags, timeout_s=self._timing.command_s)

    async def folders(self) -> list[Folder]:
        """All folders that can be opened, with the server's marks."""
        special = {"SPECIAL-USE", "LIST-EXTENDED"} <= self.capabilities
        with self._door("list"):
            reply = await self._protocol.run(
                "LIST",
                '""',
                '"*"',
                *(("RETURN (SPECIAL-USE)",) if special else ()),
                timeout_s=self._timing.command_s,
            )
        folders = [folder for folder in map(parse_list, reply.untagged) if folder is not None]
        return [folder for folder in folders if not folder.attributes & {"\\noselect", "\\nonexistent"}]

    async def sent_folder(self) -> str:
        """The folder for sent mail, as the server writes it; made if need be (`folders.sent_folder`)."""
        return await self._existing(SENT)

    async def folder(self, name: str) -> str:
        """The folder that the operator calls ``name``, as the server writes it; made if need be."""
        return await self._existing(WantedFolder((name,)))

    async def _existing(self, wanted: WantedFolder) -> str:
        known = await self.folders()
        found = wanted.find_or_none(known)
        if found is not None:
            return found
        new = wanted.new_name(known)
        await self._simple("CREATE", quote(new))
        with suppress(ChannelUnavailable):  # some programs show only folders that are subscribed to
            await self._simple("SUBSCRIBE", quote(new))
        return new

    def start_watching(self) -> None:
        """Announce that the caller is about to look: `wait` then returns for later events only."""
        self._protocol.pushed.clear()

    def nudge(self) -> None:
        """Make `wait` return."""
        self._protocol.pushed.set()

    async def wait(self, most_s: float | None = None) -> None:
        """
        Wait until there may be something new, at most until the next regular look is due, or ``most_s``.

        Call `look`, look, then `wait`: nothing that happens in between is missed.
        """
        protocol, timing, most_s = self._protocol, self._timing, inf if most_s is None else most_s
        # No limit: it lasts as long as nothing is new, and its steps have their own.
        with translate_errors(self._server, "idle", self.abort):
            if protocol.pushed.is_set():
                pass
            elif "IDLE" in self.capabilities:
                async with protocol.idling(deadline_s=timing.idle_deadline_s):
                    with anyio.move_on_after(min(timing.idle_refresh_s, most_s)):
                        await protocol.pushed.wait()
            else:
                with anyio.move_on_after(min(timing.poll_s, most_s)):
                    await protocol.pushed.wait()
                await self.refresh()

    async def _simple(self, name: str, *args: str, uid: bool = False) -> None:
        with self._door(name.lower()):
            await self._protocol.run(name, *args, uid=uid, timeout_s=self._timing.command_s)

    @contextmanager
    def _door(self, doing: str) -> Iterator[None]:
        """Translate errors, and give the whole step, however busy the line, its time."""
        with translate_errors(self._server, doing, self.abort), anyio.fail_after(self._timing.transfer_s):
            yield


def _number_in(reply: ImapReply, code: str) -> int | None:
    for response in reply.untagged:
        value = response_code(response[0], code)
        if value is not None and value.isdigit():
            return int(value)
    return None


@contextmanager
def translate_errors(server: ImapServer, doing: str, abort: Callable[[], None]) -> Iterator[None]:
    """Translate exceptions; ``abort`` drops the connection, as after a timeout answers are out of step."""
    where = f"{server.host}:{server.port}"
    try:
        yield
    except ssl.SSLError as exc:
        abort()
        raise tls_error(exc, server.host, server.port) from exc
    except TimeoutError as exc:
        abort()
        raise ChannelUnavailable(f"the mail server {where} did not answer in time ({doing})") from exc
    except ImapRefused as exc:
        raise ChannelUnavailable(f"the mail server {where} refused {exc.command}: {exc.text}") from exc
    except WireError as exc:
        abort()
        raise ChannelUnavailable(f"the mail server {where} does not speak IMAP: {exc}") from exc
    except (LinkLost, OSError) as exc:
        cause = exc.__cause__
        if isinstance(cause, ImapRefused):
            raise ChannelUnavailable(f"the mail server {where} closes the session: {cause.text}") from exc
        raise ChannelUnavailable(f"no connection to the mail server {where} ({doing}): {exc}") from exc


class Connections:
    """Opens connections to one mailbox."""

    def __init__(self, config: EmailConfig, credentials: Credentials) -> None:
        self._config = config
        self.timing = Timing()
        self._credentials = credentials
        self._context: ssl.SSLContext | None = None
        self._context_lock = anyio.Lock()

    async def tls(self) -> ssl.SSLContext | None:
        """The TLS context; None if neither server uses TLS."""
        if self._config.imap.security == "none" and self._config.smtp.security == "none":
            return None
        async with self._context_lock:
            if self._context is None:
                self._context = await anyio.to_thread.run_sync(verifying_context, self._config.tls_ca_file)
            return self._context

    @asynccontextmanager
    async def open_mailbox(self) -> AsyncIterator[Mailbox]:
        """A logged-in connection. Raises `ChannelError`: there is none; it says why, in plain words."""
        context = await self.tls()
        async with Mailbox.open(self._config, context, self.timing, self._credentials) as mailbox:
            yield mailbox

    async def find_copy(self, message_id: str) -> bool:
        """Search a mail of ours, INBOX first: filing moves it to Sent. Raises ChannelUnavailable."""
        own = self._config.address
        try:
            async with self.open_mailbox() as mailbox:
                await mailbox.select("INBOX", read_only=True)
                if await mailbox.find(message_id, own):
                    return True
                await mailbox.select(await mailbox.sent_folder(), read_only=True)
                return bool(await mailbox.find(message_id, own))
        except (ChannelAuthFailed, ChannelMisconfigured) as exc:
            raise ChannelUnavailable(f"cannot look for the copy: {exc}") from exc
