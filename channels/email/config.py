"""
The settings of one mailbox.

Every mistake that can be seen without a connection is an error here, with the remedy in its text, so that the
daemon says at its start what would otherwise come out days later.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from channels.email.addresses import AddressInvalid, normalise

__all__ = ["AnswerLimits", "EmailConfig", "ImapServer", "SmtpServer"]


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
    port: int = Field(ge=1, le=65535)
    security: Literal["tls", "starttls", "none"]

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

    @field_validator("security")
    @classmethod
    def _no_starttls(cls, value: str) -> str:
        if value == "starttls":
            raise ValueError(
                "starttls is not supported for IMAP; use security: tls, "
                "which nearly every server offers on port 993"
            )
        return value


class SmtpServer(_Server):
    """Where answers are handed in."""

    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["tls", "starttls", "none"] = "starttls"


class AnswerLimits(_Strict):
    """How many mails are answered at most; 0 means no limit."""

    sender_per_hour: int = Field(default=10, ge=0)
    sender_per_day: int = Field(default=40, ge=0)
    thread_per_hour: int = Field(default=6, ge=0)
    total_per_hour: int = Field(default=100, ge=0)


class EmailConfig(_Strict):
    """One entry under ``channels:`` for a mailbox."""

    enabled: bool = True
    address: str
    username: str = Field(min_length=1)
    password: SecretStr
    imap: ImapServer
    smtp: SmtpServer
    tls_ca_file: Path | None = None
    """Certificates of one's own authority, believed besides those of the system."""
    allow_from: tuple[str, ...] = ()
    trusted_authserv_ids: tuple[str, ...] = ()
    """Whose Authentication-Results are believed: the name that one's own mail provider writes there."""
    sender_verification: Literal["enforce", "off"] = "enforce"
    limits: AnswerLimits = AnswerLimits()
    queue: Literal["merge", "each"] = "each"
    sent_copy: Literal["self", "server", "append"] = "self"
    """
    How a copy of an answer comes into the Sent folder, and what that is worth after a crash.

    ``self``: the answer also goes to ``local+sent@domain`` and is filed on arrival; sound everywhere.
    ``server``: the provider files what is submitted by itself (Gmail, Microsoft 365); as sound.
    ``append``: the copy is uploaded after sending; a crash in between sends the answer twice.
    """
    probe_grace_s: float = Field(default=90.0, ge=0, le=3600)
    """How long to look for the copy before an answer with an unknown outcome is sent again."""

    @field_validator("address")
    @classmethod
    def _one_address(cls, value: str) -> str:
        try:
            return normalise(value)
        except AddressInvalid as exc:
            raise ValueError(f"not a mail address: {exc}") from exc

    @field_validator("trusted_authserv_ids")
    @classmethod
    def _lower(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(item.strip().lower() for item in value)

    @model_validator(mode="after")
    def _evidence_from_somewhere(self) -> Self:
        if self.sender_verification == "enforce" and not any(self.trusted_authserv_ids):
            raise ValueError(
                "sender_verification: enforce needs trusted_authserv_ids: the first word of the "
                "Authentication-Results header in mails that you received at this address. Without it every "
                "sender could be forged, so nobody would be answered"
            )
        return self
