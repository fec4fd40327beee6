"""
The settings of one mailbox. Every mistake that can be seen without a connection is an error here, with the
remedy in its text, so that the daemon says at its start what would otherwise come out days later.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from agent_core.settings_section import SettingsSection
from channels.email.parse.mail_addresses import AddressInvalid, normalise, to_ascii
from channels.plugin import AccountConfig

_SECRET = re.compile(r"[a-z0-9-]{16,60}")
_PATTERN = re.compile(r"(?:\*|[^\s*@]+\*?)@[^\s*@]+")


def _on_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(SettingsSection):
    host: str = Field(min_length=1, max_length=253)
    """Host name, as in the server's certificate."""
    port: int = Field(ge=1, le=65535)
    """Usually 993 for IMAP, and 587 (starttls) or 465 (tls) for submission."""
    security: Literal["tls", "starttls", "none"]
    """
    ``tls``: TLS from the first byte. ``starttls``: upgrade to verified TLS before login. ``none``: for
    servers on this machine only.
    """

    @model_validator(mode="after")
    def _never_in_the_clear(self) -> Self:
        if self.security == "none" and not _on_this_machine(self.host):
            raise ValueError(
                "security: none would send the password in the clear, so it is allowed for this machine only "
                "(localhost, 127.0.0.1, ::1); use tls"
            )
        return self


class ImapServer(_Server):
    """The server from which mail is read."""

    port: int = Field(default=993, ge=1, le=65535)
    security: Literal["tls", "starttls", "none"] = "tls"
    """
    ``tls``: TLS from the first byte. ``starttls``: upgrade to verified TLS before login. ``none``: for
    servers on this machine only.
    """


class SmtpServer(_Server):
    """The submission server (RFC 6409)."""

    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["tls", "starttls", "none"] = "starttls"


class MailAnswerLimits(SettingsSection):
    """
    Maximum number of mails that are answered, for people other than the owner; 0 means no limit.

    Further mails wait and are answered later. squidbot tells their sender once when that will be.
    """

    sender_per_hour: int = Field(default=10, ge=0)
    """To one person, per hour."""
    sender_per_day: int = Field(default=40, ge=0)
    """To one person, per day."""


class CircuitBreakerConfig(SettingsSection):
    """
    Stop answering for a while when so much mail goes out that it must be a loop; 0 disables a limit.

    While the breaker is open, answers wait; they go out afterwards. Other people's mail never keeps the owner
    from being answered.
    """

    answers_per_hour: int = Field(default=60, ge=0)
    """Answers in all threads together. Above it, nobody is answered."""
    thread_answers_per_hour: int = Field(default=12, ge=0)
    """Answers in one thread. Above it, that thread is not answered."""
    open_minutes: float = Field(default=60.0, gt=0, le=1_440)
    """
    How long the breaker stays open, even over restarts; ``squidbot email reset-breaker`` closes it sooner.
    A day at most, because an answer is given up after two.
    """


def _address(value: str) -> str:
    try:
        return normalise(value)
    except AddressInvalid as exc:
        raise ValueError(f"not a mail address: {exc}") from exc


_Address = Annotated[str, AfterValidator(_address)]


def _entry(entry: str) -> str:
    """An entry of ``allow_from``, in normal form. Raises `ValueError`: no mail can be from there."""
    entry = entry.strip()
    if entry == "*":
        return entry
    if entry.startswith("@") and ":" in entry:
        raise ValueError(f"{entry!r} is a Matrix id, and no mail is from one; write name@domain")
    is_domain = entry.startswith("*@")
    plain = f"x{entry[1:]}" if is_domain else entry
    if "*" in plain:
        raise ValueError(f'{entry!r} is not a valid entry: "*" can only stand alone or as "*@domain"')
    try:
        found = normalise(plain)
    except AddressInvalid as exc:
        raise ValueError(f"{entry!r} can be no sender of a mail: {exc}") from exc
    return f"*{found[1:]}" if is_domain else found


class SubaddressSecret(SettingsSection):
    """
    A subaddress (RFC 5233) of the bot that authenticates the sender who knows it: ``local+secret@domain``.

    For people whose provider signs nothing. Whoever knows the secret can write as this sender and as nobody
    else, so give each person a different secret.
    """

    sender: _Address
    """The person's address."""
    secret: SecretStr
    """16 to 60 random lower-case letters, digits and hyphens."""

    @field_validator("secret")
    @classmethod
    def _hard_to_guess(cls, value: SecretStr) -> SecretStr:
        if not _SECRET.fullmatch(value.get_secret_value()):
            raise ValueError("must be 16 to 60 lower-case letters, digits and hyphens, chosen at random")
        return value


class OAuth(SettingsSection):
    """
    Log in with tokens instead of a password; ``squidbot email login`` obtains the first one.

    ``provider`` fills in the endpoints of Google or Microsoft; for ``custom``, set them. ``client_id`` is the
    id of your own registration there (see docs/email.md).
    """

    provider: Literal["google", "microsoft", "custom"]
    client_id: str = Field(min_length=1, max_length=500)
    client_secret: SecretStr | None = None
    """If the registration has one."""
    tenant: str = Field(default="common", pattern=r"^[A-Za-z0-9.-]{1,100}$")
    """Microsoft only: the directory, or ``common``, ``organizations``, ``consumers``."""
    mechanism: Literal["xoauth2", "oauthbearer"] = "xoauth2"
    """The SASL mechanism."""
    flow: Literal["auto", "device", "browser"] = "auto"
    """
    ``device``: you type a code on another machine (RFC 8628). ``browser``: you paste the address that your
    browser shows at the end (Google does not allow the device flow for mail). ``auto``: what the provider
    supports.
    """
    device_endpoint: str = ""
    """Device authorization endpoint (``custom``)."""
    authorization_endpoint: str = ""
    """Authorization endpoint (``custom``)."""
    token_endpoint: str = ""
    """Token endpoint (``custom``)."""
    scope: str = ""
    """Scope (``custom``)."""

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


