"""
The settings of one mailbox.

Every mistake that can be seen without a connection is an error here, with the remedy in its text, so that the
daemon says at its start what would otherwise come out days later.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from channels.email.parsing.addresses import AddressInvalid, normalise

__all__ = [
    "AnswerLimits",
    "CircuitBreakerConfig",
    "EmailConfig",
    "ImapServer",
    "OAuth",
    "SmtpServer",
    "SubaddressSecret",
]

_SECRET = re.compile(r"[a-z0-9-]{16,60}")
_PATTERN = re.compile(r"(?:\*|[^\s*@]+\*?)@[^\s*@]+")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _on_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(_Strict):
    host: str = Field(min_length=1, max_length=253)
    """Its name, as its certificate says it."""
    port: int = Field(ge=1, le=65535)
    """993 is usual for IMAP, 587 (starttls) or 465 (tls) for sending."""
    security: Literal["tls", "starttls", "none"]
    """``tls`` from the first byte, ``starttls``, or ``none`` on this machine only."""

    @model_validator(mode="after")
    def _never_in_the_clear(self) -> Self:
        if self.security == "none" and not _on_this_machine(self.host):
            raise ValueError(
                "security: none would send the password in the clear, so it is allowed for this machine only "
                "(localhost, 127.0.0.1, ::1); use tls"
            )
        return self


class ImapServer(_Server):
    """Where mail is read."""

    port: int = Field(default=993, ge=1, le=65535)
    security: Literal["tls", "starttls", "none"] = "tls"
    """``starttls`` begins in the clear, says nothing there, and goes on only with verified TLS."""


class SmtpServer(_Server):
    """Where answers are handed in."""

    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["tls", "starttls", "none"] = "starttls"


class AnswerLimits(_Strict):
    """
    How many mails are answered at most, to others than the owner; 0 means no limit.

    What is more waits for its place and is answered then; its sender is told once when that is.
    """

    sender_per_hour: int = Field(default=10, ge=0)
    """To one person."""
    sender_per_day: int = Field(default=40, ge=0)
    """To one person."""
    thread_per_hour: int = Field(default=6, ge=0)
    """In one thread."""
    total_per_hour: int = Field(default=100, ge=0)
    """To everybody together."""


class CircuitBreakerConfig(_Strict):
    """
    When so much goes out that it must be a loop: mail is not answered for a while; 0 means never.

    What is to be sent meanwhile waits, and what comes in waits in quarantine; both go on by themselves
    afterwards. Nobody else's mail keeps the owner from being answered.
    """

    answers_per_hour: int = Field(default=60, ge=0)
    """Of all threads together: beyond it nobody is answered."""
    thread_answers_per_hour: int = Field(default=12, ge=0)
    """Of one thread: beyond it that thread is not answered."""
    max_identical_replies: int = Field(default=3, ge=0)
    """The same text so often in one thread within an hour is enough: the next one waits."""
    bounces_per_hour: int = Field(default=5, ge=0)
    """So many reports that a mail of ours to one person did not arrive: nothing is sent there."""
    open_minutes: float = Field(default=60.0, gt=0, le=10_080)
    """How long it stays open, over restarts too; ``squidbot email reset-breaker`` closes it sooner."""


class SubaddressSecret(_Strict):
    """
    A form of our own address that proves a sender who knows it: ``local+secret@domain``.

    For people whose provider signs nothing. Whoever knows the secret can write as this sender, and as nobody
    else; so every person gets one of his own.
    """

    sender: str
    """Whose address it is."""
    secret: SecretStr
    """16 to 60 small letters, digits and hyphens, chosen by chance."""

    @field_validator("sender")
    @classmethod
    def _one_address(cls, value: str) -> str:
        return _address(value)

    @field_validator("secret")
    @classmethod
    def _hard_to_guess(cls, value: SecretStr) -> SecretStr:
        if not _SECRET.fullmatch(value.get_secret_value()):
            raise ValueError("must be 16 to 60 small letters, digits and hyphens, chosen by chance")
        return value


class OAuth(_Strict):
    """
    Log in with tokens instead of a password: ``squidbot email login`` gets the first one.

    ``provider`` fills in the endpoints of Google or Microsoft; for ``custom`` name them. ``client_id`` is
    that of your own registration there (docs/email.md says where).
    """

    provider: Literal["google", "microsoft", "custom"]
    client_id: str = Field(min_length=1, max_length=500)
    client_secret: SecretStr | None = None
    """If the registration has one."""
    tenant: str = Field(default="common", pattern=r"^[A-Za-z0-9.-]{1,100}$")
    """Microsoft only: the directory, or ``common``, ``organizations``, ``consumers``."""
    mechanism: Literal["xoauth2", "oauthbearer"] = "xoauth2"
    """What the server calls the login with a token."""
    flow: Literal["auto", "device", "browser"] = "auto"
    """``device``: a code is typed in on another machine (RFC 8628). ``browser``: the address that the browser
    shows in the end is pasted (Google does not give mail to devices). ``auto``: what the provider can."""
    device_endpoint: str = ""
    """Where codes come from (``custom``)."""
    authorization_endpoint: str = ""
    """What the browser opens (``custom``)."""
    token_endpoint: str = ""
    """Where tokens come from (``custom``)."""
    scope: str = ""
    """What the token is for (``custom``)."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.provider == "custom" and not (self.token_endpoint and self.scope):
            raise ValueError("provider: custom needs token_endpoint and scope")
        for url in (self.device_endpoint, self.authorization_endpoint, self.token_endpoint):
            parts = urlsplit(url)
            if (
                url
                and parts.scheme != "https"
                and not (parts.scheme == "http" and _on_this_machine(parts.hostname or ""))
            ):
                raise ValueError(f"{url!r} must begin with https://, because secrets are sent there")
        return self


