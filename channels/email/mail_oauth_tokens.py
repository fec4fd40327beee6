"""The OAuth login of a mailbox: its provider, and its tokens in ``oauth.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_core.oauth import (
    LoginRequired,
    OAuthTokens,
    RotatingToken,
    TokenStore,
    TokenUnavailable,
)
from agent_core.oauth_login import OAuthClient, Post
from agent_core.state_folder import StateFolder
from channels.base import ChannelAuthFailed, ChannelClock, ChannelUnavailable
from channels.email.config import OAuth
from channels.email.mail_credentials import MailLogin

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