class EmailConfig(AccountConfig):
    """One mailbox under ``channels:``."""

    enabled: bool = True
    """``false`` keeps the entry but does not use the mailbox."""
    address: _Address
    """The bot's own address."""
    username: str = Field(min_length=1)
    """The login name, usually the address."""
    password: SecretStr | None = None
    """Either this or ``oauth``."""
    oauth: OAuth | None = None
    imap: ImapServer
    smtp: SmtpServer
    tls_ca_file: Path | None = None
    """Certificates of your own CA, trusted in addition to the system's."""
    allow_from: tuple[Annotated[str, AfterValidator(_entry)], ...] = ()
    """Who may write to the bot: addresses, ``*@domain`` or ``*``. Nobody by default."""
    trusted_authserv_ids: tuple[str, ...] = ()
    """Servers whose Authentication-Results are trusted: the name that your mail provider writes there."""
    trust_headerless_auth_results: bool = False
    """
    Trust the topmost Authentication-Results even if it names no server (Microsoft 365 leaves its name out).
    Use it only with a provider that adds its own on top of every mail.
    """
    dkim: Literal["off", "verify"] = "off"
    """Verify DKIM signatures where the provider reports nothing; needs DNS."""
    dns_servers: tuple[str, ...] = ()
    """``address`` or ``address:port``. Empty: the system's."""
    subaddress_secrets: tuple[SubaddressSecret, ...] = ()
    ingest_only_from: tuple[str, ...] = ()
    """
    Senders whose mail is stored and never answered: addresses, ``*@domain`` or ``name*@domain``. The owner's
    search finds it. ``allow_from`` need not contain them.
    """
    sender_verification: Literal["enforce", "off"] = "enforce"
    """``off`` trusts every From field. Never use it on a mailbox that others can reach."""
    limits: MailAnswerLimits = MailAnswerLimits()
    circuit_breaker: CircuitBreakerConfig = CircuitBreakerConfig()
    batching: Literal["merge", "each"] = "each"
    """
    ``each``: one answer per mail. ``merge``: a sender's waiting mails of a thread are answered together.
    """
    sent_copy: Literal["self", "server", "append", "none"] = "self"
    """
    How a copy of an answer gets into the Sent folder, and what that means after a crash.

    ``self``: the answer also goes to ``local+sent@domain`` and is filed on arrival; exactly once across
    crashes, with every provider. ``server``: the provider files submitted mail by itself (Gmail, Microsoft
    365); exactly once too. ``append``: squidbot uploads the copy after sending; a crash may send the answer
    twice. ``none``: no copy; after a lost confirmation the answer waits for your decision (``squidbot
    inbox``).
    """
    processed_folder: str = Field(default="", max_length=200)
    """
    The folder to which answered mails are moved, such as ``Processed``. Empty: they stay where they are.
    """
    max_files: int = Field(default=20, ge=0, le=200)
    """Maximum number of files kept of one mail; further files are only named."""
    max_files_mb: float = Field(default=25.0, ge=0, le=100)
    """Maximum size of these files together."""
    max_reply_mb: float = Field(default=18.0, gt=0, le=100)
    """
    Maximum size of the files in one answer, if the server accepts that much; further files are named in the
    text.
    """
    quote_original: Literal["none", "short", "full"] = "none"
    """How much of the original mail is quoted below the answer: nothing, its first lines, or all of it."""
    reply_all: bool = False
    """Whether people in To and Cc who are in ``allow_from`` get the answer too. Nobody else ever does."""
    subaddress_sessions: bool = False
    """Whether ``local+word@domain`` is one conversation per word and person, regardless of threads."""
    reply_approval: Literal["none", "strangers", "all"] = "none"
    """Which answers wait for the owner's approval: none, answers to other people, or all."""
    answered_keyword: str = Field(default="$SquidbotAnswered", pattern=r"^[$A-Za-z0-9_.-]{0,60}$")
    """IMAP keyword set on answered mails where the server supports keywords. Empty: none."""
    probe_grace_s: float = Field(default=90.0, ge=0, le=3600)
    """How long to wait for the copy of an answer with an unknown outcome before it is sent again."""

    @field_validator("ingest_only_from")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        patterns = tuple(_with_ascii_domain(item.strip().lower()) for item in value)
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
                raise ValueError(
                    f"{text!r} is not the address of a DNS server, such as 127.0.0.1:53"
                ) from None
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
            raise ValueError("needs either password or oauth, not both")
        return self

    @model_validator(mode="after")
    def _authentication_from_somewhere(self) -> Self:
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


def _with_ascii_domain(text: str) -> str:
    local, at, domain = text.rpartition("@")
    return f"{local}{at}{to_ascii(domain)}"
