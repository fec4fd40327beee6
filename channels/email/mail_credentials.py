"""
The credentials for a mail server, made from its settings: a password, or an OAuth token from ``oauth.json``
(XOAUTH2, or OAUTHBEARER of RFC 7628). TLS certificates are always verified, against the system's authorities
and ``tls_ca_file``; a rejected one is explained in plain words.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio.to_thread

from agent_core.oauth import (
    LoginRequired,
    OAuthTokens,
    ProviderUnreachable,
    RotatingToken,
    TokenStore,
    TokenUnavailable,
)
from agent_core.oauth_http import HttpProvider
from agent_core.oauth_login import (
    BrowserLogin,
    LoginFailed,
    OAuthClient,
    Post,
    run_browser_flow,
    run_device_flow,
)
from agent_core.state_folder import StateFolder, state_in
from channels.base import (
    ChannelAuthFailed,
    ChannelClock,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
)
from channels.email.config import EmailConfig, OAuth


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
        """Note that the server rejected the last ones."""
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
        """Do nothing: a password does not change by being refused."""


_OUTLOOK = "https://outlook.office.com"


def client_from_settings(oauth: OAuth) -> OAuthClient:
    """Return the client of the settings, with the endpoints of its provider where they name none."""
    base = f"https://login.microsoftonline.com/{oauth.tenant}/oauth2/v2.0"
    token, device, authorization, scope = {
        "google": (
            "https://oauth2.googleapis.com/token",
            "",
            "https://accounts.google.com/o/oauth2/v2/auth",
            "https://mail.google.com/",
        ),
        "microsoft": (
            f"{base}/token",
            f"{base}/devicecode",
            f"{base}/authorize",
            f"{_OUTLOOK}/IMAP.AccessAsUser.All {_OUTLOOK}/SMTP.Send offline_access",
        ),
        "custom": ("", "", "", ""),
    }[oauth.provider]
    return OAuthClient(
        client_id=oauth.client_id,
        client_secret=oauth.client_secret.get_secret_value() if oauth.client_secret else "",
        scope=oauth.scope or scope,
        token_endpoint=oauth.token_endpoint or token,
        device_endpoint=oauth.device_endpoint or device,
        authorization_endpoint=oauth.authorization_endpoint or authorization,
    )


def token_store(path: Path, state: StateFolder | None = None) -> TokenStore[OAuthTokens]:
    """Return the store of a mailbox's tokens, a document of its state."""
    return TokenStore(path, OAuthTokens.decode, state)


class TokenCredentials:
    """Logins with tokens, renewed in time."""

    def __init__(
        self, username: str, oauth: OAuth, store: TokenStore[OAuthTokens], post: Post, clock: ChannelClock
    ) -> None:
        self._username = username
        self._mechanism = oauth.mechanism
        client = client_from_settings(oauth)
        # Google remembers the scope; Microsoft wants it again.
        form = client.credentials | ({} if oauth.provider == "google" else {"scope": client.scope})

        async def renew(old: OAuthTokens) -> Mapping[str, Any]:
            refresh = {"grant_type": "refresh_token", "refresh_token": old.refresh}
            return await post(client.token_endpoint, refresh | form)

        self._token = RotatingToken(store, clock, renew)
        self._used = ""

    async def get(self) -> MailLogin:
        """See `channels.email.mail_credentials.Credentials.get`."""
        try:
            self._used = (await self._token.get()).access
        except LoginRequired as error:
            why = f"there is no token for {self._username}"
            if error.revoked:
                why = (
                    f"the provider does not renew the access to {self._username} ({error}); check client_id, "
                    "client_secret and scope"
                )
            raise ChannelAuthFailed(f"{why}; log in again: squidbot email login") from error
        except TokenUnavailable as error:
            raise ChannelUnavailable(
                f"no new token for {self._username} at the moment: {error}", retry_after_s=error.retry_after_s
            ) from error
        return MailLogin(self._username, self._used, self._mechanism)

    def note_rejection(self) -> None:
        """Note that the server rejected the token: it is fetched again, unless it was new."""
        self._token.note_refused_token(self._used)


