"""
Guesses the servers of a mail address: a table of known providers, otherwise the usual names. Pure. The table
follows the providers' own instructions. A provider in it that stores a copy of what is submitted by itself
has ``sent_copy: server``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import urlsplit

Security = Literal["tls", "starttls", "none"]


@dataclass(frozen=True, slots=True)
class ProviderServer:
    """One server."""

    host: str
    port: int
    security: Security

    def __str__(self) -> str:
        return f"{self.security}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def as_settings(self) -> dict[str, str | int]:
        """The server as the configuration writes it."""
        return {"host": self.host, "port": self.port, "security": self.security}


@dataclass(frozen=True, slots=True)
class MailGuess:
    """Candidates in the order in which they are tried, and what is known of the provider."""

    imap: tuple[ProviderServer, ...]
    smtp: tuple[ProviderServer, ...]
    provider: str = ""
    sent_copy: str = "self"
    headerless: bool = False
    authserv_ids: tuple[str, ...] = ()
    hint: str = ""


def _known(name: str, imap: str, smtp: str, port: int = 587, **more: object) -> MailGuess:
    submission = ProviderServer(smtp, port, "tls" if port == 465 else "starttls")
    return MailGuess((ProviderServer(imap, 993, "tls"),), (submission,), name, **more)  # type: ignore[arg-type]


_GOOGLE = _known(
    "Gmail", "imap.gmail.com", "smtp.gmail.com", 465, sent_copy="server", authserv_ids=("mx.google.com",),
    hint="it accepts only an app password (Google account, Security, App passwords), not the account's own",
)  # fmt: skip
_MICROSOFT = _known(
    "Microsoft", "outlook.office365.com", "smtp.office365.com", sent_copy="server", headerless=True,
    hint="most of its accounts no longer accept passwords: leave mail out here, write "
        "channels.email with oauth as docs/email.md says, and run squidbot email login",
)  # fmt: skip
_APP = "it accepts only an app password, which you create in the settings of the account"
_ICLOUD = _known("iCloud", "imap.mail.me.com", "smtp.mail.me.com", hint=_APP)
_YAHOO = _known("Yahoo", "imap.mail.yahoo.com", "smtp.mail.yahoo.com", 465, hint=_APP)
_FASTMAIL = _known("Fastmail", "imap.fastmail.com", "smtp.fastmail.com", 465, hint=_APP)
_GMX_HINT = "switch IMAP on in its web mail first (Settings, POP3/IMAP)"
_GMX_DE = _known("GMX", "imap.gmx.net", "mail.gmx.net", hint=_GMX_HINT)
_GMX_COM = _known("GMX", "imap.gmx.com", "mail.gmx.com", hint=_GMX_HINT)
_WEB_DE = _known("WEB.DE", "imap.web.de", "smtp.web.de", hint=_GMX_HINT)
_POSTEO = _known("Posteo", "posteo.de", "posteo.de", 465)
_MAILBOX = _known("mailbox.org", "imap.mailbox.org", "smtp.mailbox.org", 465)

_TABLE: dict[str, MailGuess] = {
    **dict.fromkeys(("gmail.com", "googlemail.com"), _GOOGLE),
    **dict.fromkeys(
        ("outlook.com", "outlook.de", "hotmail.com", "hotmail.de", "live.com", "live.de", "msn.com"),
        _MICROSOFT,
    ),
    **dict.fromkeys(("icloud.com", "me.com", "mac.com"), _ICLOUD),
    **dict.fromkeys(
        ("yahoo.com", "yahoo.de", "yahoo.co.uk", "yahoo.fr", "ymail.com", "rocketmail.com"), _YAHOO
    ),
    **dict.fromkeys(("fastmail.com", "fastmail.fm", "sent.com", "messagingengine.com"), _FASTMAIL),
    **dict.fromkeys(("gmx.de", "gmx.net", "gmx.at", "gmx.ch", "gmx.eu"), _GMX_DE),
    **dict.fromkeys(("gmx.com", "gmx.us", "gmx.co.uk"), _GMX_COM),
    "web.de": _WEB_DE,
    **dict.fromkeys(("posteo.de", "posteo.net", "posteo.eu", "posteo.at", "posteo.ch"), _POSTEO),
    **dict.fromkeys(("mailbox.org",), _MAILBOX),
    "zoho.com": _known("Zoho", "imap.zoho.com", "smtp.zoho.com", 465, hint=_APP),
    "zoho.eu": _known("Zoho", "imap.zoho.eu", "smtp.zoho.eu", 465, hint=_APP),
    "aol.com": _known("AOL", "imap.aol.com", "smtp.aol.com", 465, hint=_APP),
}
_BY_HOST = {one.imap[0].host: one for one in _TABLE.values()}


def guess(address: str, imap: ProviderServer | None = None) -> MailGuess:
    """
    Guess the servers of ``address``; a known ``imap`` identifies the provider better.

    For an unknown provider these are the usual names, implicit TLS before STARTTLS (RFC 8314).
    """
    domain = address.rpartition("@")[2].lower()
    known = _BY_HOST.get(imap.host) if imap is not None else _TABLE.get(domain)
    if known is not None:
        return known
    mailers = (f"imap.{domain}", f"mail.{domain}", domain)
    senders = (f"smtp.{domain}", f"mail.{domain}", domain)
    return MailGuess(
        tuple(ProviderServer(host, 993, "tls") for host in mailers),
        tuple(
            place
            for host in senders
            for place in (ProviderServer(host, 465, "tls"), ProviderServer(host, 587, "starttls"))
        ),
    )  # fmt: skip


def parse_place(text: str, kind: Literal["imap", "smtp"]) -> ProviderServer:
    """Parse ``host``, ``host:port`` or ``tls://host:port`` (``starttls``, ``none``). Raises ValueError."""
    wrong = f"{text[:80]!r} is not a server; write host, host:port, or tls://host:port (starttls://, none://)"
    scheme, _, rest = text.partition("://") if "://" in text else ("", "", text)
    if scheme not in ("", "tls", "starttls", "none") or any(char in rest for char in "/@?# \\\"'"):
        raise ValueError(wrong)
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(wrong) from error
    if not host or port == 0 or len(host) > 253:
        raise ValueError(wrong)
    if not scheme:
        in_clear_first = port == 143 if kind == "imap" else port != 465
        scheme = "starttls" if in_clear_first else "tls"
    usual = {"imap": {"tls": 993}, "smtp": {"tls": 465}}[kind].get(scheme, 143 if kind == "imap" else 587)
    return ProviderServer(host, port or usual, cast("Security", scheme))
