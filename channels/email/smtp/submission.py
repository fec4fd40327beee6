"""
Submits one mail by SMTP: the only user of aiosmtplib, which it drives one step at a time.

A submission has one moment after which nobody but the server knows whether the mail is on its way: DATA. The
caller's ``uncertain`` is awaited just before it, so that this is known durably. What goes wrong earlier is
certain failure; a refusal after it is as well; silence after it is `DeliveryUncertain`.

===========  ==================================================  ==========================================
class        when                                                raised as
===========  ==================================================  ==========================================
config       certificate, no STARTTLS, no AUTH, sender refused   `ChannelMisconfigured`
auth         any 5xx to AUTH; 530, 534, 535, 538 before RCPT     `ChannelAuthFailed`
permanent    5xx to RCPT or DATA                                 `DeliveryFailed`
size         larger than SIZE, 552 and its relatives             `MailTooLarge`, a `DeliveryFailed`
transient    4xx, no connection, a timeout before DATA           `ChannelUnavailable`
ambiguous    connection lost or a timeout during DATA            `DeliveryUncertain`
===========  ==================================================  ==========================================

No connection is kept: servers close idle ones, and a fresh one costs less than finding that out. But where
mails wait for one another, they share a few (``relay``).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, TypeVar

import aiosmtplib
import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog

from channels.base import (
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
)
from channels.email.compose.outbound_mail import Envelope
from channels.email.config import EmailConfig, SmtpServer
from channels.email.mail_credentials import Credentials, MailLogin, PasswordCredentials, tls_error

_AUTH_CODES = frozenset({530, 534, 535, 538})
"""What they say of a recipient or of a text may be the recipient's own server's words, handed through."""
_WRONG_PASSWORD = 535  # RFC 4954; others speak of the mechanism, the encryption or the account
_TOO_BIG = 552
_SIZE_STATUS = re.compile(r"\b5\.(?:3\.4|2\.3)\b")
_SLOWEST = 300_000.0
"""Bytes in a second: a large mail gets so much more time."""
_log = structlog.get_logger(__name__)
_LINK_TROUBLE = (
    aiosmtplib.SMTPServerDisconnected,
    aiosmtplib.SMTPConnectError,
    aiosmtplib.SMTPTimeoutError,
    aiosmtplib.SMTPResponseException,
)
_PIECE = 64_000


class MailTooLarge(DeliveryFailed):
    """My answer is larger than my mail server allows."""


@dataclass(frozen=True, slots=True)
class SubmitTiming:
    """The time limits of the steps, in seconds."""

    connect_s: float = 20.0
    command_s: float = 30.0
    data_s: float = 60.0
    large_bytes: int = 256_000
    """Larger mails are handed over in pieces, so that nobody else waits meanwhile."""


class _Step(Enum):
    CONNECT = "connect"
    LOGIN = "login"
    MAIL = "mail"
    RECIPIENT = "recipient"
    DATA = "data"


class Submission:
    """Sends mails for one account."""

    def __init__(
        self, config: EmailConfig, timing: SubmitTiming | None = None, credentials: Credentials | None = None
    ) -> None:
        self._config = config
        self._credentials = credentials or PasswordCredentials.from_config(config)
        self.timing = timing or SubmitTiming()
        self._relay: ConnectionPool[aiosmtplib.SMTP] = ConnectionPool(aiosmtplib.SMTP.close)

    async def submit(
        self,
        envelope: Envelope,
        raw: bytes,
        *,
        context: ssl.SSLContext | None,
        uncertain: Callable[[], Awaitable[None]],
    ) -> str:
        """Send ``raw``, if necessary as ``instead``, and return the reply. Raises ChannelError, see above."""
        try:
            return await self._submit(envelope, raw, context, uncertain)
        except (ChannelMisconfigured, DeliveryFailed) as exc:
            if envelope.sender or not envelope.instead or isinstance(exc, MailTooLarge):
                raise
            _log.info("mail.empty_sender_refused", error=str(exc))
            return await self._submit(replace(envelope, sender=envelope.instead), raw, context, uncertain)

    async def _submit(
        self,
        envelope: Envelope,
        raw: bytes,
        context: ssl.SSLContext | None,
        uncertain: Callable[[], Awaitable[None]],
    ) -> str:
        place = await self._relay.take()
        client = place.link
        try:
            if client is not None and not await self._goes_on(client, envelope, len(raw)):
                client = None
            if client is None:
                place.mails = 0
                client = await self._connect(context)
                await self._begin(client, envelope, len(raw))
            said = await self._go_through(client, envelope, raw, uncertain)
        except BaseException:
            self._relay.leave()
            if client is not None:
                await hang_up(client)
            raise
        if not self._relay.release_link(place, client):
            await hang_up(client)
        return said

    async def _begin(self, client: aiosmtplib.SMTP, envelope: Envelope, size: int) -> None:
        self._check_size(client, size)
        with self._door(_Step.MAIL):
            await client.mail(envelope.sender)

    async def _goes_on(self, client: aiosmtplib.SMTP, envelope: Envelope, size: int) -> bool:
        """Return True if a used connection accepts another mail; else close it for a new one."""
        try:
            await self._begin(client, envelope, size)
        except BaseException as exc:
            await hang_up(client)
            if not isinstance(exc, ChannelError):
                raise
            return False
        return True

    async def _go_through(
        self,
        client: aiosmtplib.SMTP,
        envelope: Envelope,
        raw: bytes,
        uncertain: Callable[[], Awaitable[None]],
    ) -> str:
        """Send the recipients and the data, after MAIL; return the server's reply."""
        with self._door(_Step.RECIPIENT):
            await client.rcpt(envelope.recipient)
        await self._add_cc(client, envelope.cc)
        await self._add_copy(client, envelope.copies)
        large = len(raw) > self.timing.large_bytes
        ready = await anyio.to_thread.run_sync(stuff_dots, raw) if large else None
        await uncertain()
        with self._door(_Step.DATA):
            if ready is None:
                return (await client.data(raw, timeout=self.timing.data_s)).message
            with anyio.fail_after(self.timing.data_s + len(ready) / _SLOWEST):
                return await send_data(client, ready)

    async def _connect(self, context: ssl.SSLContext | None) -> aiosmtplib.SMTP:
        """A connection that is logged in."""
        server = self._config.smtp
        login = await self._credentials.get()
        if server.security != "none" and context is None:
            raise ChannelMisconfigured("a TLS connection without a way to verify it")
        client = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            local_hostname=self._config.address.rpartition("@")[2],
            timeout=self.timing.command_s,
            use_tls=server.security == "tls",
            start_tls=False,
            tls_context=context,
        )
        try:
            with self._door(_Step.CONNECT):
                await client.connect(timeout=self.timing.connect_s)
                if server.security == "starttls":
                    await client.starttls()
            try:
                with self._door(_Step.LOGIN):
                    await _log_in(client, login, server)
            except ChannelAuthFailed:
                self._credentials.note_rejection()
                raise
        except BaseException:
            await hang_up(client)
            raise
        return client

    async def check(self, context: ssl.SSLContext | None) -> None:
        """Connect and log in, send nothing. Raises `ChannelError`, which says why in plain words."""
        await hang_up(await self._connect(context))

    def _check_size(self, client: aiosmtplib.SMTP, size: int) -> None:
        limit = client.esmtp_extensions.get("size", "").strip()
        if limit.isdigit() and 0 < int(limit) < size:
            raise MailTooLarge(f"the mail has {size} bytes, and the mail server accepts at most {limit}")

    async def _add_cc(self, client: aiosmtplib.SMTP, addresses: Sequence[str]) -> None:
        """Add the further recipients; a refused one does not stop the mail."""
        for address in addresses:
            try:
                await client.rcpt(address)
            except aiosmtplib.SMTPRecipientRefused as exc:
                _log.warning("mail.cc_refused", code=exc.code)
            except (aiosmtplib.SMTPException, OSError) as exc:
                raise ChannelUnavailable(f"connection lost before the mail was sent: {exc}") from exc

    async def _add_copy(self, client: aiosmtplib.SMTP, copies: Sequence[str]) -> None:
        for number, copy in enumerate(copies, 1):
            try:
                await client.rcpt(copy)
            except aiosmtplib.SMTPRecipientRefused as exc:
                if number == len(copies):
                    raise ChannelUnavailable(
                        f"the mail server does not accept our own copy for {copy}: {exc.code} "
                        f"{exc.message}. Without it, a crash could send the answer twice; see sent_copy "
                        "in the settings"
                    ) from exc
            except (aiosmtplib.SMTPException, OSError) as exc:
                raise ChannelUnavailable(f"connection lost before the mail was sent: {exc}") from exc
            else:
                return

    @contextmanager
    def _door(self, step: _Step) -> Iterator[None]:
        """Let nothing of the library through."""
        try:
            yield
        except ssl.SSLError as exc:
            raise self._after_data(step, exc) or tls_error(
                exc, self._config.smtp.host, self._config.smtp.port
            ) from exc
        except aiosmtplib.SMTPException as exc:
            if isinstance(exc.__cause__, ssl.SSLError):
                raise tls_error(exc.__cause__, self._config.smtp.host, self._config.smtp.port) from exc
            raise self._translated(step, exc) from exc
        except ValueError as exc:
            # A control character or something that is not ASCII where SMTP has no place for it.
            raise _refused(step, 553, str(exc)) from exc
        except (OSError, TimeoutError) as exc:
            raise self._after_data(step, exc) or ChannelUnavailable(
                f"no connection to the mail server {self._where} ({step.value}): {exc}"
            ) from exc

    @property
    def _where(self) -> str:
        return f"{self._config.smtp.host}:{self._config.smtp.port}"

    def _after_data(self, step: _Step, exc: Exception) -> ChannelError | None:
        if step is not _Step.DATA:
            return None
        return DeliveryUncertain(
            f"the mail server {self._where} closed the connection before it confirmed the mail: {exc}"
        )

    def _translated(self, step: _Step, exc: aiosmtplib.SMTPException) -> ChannelError:
        if isinstance(exc, aiosmtplib.SMTPResponseException) and 400 <= exc.code < 600:
            return _refused(step, exc.code, exc.message)
        unclear = self._after_data(step, exc)
        if unclear is not None:
            return unclear
        if isinstance(exc, _LINK_TROUBLE):
            hint = "; check that host, port and security match" if step is _Step.CONNECT else ""
            return ChannelUnavailable(
                f"no connection to the mail server {self._where} ({step.value}): {exc}{hint}"
            )
        # Bare exceptions: the server lacks STARTTLS or AUTH, or every way to log in that we know.
        return ChannelMisconfigured(f"the mail server {self._where} cannot be used like this: {exc}")


