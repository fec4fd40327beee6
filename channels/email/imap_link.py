"""How long an IMAP connection may take for what, and how it is made."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass

from channels.base import ChannelMisconfigured
from channels.email.config import ImapServer
from channels.email.imap_protocol import HardenedProtocol

__all__ = ["Timing", "connect"]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things may take, in seconds."""

    connect_s: float = 20.0
    command_s: float = 30.0
    """Without anything arriving."""
    transfer_s: float = 600.0
    """For one whole answer, however busy the line."""
    idle_refresh_s: float = 270.0
    """
    An IDLE is renewed this often: proof that the server is alive, and a look for what was not announced.
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
    """
    Open the connection for ``protocol``, verified unless it stays on this machine.

    Raises:
        ChannelMisconfigured: There is nothing to verify it with.
        OSError: It cannot be made.
    """
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
