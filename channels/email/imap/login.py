"""
Logging in by IMAP, and what a refusal means in plain words.

A server that is merely busy must not be taken for one that knows us not: the first is asked again in a
moment, the second in minutes, because servers lock accounts that knock too often.
"""

from __future__ import annotations

from channels.base import ChannelAuthFailed, ChannelError, ChannelMisconfigured, ChannelUnavailable
from channels.email.auth.credentials import Login
from channels.email.config import ImapServer
from channels.email.imap.command import Refused
from channels.email.imap.protocol import HardenedProtocol
from channels.email.imap.syntax import response_code

__all__ = ["introduce", "log_in"]

_NOT_NOW = ("UNAVAILABLE", "INUSE", "LIMIT", "SERVERBUG", "CONTACTADMIN")


async def log_in(protocol: HardenedProtocol, login: Login, server: ImapServer, timeout_s: float) -> None:
    """
    Log in.

    Raises:
        ChannelUnavailable, ChannelAuthFailed, ChannelMisconfigured: Refused; why, in plain words.
    """
    try:
        if login.mechanism == "password":
            await protocol.authenticate(login.username, login.secret, timeout_s)
            return
        name = login.mechanism.upper()
        if f"AUTH={name}" not in protocol.capabilities:
            raise ChannelMisconfigured(f"the mail server {server.host} does not know {name}")
        words = login.first_words(server.host, server.port)
        await protocol.sasl(name, words, timeout_s, after_error=login.after_error)
    except Refused as exc:
        raise _refusal(exc, login, server) from exc
    except ValueError as exc:
        raise ChannelMisconfigured("username or password has control characters in it") from exc


def _refusal(refused: Refused, login: Login, server: ImapServer) -> ChannelError:
    said = refused.text.rstrip(".")
    if any(response_code(said.encode(), code) is not None for code in _NOT_NOW):
        return ChannelUnavailable(f"the mail server lets nobody in at the moment: {said}")
    if response_code(said.encode(), "PRIVACYREQUIRED") is not None or refused.result == "BAD":
        return ChannelMisconfigured(f"the mail server refuses this way to log in: {said}")
    if login.mechanism != "password":
        return ChannelAuthFailed(
            f"the mail server {server.host} does not accept the token of {login.username}: {said}. "
            "If it stays like that, log in again: squidbot email login"
        )
    return ChannelAuthFailed(
        f"the mail server {server.host} does not accept the password of {login.username}: {said}. "
        "Check username and password; some providers want an app password"
    )


async def introduce(protocol: HardenedProtocol, timeout_s: float) -> None:
    """
    After the login: ask what the server can do now, and say who we are if it wants to know (RFC 2971).

    What a server can do changes with the login, and what it says in the login's own OK is not complete. Some
    (163.com) open no folder for somebody who has not introduced himself.
    """
    await protocol.capability(timeout_s)
    if "ID" in protocol.capabilities:
        try:
            await protocol.run("ID", '("name" "squidbot")', timeout_s=timeout_s)
        except Refused:
            return