async def _log_in(client: aiosmtplib.SMTP, login: MailLogin, server: SmtpServer) -> None:
    if login.mechanism == "password":
        await client.login(login.username, login.secret)
        return
    await client.ehlo()
    if login.mechanism not in client.server_auth_methods:
        raise aiosmtplib.SMTPException(f"it does not support {login.mechanism.upper()}")
    words = login.first_words(server.host, server.port).encode("ascii")
    answer = await client.execute_command(b"AUTH", login.mechanism.upper().encode("ascii"), words)
    if answer.code == 334:  # the error comes as a question, which wants an answer before the refusal
        answer = await client.execute_command(login.after_error.encode("ascii"))
    if answer.code != 235:
        raise aiosmtplib.SMTPAuthenticationError(answer.code, answer.message)


def _refused(step: _Step, code: int, text: str) -> ChannelError:
    said = f"{code} {text}".replace("\n", " ")
    if 400 <= code < 500:
        return ChannelUnavailable(f"the mail server asks to try again later ({step.value}): {said}")
    if code == _TOO_BIG or _SIZE_STATUS.search(text[:200]):
        return MailTooLarge(f"the mail server rejects the mail as too large ({step.value}): {said}")
    ours = step in (_Step.CONNECT, _Step.MAIL)
    if code == _WRONG_PASSWORD and (ours or step is _Step.LOGIN):
        return ChannelAuthFailed(f"the mail server does not accept username and password: {said}")
    if step is _Step.LOGIN or (ours and code in _AUTH_CODES):
        return ChannelAuthFailed(f"the mail server does not let us log in: {said}")
    if ours:
        return ChannelMisconfigured(f"the mail server accepts no mail from this address: {said}")
    return DeliveryFailed(
        f"the mail server refused the mail permanently ({step.value}): {said}",
        public="The mail server of the recipient refused my answer.",
    )