class EmailConfig(_Strict):
    """One entry under ``channels:`` for a mailbox."""

    enabled: bool = True
    """``false`` keeps the entry and leaves the mailbox alone."""
    address: str
    """The bot's own address."""
    username: str = Field(min_length=1)
    """What it logs in with, mostly the address."""
    password: SecretStr | None = None
    """Or ``oauth``; exactly one of the two."""
    oauth: OAuth | None = None
    imap: ImapServer
    smtp: SmtpServer
    tls_ca_file: Path | None = None
    """Certificates of one's own authority, believed besides those of the system."""
    allow_from: tuple[str, ...] = ()
    """Who may write to the bot: addresses, ``*@domain`` or ``*``. Nobody by default."""
    trusted_authserv_ids: tuple[str, ...] = ()
    """Whose Authentication-Results are believed: the name that one's own mail provider writes there."""
    trust_headerless_auth_results: bool = False
    """
    Believe the topmost Authentication-Results also if it names no server: for Microsoft 365, which leaves its
    name out. Only for a provider that puts its own on top of every mail.
    """
    dkim: Literal["off", "verify"] = "off"
    """Verify signatures ourselves where the provider says nothing; needs DNS."""
    dns_servers: tuple[str, ...] = ()
    """``address`` or ``address:port``; empty for those of the system."""
    subaddress_secrets: tuple[SubaddressSecret, ...] = ()
    ingest_only_from: tuple[str, ...] = ()
    """
    Whose mail is read and never answered: addresses, ``*@domain`` or ``name*@domain``. It stands in the
    history, where the owner's search finds it; ``allow_from`` need not name them.
    """
    sender_verification: Literal["enforce", "off"] = "enforce"
    """``off`` believes every From field. Never on a mailbox that the world can reach."""
    limits: AnswerLimits = AnswerLimits()
    circuit_breaker: CircuitBreakerConfig = CircuitBreakerConfig()
    batching: Literal["merge", "each"] = "each"
    """``each``: one answer for each mail; ``merge``: what waits in a thread is answered together."""
    sent_copy: Literal["self", "server", "append", "none"] = "self"
    """
    How a copy of an answer comes into the Sent folder, and what that is worth after a crash.

    ``self``: the answer also goes to ``local+sent@domain`` and is filed on arrival; sound everywhere.
    ``server``: the provider files what is submitted by itself (Gmail, Microsoft 365); as sound.
    ``append``: the copy is uploaded after sending; a crash in between sends the answer twice.
    ``none``: there is no copy. After a lost confirmation nobody can find out, so it is not sent again; the
    answer waits for a person (``squidbot inbox``).
    """
    processed_folder: str = Field(default="", max_length=200)
    """Where mails go once their answer is out, such as ``Processed``; empty to leave them where they are."""
    max_files: int = Field(default=20, ge=0, le=200)
    """How many files of one mail are kept; the others are only named."""
    max_files_mb: float = Field(default=25.0, ge=0, le=100)
    """How large they may be together."""
    max_reply_mb: float = Field(default=18.0, gt=0, le=100)
    """So much of files is sent in one mail, as long as the server takes it; others are named in the text."""
    quote_original: Literal["none", "short", "full"] = "none"
    """Whether the mail that is answered is quoted below the answer: not, its first lines, or all of it."""
    reply_all: bool = False
    """
    Whether those of its To and Cc who are in ``allow_from`` get the answer too. Nobody else ever does.
    """
    subaddress_sessions: bool = False
    """
    Whether ``local+word@domain`` is one conversation for each word and person, whatever the threads are.
    """
    reply_approval: Literal["none", "strangers", "all"] = "none"
    """Whose answers wait for the owner's yes: nobody's, those to other people, or all."""
    answered_keyword: str = Field(default="$SquidbotAnswered", pattern=r"^[$A-Za-z0-9_.-]{0,60}$")
    """A keyword that answered mails get where the server knows keywords; empty for none."""
    probe_grace_s: float = Field(default=90.0, ge=0, le=3600)
    """How long to look for the copy before an answer with an unknown outcome is sent again."""

    @field_validator("address")
    @classmethod
    def _one_address(cls, value: str) -> str:
        return _address(value)

    @field_validator("ingest_only_from")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        patterns = tuple(item.strip().lower() for item in value)
        for pattern in patterns:
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f'{pattern!r} is neither an address nor "*@domain" nor "name*@domain"')
        return patterns

    @field_validator("dns_servers")
    @classmethod
    def _servers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            host, colon, port = text.rpartition(":")
            alone = not colon or (":" in host and not host.startswith("["))
            try:
                ipaddress.ip_address((text if alone else host).strip("[]"))
            except ValueError:
                raise ValueError(f"{text!r} is no address of a DNS server, such as 127.0.0.1:53") from None
            if not alone and not (port.isdigit() and 0 < int(port) < 65536):
                raise ValueError(f"{text!r} has no port")
        return value

    @field_validator("trusted_authserv_ids")
    @classmethod
    def _lower(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(item.strip().lower() for item in value)

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> Self:
        if (self.password is None) == (self.oauth is None):
            raise ValueError("needs either password or oauth, and not both")
        return self

    @model_validator(mode="after")
    def _evidence_from_somewhere(self) -> Self:
        somewhere = (
            any(self.trusted_authserv_ids)
            or self.trust_headerless_auth_results
            or self.dkim == "verify"
            or self.subaddress_secrets
        )
        if self.sender_verification == "enforce" and not somewhere:
            raise ValueError(
                "sender_verification: enforce needs trusted_authserv_ids: the first word of the "
                "Authentication-Results header in mails that you received at this address (or dkim: verify, "
                "or subaddress_secrets). Without it every sender could be forged, so nobody would be answered"
            )
        return self

    @property
    def secret_by_sender(self) -> dict[str, str]:
        """The secret tag of each sender who has one."""
        return {one.sender: one.secret.get_secret_value() for one in self.subaddress_secrets}


def _address(value: str) -> str:
    try:
        return normalise(value)
    except AddressInvalid as exc:
        raise ValueError(f"not a mail address: {exc}") from exc
