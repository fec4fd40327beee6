"""
The mailbox test of ``squidbot check``: log in to both servers, send ourselves a mail, find it. The mail is
removed again if the server can remove single mails; the daemon would take it for a copy of one of its own in
any case. The test also reports what our provider wrote on top of it, because that is the proof of senders.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from email.utils import format_datetime
from typing import Any

import anyio

from agent_core.messages import SessionKey
from channels.email.compose.outbound_mail import Envelope
from channels.email.config import EmailConfig
from channels.email.imap.mailbox import Mailbox
from channels.email.parse.mail_threads import OWN_ID_FIELD, is_own_id, message_id_of
from channels.email.parse.mime import Unreadable, parse_headers
from channels.email.parse.unreadable import headers_of
from channels.email.trust.auth_results import parse_auth_results

FOUND_WITHIN_S = 20.0
CHECK_EVERY_S = 0.5
_CAPABILITIES = frozenset({"IDLE", "MOVE", "UIDPLUS", "ID", "SPECIAL-USE", "CONDSTORE", "QUOTA"})

OpenMailbox = Callable[[], AbstractAsyncContextManager[Mailbox]]
Submit = Callable[[Envelope, bytes], Awaitable[None]]


async def examine(
    config: EmailConfig, open_mailbox: OpenMailbox, submit: Submit, now: datetime
) -> dict[str, str]:
    """Return the findings by name, for a person. Raises ChannelError in plain words."""
    async with open_mailbox() as mailbox:
        selected = await mailbox.select("INBOX")
        facts = {
            "mails in INBOX": str(selected.exists),
            "the server supports": ", ".join(sorted(mailbox.capabilities & _CAPABILITIES)) or "the minimum",
            "announces new mail": "yes"
            if "IDLE" in mailbox.capabilities
            else "no, so squidbot asks it regularly",
            "sent folder": await mailbox.sent_folder(),
        }
        if mailbox.read_only:
            facts["problem"] = "the mailbox can only be read, so answered mails cannot be marked"
        raws = await run_round_trip(config, mailbox, submit, now)
        if not raws:
            facts["a mail to ourselves"] = (
                f"the server accepted it, but it did not arrive within {FOUND_WITHIN_S:.0f} s; look in "
                "Spam, and check that address is the address of this mailbox"
            )
            return facts
        facts["a mail to ourselves"] = "sent and found"
        if _sets_own_ids(config, raws):
            facts["Message-ID"] = (
                "the server sets its own; squidbot knows its mails by a field of its own, and learns the "
                "server's ids from the copies"
            )
        facts["senders are verified by"] = _authentication(config, raws)
    return facts


async def run_round_trip(config: EmailConfig, mailbox: Mailbox, submit: Submit, now: datetime) -> list[bytes]:
    """Send ourselves a mail, find and remove it; return each copy's header. Raises ChannelError."""
    key, nobody = f"check-{secrets.token_hex(8)}", SessionKey("check", "self")
    message_id = message_id_of(key, nobody, account=config.address)
    await submit(Envelope(config.address, config.address), _mail(config, message_id, now))
    uids = await _found(mailbox, message_id, config.address)
    raws = await mailbox.bodies(uids, header_only=True)
    if uids:
        await mailbox.remove(uids)
    return list(raws.values())


def _sets_own_ids(config: EmailConfig, raws: Iterable[bytes]) -> bool:
    """Return True if our mail came back under another Message-ID than ours."""
    ids = (headers_of(raw).message_id() for raw in raws)
    return any(each is not None and not is_own_id(each, account=config.address) for each in ids)


def authentication_servers(raws: Iterable[bytes]) -> list[str | None]:
    """Return each mail's topmost authserv-id: "" for a nameless field, None for no readable field."""
    servers: list[str | None] = []
    for raw in raws:
        try:
            fields = parse_headers(raw).all("authentication-results")
        except Unreadable:
            fields = []
        parsed = parse_auth_results(fields[0], headerless=True) if fields else None
        servers.append(parsed.authserv_id if parsed is not None else None)
    return servers


def status_facts(config: EmailConfig, mailbox: Mailbox) -> dict[str, Any]:
    """Return the facts about a working connection for ``status``."""
    return {
        "idle": "IDLE" in mailbox.capabilities,
        "capabilities": sorted(mailbox.capabilities & _CAPABILITIES),
        "login": config.oauth.mechanism if config.oauth else "password",
        "sent_copy": config.sent_copy,
        "trusted_authserv_ids": list(config.trusted_authserv_ids),
        "dkim": config.dkim,
        "read_only": mailbox.read_only,
    }


async def _found(mailbox: Mailbox, message_id: str, address: str) -> Sequence[int]:
    with anyio.move_on_after(FOUND_WITHIN_S):
        while True:
            uids = await mailbox.find(message_id, address)
            if uids:
                return uids
            await mailbox.refresh()
            await anyio.sleep(CHECK_EVERY_S)
    return []


def _mail(config: EmailConfig, message_id: str, now: datetime) -> bytes:
    return (
        f"From: {config.address}\r\nTo: {config.address}\r\nSubject: squidbot check\r\n"
        f"Date: {format_datetime(now)}\r\nMessage-ID: {message_id}\r\n"
        f"{OWN_ID_FIELD}: {message_id}\r\nAuto-Submitted: auto-generated\r\n"
        "X-Auto-Response-Suppress: OOF, AutoReply\r\nMIME-Version: 1.0\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n\r\n"
        "squidbot check has sent this to see whether mail arrives. It removes it again.\r\n"
    ).encode()


def _authentication(config: EmailConfig, raws: Iterable[bytes]) -> str:
    """Describe the ways of verification, and whether the provider's fields match the settings."""
    ways = [
        *(["signatures (dkim: verify)"] if config.dkim == "verify" else []),
        *(["secret addresses"] if config.subaddress_secrets else []),
        *(["nothing, because sender_verification is off"] if config.sender_verification == "off" else []),
    ]
    seen: list[str] = []
    for raw in raws:
        try:
            fields = parse_headers(raw).all("authentication-results")
        except Unreadable:
            continue
        parsed = [parse_auth_results(value, headerless=True) for value in fields]
        seen += [found.authserv_id or "(a field without a name)" for found in parsed if found is not None]
    if config.trusted_authserv_ids or config.trust_headerless_auth_results:
        names = ", ".join(config.trusted_authserv_ids) or "a field without a name"
        ways.append(
            f"Authentication-Results of {names} (whether it removes forged ones cannot be seen from here)"
        )
    told = "; ".join(ways) or "nothing"
    here = f"this mail has Authentication-Results of {', '.join(seen)}" if seen else "this mail has none"
    return f"{told}; {here}"
