"""
The credentials for a mail server: a password, or a token (``oauth_tokens``) in one of two SASL mechanisms.

XOAUTH2 is Google's, which Microsoft took over; OAUTHBEARER is the standard (RFC 7628). Both say the user's
name and the token in one line.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Literal, Protocol

from channels.base import ChannelMisconfigured
from channels.email.config import EmailConfig


@dataclass(frozen=True, slots=True)
class MailLogin:
    """A user name and its secret; ``mechanism`` says what the secret is."""

    username: str
    secret: str = field(repr=False)
    mechanism: Literal["password", "xoauth2", "oauthbearer"] = "password"

    def first_words(self, host: str, port: int) -> str:
        """The line that sends a token, in base64."""
        bearer = f"auth=Bearer {self.secret}\x01\x01"
        if self.mechanism == "xoauth2":
            text = f"user={self.username}\x01{bearer}"
        else:
            name = self.username.replace("=", "=3D").replace(",", "=2C")
            text = f"n,a={name},\x01host={host}\x01port={port}\x01{bearer}"
        return base64.b64encode(text.encode()).decode("ascii")

    @property
    def after_error(self) -> str:
        """The answer that a server expects before it rejects a token (RFC 7628, section 3.2.3)."""
        return "AQ==" if self.mechanism == "oauthbearer" else ""


class Credentials(Protocol):
    """The source of logins."""

    async def get(self) -> MailLogin:
        """Return credentials to log in. Raises ChannelAuthFailed (a person must act), ChannelUnavailable."""
        ...

    def note_rejection(self) -> None:
        """The server rejected the last ones."""
        ...


class PasswordCredentials:
    """A password, always the same."""

    def __init__(self, username: str, password: str) -> None:
        self._login = MailLogin(username, password)

    @classmethod
    def from_config(cls, config: EmailConfig) -> PasswordCredentials:
        """The password of the settings. Raises `ChannelMisconfigured`: there is none."""
        if config.password is None:
            raise ChannelMisconfigured("there is no password in the settings")
        return cls(config.username, config.password.get_secret_value())

    async def get(self) -> MailLogin:
        """See `Credentials.get`."""
        return self._login

    def note_rejection(self) -> None:
        """A password does not change by being refused."""