def stuff_dots(raw: bytes) -> bytes:
    """
    The mail as it is sent after DATA: dots doubled, with the end mark (RFC 5321, 4.5.2).

    Line ends must be whole: what is no line end here and one to the next server would end the mail there.
    """
    ends = raw.count(b"\r\n")
    if raw.count(b"\n") != ends or raw.count(b"\r") != ends:
        raw = re.sub(rb"\r\n|\r|\n", b"\r\n", raw)
    raw = raw.replace(b"\r\n.", b"\r\n..")
    raw = b"." + raw if raw.startswith(b".") else raw
    return raw + (b".\r\n" if raw.endswith(b"\r\n") else b"\r\n.\r\n")


async def send_data(client: aiosmtplib.SMTP, ready: bytes) -> str:
    """Send DATA in pieces; each is encrypted and sent before the next. Returns what the server said."""
    go_on = await client.execute_command(b"DATA")
    if go_on.code != 354:
        raise aiosmtplib.SMTPDataError(go_on.code, go_on.message)
    protocol, transport = client.protocol, client.transport
    if protocol is None or not isinstance(transport, asyncio.WriteTransport):
        raise aiosmtplib.SMTPServerDisconnected("Connection lost")
    # A server may answer before it has everything; without this that would count as noise.
    protocol._response_pending = True  # noqa: SLF001 - the library has no way to send in pieces
    view = memoryview(ready)
    for start in range(0, len(view), _PIECE):
        protocol.write(view[start : start + _PIECE])  # type: ignore[arg-type]
        await anyio.lowlevel.checkpoint()
        while (  # noqa: ASYNC110 - the library does not tell when its buffer is empty again
            transport.get_write_buffer_size() > 4 * _PIECE and not transport.is_closing()
        ):
            await anyio.sleep(0.002)
    answer = await protocol.read_response()
    if answer.code != 250:
        raise aiosmtplib.SMTPDataError(answer.code, answer.message)
    return answer.message


