"""
Makes an IMAP connection and defines the time limit of each step. A busy server must not be mistaken for one
that refuses the login: the first is asked again in a moment, the second in minutes, because servers lock
accounts after too many attempts.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass

from aioimaplib import aioimaplib

from channels.base import ChannelAuthFailed, ChannelError, ChannelMisconfigured, ChannelUnavailable
from channels.email.config import ImapServer
from channels.email.imap.imap_protocol import HardenedProtocol, ImapRefused
from channels.email.imap.imap_syntax import response_code
from channels.email.mail_credentials import MailLogin

_NOT_NOW = ("UNAVAILABLE", "INUSE", "LIMIT", "SERVERBUG", "CONTACTADMIN")
_WRONG = ("AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED", "EXPIRED")
_UNEXPLAINED_PAUSE_S = 300.0
"""After a refusal without a reason: it may be the password, and servers lock accounts after many attempts."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The time limits of the steps, in seconds."""

    connect_s: float = 20.0
    command_s: float = 30.0
    """Without anything arriving."""
    transfer_s: float = 600.0
    """For one whole answer, however busy the line."""
    idle_refresh_s: float = 20.0
    """
    An IDLE is renewed this often: proof that the server is alive, and a look for what was not announced. With
    ``command_s`` it is how late a connection is given up on which nobody answers any more.
    """
    idle_deadline_s: float = 10.0
    poll_s: float = 20.0
    """Between two looks, where the server has no IDLE."""


async def connect(
    loop: asyncio.AbstractEventLoop,
    protocol: HardenedProtocol,
    server: ImapServer,
    context: ssl.SSLContext | None,
) -> None:
    """Connect, verified unless on this machine. Raises ChannelMisconfigured or OSError."""
    if server.security == "tls":
        if context is None:
            raise ChannelMisconfigured("a TLS connection without a way to verify it")
        transport, _ = await loop.create_connection(
            lambda: protocol, server.host, server.port, ssl=context, server_hostname=server.host
        )
    else:
        transport, _ = await loop.create_connection(lambda: protocol, server.host, server.port)
    link = transport.get_extra_info("socket")
    if link is not None:
        _watch(link)


async def secure(
    loop: asyncio.AbstractEventLoop,
    protocol: HardenedProtocol,
    server: ImapServer,
    context: ssl.SSLContext | None,
    timeout_s: float,
) -> None:
    """
    Start TLS after the greeting (RFC 3501, section 6.2.1).

    Nothing is sent before it, and plaintext received with the consent ends the connection: anybody may have
    sent it. Raises ChannelMisconfigured, WireError or OSError.
    """
    if context is None:
        raise ChannelMisconfigured("a TLS connection without a way to verify it")
    if protocol.state == aioimaplib.AUTH:
        # A greeting of PREAUTH: whoever sent it wants the password of nobody, and the mails in the clear.
        raise ChannelMisconfigured(
            f"{server.host}:{server.port} says that we are logged in before TLS is set up; nothing was sent"
        )
    await protocol.capability(timeout_s)
    if "STARTTLS" not in protocol.capabilities:
        raise ChannelMisconfigured(
            f"{server.host}:{server.port} does not offer STARTTLS, so nothing was sent; "
            "try security: tls with port 993"
        )
    await protocol.run("STARTTLS", timeout_s=timeout_s)
    transport = await loop.start_tls(
        protocol.transport, protocol, context, server_hostname=server.host, ssl_handshake_timeout=timeout_s
    )
    protocol.continue_with_tls(transport)


def _watch(link: socket.socket) -> None:
    """Let the kernel find out about a peer that has gone without a word, in a minute or two."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 60),
        ("TCP_KEEPINTVL", 20),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        number = getattr(socket, option, None)
        if number is not None:
            link.setsockopt(socket.IPPROTO_TCP, number, value)


async def log_in(protocol: HardenedProtocol, login: MailLogin, server: ImapServer, timeout_s: float) -> None:
    """Log in. Raises ChannelUnavailable, ChannelAuthFailed or ChannelMisconfigured, in plain words."""
    try:
        if login.mechanism == "password":
            await protocol.authenticate(login.username, login.secret, timeout_s)
            return
        name = login.mechanism.upper()
        if f"AUTH={name}" not in protocol.capabilities:
            raise ChannelMisconfigured(f"the mail server {server.host} does not support {name}")
        words = login.first_words(server.host, server.port)
        await protocol.sasl(name, words, timeout_s, after_error=login.after_error)
    except ImapRefused as exc:
        raise _refusal(exc, login, server) from exc
    except ValueError as exc:
        raise ChannelMisconfigured("the username or the password contains control characters") from exc


def _refusal(refused: ImapRefused, login: MailLogin, server: ImapServer) -> ChannelError:
    said = refused.text.rstrip(".")
    if response_code(said.encode(), "PRIVACYREQUIRED") is not None or refused.result == "BAD":
        return ChannelMisconfigured(f"the mail server does not allow this login method: {said}")
    if any(response_code(said.encode(), code) is not None for code in _NOT_NOW):
        return ChannelUnavailable(f"the mail server accepts no logins at the moment: {said}")
    if not any(response_code(said.encode(), code) is not None for code in _WRONG):
        # Gmail says so with too many connections, Exchange and Courier with a wrong password too.
        return ChannelUnavailable(
            f"the mail server {server.host} refuses the login of {login.username} and does not say why: "
            f"{said}. It is tried again; if this persists, check username and password",
            retry_after_s=_UNEXPLAINED_PAUSE_S,
        )
    if login.mechanism != "password":
        return ChannelAuthFailed(
            f"the mail server {server.host} does not accept the token of {login.username}: {said}. If "
            "this persists, log in again: squidbot email login"
        )
    return ChannelAuthFailed(
        f"the mail server {server.host} does not accept the password of {login.username}: {said}. Check "
        "username and password; some providers require an app password"
    )


async def introduce(protocol: HardenedProtocol, timeout_s: float) -> None:
    """
    Ask after the login what the server can do, and identify ourselves if it wants that (RFC 2971).

    What a server can do changes with the login, and what it says in the login's own OK is not complete. Some
    (163.com) open no folder for somebody who has not introduced himself.
    """
    await protocol.capability(timeout_s)
    if "ID" in protocol.capabilities:
        try:
            await protocol.run("ID", '("name" "squidbot")', timeout_s=timeout_s)
        except ImapRefused:
            return
