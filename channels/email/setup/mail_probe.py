"""
Finds a mailbox's servers, logs in to both, and sees what they support; nothing is written yet. Nothing is
changed in the mailbox; only when its mails do not tell whose word about senders counts, one is sent to
ourselves, read, and removed again, as `squidbot check` does.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic import ValidationError

from channels.base import ChannelAuthFailed, ChannelError, ChannelUnavailable
from channels.email.compose.outbound_mail import Envelope
from channels.email.config import EmailConfig
from channels.email.imap.folders import SENT
from channels.email.imap.imap_connect import Timing
from channels.email.imap.mailbox import Mailbox
from channels.email.mail_credentials import verifying_context
from channels.email.mail_self_test import authentication_servers, run_round_trip
from channels.email.setup.mail_providers import MailGuess, ProviderServer
from channels.email.smtp.submission import Submission, SubmitTiming
from channels.setup import complaint

_TIMING = Timing(connect_s=12.0)
_SUBMIT_TIMING = SubmitTiming(connect_s=12.0)
_LIMIT_S = 120.0
_ENOUGH = 3
"""The number of agreeing mails that identify the provider's authentication server."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MailboxLogin:
    """A mailbox and the credentials for it."""

    address: str
    username: str
    password: str = field(repr=False)
    tls_ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class MailboxFacts:
    """The result of a login. ``authserv_ids`` is empty if the provider does not report on senders."""

    imap: ProviderServer
    smtp: ProviderServer
    capabilities: frozenset[str]
    mails: int
    sent_folder: str
    folders: int
    authserv_ids: tuple[str, ...] = ()
    headerless: bool = False
    proven_by: str = ""


def probe_mailbox(
    login: MailboxLogin,
    guess: MailGuess,
    *,
    trusted: str | None,
    search: bool,
    say: Say,
    now: Callable[[], datetime],
) -> MailboxFacts:
    """
    Log in at the first server that can be reached, for reading and for sending, and look around.

    Args:
        trusted: Whose Authentication-Results are believed, if a person has said so.
        search: Whether that has to be found out otherwise.

    Raises:
        ChannelError, ValueError: It cannot be done; why, in plain words.
    """

    async def probe() -> MailboxFacts:
        ca_file = Path(login.tls_ca_file).expanduser() if login.tls_ca_file else None
        context = await anyio.to_thread.run_sync(verifying_context, ca_file)
        try:
            with anyio.fail_after(_LIMIT_S):
                facts: MailboxFacts = await _first(
                    guess.imap, lambda place: _read(login, guess, place, context), say
                )
                smtp: ProviderServer = await _first(
                    guess.smtp, lambda place: _may_send(login, facts.imap, place, context), say
                )
                facts = replace(facts, smtp=smtp)
                if trusted:
                    return replace(
                        facts, authserv_ids=(trusted.lower(),), headerless=False, proven_by="given by you"
                    )
                if facts.authserv_ids or facts.headerless or not search:
                    return facts
                say("  the mails there do not show which server verifies senders; sending a mail to myself …")
                return await _by_own_mail(login, facts, context, now())
        except TimeoutError as error:
            raise ChannelUnavailable(f"the mail servers did not answer within {_LIMIT_S:.0f} s") from error

    return anyio.run(probe)


async def _first(
    places: Sequence[ProviderServer], attempt: Callable[[ProviderServer], Awaitable[Any]], say: Say
) -> Any:
    """The first that works. A refused password ends it: every further try could lock the account."""
    failures: list[str] = []
    for place in places:
        if len(places) > 1:
            say(f"  trying {place} …")
        try:
            return await attempt(place)
        except ChannelAuthFailed:
            raise
        except ChannelError as error:
            if len(places) == 1:
                raise
            failures.append(f"{place}: {error}")
    raise ChannelUnavailable("no mail server was found; " + "; ".join(failures))


def _config(login: MailboxLogin, imap: ProviderServer, smtp: ProviderServer) -> EmailConfig:
    try:
        return EmailConfig.model_validate(
            {
                "address": login.address,
                "username": login.username,
                "password": login.password,
                "imap": imap.as_settings(),
                "smtp": smtp.as_settings(),
                "tls_ca_file": login.tls_ca_file,
                "sender_verification": "off",
            }
        )
    except ValidationError as error:
        raise ValueError(complaint(error)) from None


async def _read(
    login: MailboxLogin, guess: MailGuess, place: ProviderServer, context: ssl.SSLContext
) -> MailboxFacts:
    config = _config(login, place, guess.smtp[0])
    async with Mailbox.open(config, context, _TIMING) as mailbox:
        selected = await mailbox.select("INBOX", read_only=True)
        folders = await mailbox.folders()
        uids = (await mailbox.search("ALL"))[-30:]
        seen = authentication_servers((await mailbox.bodies(uids, header_only=True)).values())
        return MailboxFacts(
            imap=place,
            smtp=guess.smtp[0],
            capabilities=mailbox.capabilities,
            mails=selected.exists,
            sent_folder=SENT.find_or_none(folders) or "",
            folders=len(folders),
            **_word(seen, guess),
        )


def _word(seen: Sequence[str | None], guess: MailGuess) -> dict[str, Any]:
    """Return the authserv-id on top of the newest mails if enough agree; pure."""
    if guess.authserv_ids:
        return {"authserv_ids": guess.authserv_ids, "proven_by": f"known of {guess.provider}"}
    if guess.headerless:
        return {"headerless": True, "proven_by": f"known of {guess.provider}"}
    # All of them, without exception: where some have none the provider writes none, and the rest is forged.
    if len(seen) >= _ENOUGH and seen[0] and len(set(seen)) == 1:
        return {"authserv_ids": (seen[0],), "proven_by": f"{len(seen)} mails in INBOX agree"}
    return {}


async def _may_send(
    login: MailboxLogin, imap: ProviderServer, place: ProviderServer, context: ssl.SSLContext
) -> ProviderServer:
    await Submission(_config(login, imap, place), _SUBMIT_TIMING).check(context)
    return place


async def _by_own_mail(
    login: MailboxLogin, facts: MailboxFacts, context: ssl.SSLContext, now: datetime
) -> MailboxFacts:
    config = _config(login, facts.imap, facts.smtp)
    submitter = Submission(config, _SUBMIT_TIMING)

    async def submit(envelope: Envelope, raw: bytes) -> None:
        await submitter.submit(envelope, raw, context=context, uncertain=anyio.lowlevel.checkpoint)

    async with Mailbox.open(config, context, _TIMING) as mailbox:
        await mailbox.select("INBOX")
        raws = await run_round_trip(config, mailbox, submit, now)
    if not raws:
        return replace(facts, proven_by="the mail to myself did not arrive; look in the Spam folder")
    seen = [name for name in authentication_servers(raws) if name]
    if not seen:
        return replace(facts, proven_by="the provider does not report on senders")
    return replace(facts, authserv_ids=(seen[0],), proven_by="seen in a mail to myself")