async def hang_up(client: aiosmtplib.SMTP) -> None:
    """Say goodbye without waiting for the answer, and close the connection if the server does not."""
    protocol, transport = client.protocol, client.transport
    if protocol is not None and protocol.is_connected:
        protocol.write(b"QUIT\r\n")
    client.close()
    if protocol is None or transport is None:
        return
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(0.5):
            while protocol.transport is not None:  # noqa: ASYNC110 - the library forgets it and has no event
                await anyio.sleep(0.002)
        if protocol.transport is not None and isinstance(transport, asyncio.WriteTransport):
            transport.abort()
            await anyio.lowlevel.checkpoint()


AT_ONCE = 4
"""Providers count connections."""
MAILS_EACH = 50
"""Some servers end a connection after a hundred."""
WAIT_S = 5.0
"""Longer, and somebody is handing in a large mail: then there is one connection more."""
_Link = TypeVar("_Link")


@dataclass(slots=True)
class ConnectionSlot(Generic[_Link]):
    """The right to one connection: ``link`` is an open one, if one could be taken over."""

    link: _Link | None = None
    mails: int = 0
    come: anyio.Event = field(default_factory=anyio.Event)


class ConnectionPool(Generic[_Link]):
    """
    A few connections for many mails: a finished mail passes its connection to the next that waits.

    Every `take` is followed by one `release_link` or `leave`; ``close`` drops a link without waiting. No
    connection is kept idle, because servers close idle ones.
    """

    def __init__(self, close: Callable[[_Link], None]) -> None:
        self._close = close
        self._taken = 0
        self._waiting: deque[ConnectionSlot[_Link]] = deque()

    async def take(self) -> ConnectionSlot[_Link]:
        """Wait a short time for a place."""
        if self._taken < AT_ONCE:
            self._taken += 1
            return ConnectionSlot()
        place: ConnectionSlot[_Link] = ConnectionSlot()
        self._waiting.append(place)
        try:
            with anyio.move_on_after(WAIT_S):
                await place.come.wait()
        except BaseException:
            if not place.come.is_set():
                self._waiting.remove(place)
            else:  # it came in this very moment
                if place.link is not None:
                    self._close(place.link)
                self.leave()
            raise
        if not place.come.is_set():
            self._waiting.remove(place)
            self._taken += 1
        return place

    def release_link(self, place: ConnectionSlot[_Link], link: _Link) -> bool:
        """Return a place whose link can be used again. False: nobody waits for it, so close it."""
        if place.mails + 1 < MAILS_EACH and self._waiting:
            following = self._waiting.popleft()
            following.link, following.mails = link, place.mails + 1
            following.come.set()
            return True
        self.leave()
        return False

    def leave(self) -> None:
        """Return a place whose link is gone: somebody else may open one."""
        if self._waiting:
            self._waiting.popleft().come.set()
        else:
            self._taken -= 1