_EXPIRED = 10
_NOT_YET_VALID = 9
_NAME_MISMATCH = (62, 64)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL")


def verifying_context(ca_file: Path | None) -> ssl.SSLContext:
    """Build the TLS context of all connections; blocks. Raises ChannelMisconfigured for a bad CA file."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise ChannelMisconfigured(
                f"tls_ca_file {ca_file} cannot be used: {exc}; it must be a readable file of PEM certificates"
            ) from exc
    return context


def tls_error(exc: ssl.SSLError, host: str, port: int) -> ChannelError:
    """The error for a TLS connection that could not be made. In no case was anything sent in plaintext."""
    where = f"{host}:{port}"
    if not isinstance(exc, ssl.SSLCertVerificationError):
        if exc.reason in _NOT_TLS:
            return ChannelMisconfigured(
                f"{where} does not speak TLS on this port; check that port and security match"
            )
        return ChannelUnavailable(f"no TLS connection to {where}: {exc.reason or exc}")
    if exc.verify_code == _EXPIRED:
        why = "it has expired; the server needs a new one"
    elif exc.verify_code == _NOT_YET_VALID:
        why = "it is not valid yet; is the clock of this machine right?"
    elif exc.verify_code in _NAME_MISMATCH:
        why = f"it is not valid for {host}; set host to a name that it is valid for"
    else:
        why = (
            f"no authority that this machine trusts has signed it ({exc.verify_message}); if you run your "
            "own authority, name its certificate in tls_ca_file"
        )
    return ChannelMisconfigured(f"the certificate of {where} is refused: {why}. Nothing was sent.")


def credentials_of(
    config: EmailConfig, state_dir: Path | StateFolder, clock: ChannelClock, post: Post | None = None
) -> Credentials:
    """A password, or tokens that are stored in ``state_dir``; ``post`` asks their provider."""
    if config.oauth is None:
        return PasswordCredentials.from_config(config)
    post = post or _provider(config)
    return TokenCredentials(config.username, config.oauth, token_file(state_dir), post, clock)


def _provider(config: EmailConfig) -> HttpProvider:
    return HttpProvider(partial(verifying_context, config.tls_ca_file))


def token_file(state_dir: Path | StateFolder) -> TokenStore[OAuthTokens]:
    """Return the store of a mailbox's tokens."""
    state = state_in(state_dir)
    return token_store(state.local / "oauth.json", state)


async def give_access(
    config: EmailConfig,
    state_dir: Path | StateFolder,
    clock: ChannelClock,
    *,
    show: Callable[[str], None],
    pasted: Callable[[], Awaitable[str]],
    post: Post | None = None,
) -> None:
    """Lead a person through the login by ``show`` and ``pasted``; store the tokens. Raises ChannelError."""
    oauth = config.oauth
    if oauth is None:
        raise ChannelMisconfigured(
            "this account has no oauth in the settings: it uses its password and needs no login here; "
            "docs/email.md says which providers want one"
        )
    client, post = client_from_settings(oauth), post or _provider(config)
    by_browser = oauth.flow == "browser" or (oauth.flow == "auto" and not client.device_endpoint)
    if by_browser and not client.authorization_endpoint:
        raise ChannelMisconfigured("this provider has no authorization_endpoint; use flow: device")
    if not by_browser and not client.device_endpoint:
        raise ChannelMisconfigured("this provider has no device_endpoint; use flow: browser")
    try:
        if by_browser:
            tokens = await run_browser_flow(client, post, clock, BrowserLogin(show, pasted))
        else:
            tokens = await run_device_flow(client, post, clock, show)
    except LoginFailed as error:
        raise ChannelAuthFailed(str(error)) from error
    except ProviderUnreachable as error:
        raise ChannelUnavailable(f"the provider cannot be used now: {error}") from error
    await anyio.to_thread.run_sync(token_file(state_dir).save, tokens)
