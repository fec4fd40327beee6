"""The OAuth login of a mailbox: `agent_core.oauth` keeps its tokens in ``oauth.json`` and renews them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from agent_core.backoff import BackoffPolicy
from agent_core.oauth import (
    LoginRequired,
    ProviderAway,
    RotatingToken,
    TokenRevoked,
    TokenStore,
    TokenUnavailable,
    lifetime_s,
    token_in,
)
from agent_core.state_folder import StateFolder
from channels.base import ChannelAuthFailed, ChannelUnavailable, Clock
from channels.email.auth.credentials import Login
from channels.email.config import OAuth

_RETRY = BackoffPolicy(first_s=10.0, cap_s=900.0, jitter=0)
_FINAL = frozenset({"invalid_grant", "interaction_required", "consent_required"})
_AGAIN = "log in again: squidbot email login"


class ProviderRefused(Exception):
    """The provider's token endpoint refused; ``code`` is its error code (RFC 6749, section 5.2)."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code = code
        super().__init__(f"{code}: {detail}" if detail else code)


class AskProvider(Protocol):
    """One request to an endpoint."""

    async def __call__(self, url: str, form: dict[str, str]) -> dict[str, Any]:
        """
        POST a form; the JSON object that comes back.

        Raises:
            ProviderRefused, ProviderAway: As they say.
        """
        ...


@dataclass(frozen=True, slots=True)
class Endpoints:
    """A provider's endpoints and the scope to ask for."""

    token: str
    scope: str
    device: str = ""
    authorization: str = ""

    @classmethod
    def of(cls, oauth: OAuth) -> Endpoints:
        """The provider's endpoints, replaced by those that the settings name."""
        base = f"https://login.microsoftonline.com/{oauth.tenant}/oauth2/v2.0"
        known = {
            "google": cls(
                token="https://oauth2.googleapis.com/token",  # noqa: S106 - an address
                authorization="https://accounts.google.com/o/oauth2/v2/auth",
                scope="https://mail.google.com/",
            ),
            "microsoft": cls(
                token=f"{base}/token",
                device=f"{base}/devicecode",
                authorization=f"{base}/authorize",
                scope="https://outlook.office.com/IMAP.AccessAsUser.All "
                "https://outlook.office.com/SMTP.Send offline_access",
            ),
            "custom": cls(token="", scope=""),
        }[oauth.provider]
        return cls(
            token=oauth.token_endpoint or known.token,
            scope=oauth.scope or known.scope,
            device=oauth.device_endpoint or known.device,
            authorization=oauth.authorization_endpoint or known.authorization,
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a provider. ``ends_at`` is in seconds since 1970."""

    refresh: str = field(repr=False)
    access: str = field(default="", repr=False)
    ends_at: float = 0.0

    @classmethod
    def of(cls, answer: dict[str, Any], now: datetime, *, old_refresh: str = "") -> Tokens:
        """Read a token endpoint's answer. Raises `ProviderAway`: it contains no token."""
        access, refresh = token_in(answer, "access_token"), token_in(answer, "refresh_token") or old_refresh
        if not access or not refresh:
            raise ProviderAway("its answer contains no tokens")
        return cls(refresh, access, now.timestamp() + lifetime_s(answer.get("expires_in")))


class TokenFile(TokenStore[Tokens]):
    """The tokens of a mailbox, as a document of its state."""

    def __init__(self, path: Path, state: StateFolder | None = None) -> None:
        super().__init__(path, _decode, state)


def _decode(kept: Any) -> Tokens:
    return Tokens(str(kept["refresh"]), str(kept["access"]), float(kept["ends_at"]))


class TokenCredentials:
    """Logins with tokens, renewed in time."""

    def __init__(self, username: str, oauth: OAuth, file: TokenFile, ask: AskProvider, clock: Clock) -> None:
        self._username = username
        self._oauth = oauth
        self._endpoints = Endpoints.of(oauth)
        self._ask = ask
        self._clock = clock
        self._token = RotatingToken(file, clock, early_s=300.0, hardly_old_s=120.0, retry=_RETRY)
        self._used = ""

    async def get(self) -> Login:
        """See `channels.email.auth.credentials.Credentials.get`."""
        try:
            self._used = (await self._token.get(self._renewed)).access
        except LoginRequired as exc:
            why = f"there is no token for {self._username}"
            if exc.revoked:
                why = f"the provider has revoked the access to {self._username} ({exc})"
            raise ChannelAuthFailed(f"{why}; {_AGAIN}") from exc
        except TokenUnavailable as exc:
            raise ChannelUnavailable(
                f"no new token for {self._username} at the moment: {exc}", retry_after_s=exc.retry_after_s
            ) from exc
        return Login(self._username, self._used, self._oauth.mechanism)

    def refused(self) -> None:
        """The server rejected the token: it is fetched again, unless it was new."""
        self._token.report_refused(self._used)

    async def _renewed(self, old: Tokens) -> Tokens:
        try:
            answer = await self._ask(self._endpoints.token, self._form(old))
        except ProviderRefused as exc:
            if exc.code in _FINAL:
                raise TokenRevoked(str(exc)) from exc
            raise ChannelAuthFailed(
                f"the provider refuses to renew the token of {self._username} ({exc}); check client_id, "
                "client_secret and scope"
            ) from exc
        return Tokens.of(answer, self._clock.now(), old_refresh=old.refresh)

    def _form(self, old: Tokens) -> dict[str, str]:
        secret = self._oauth.client_secret
        return {
            "grant_type": "refresh_token",
            "refresh_token": old.refresh,
            "client_id": self._oauth.client_id,
            **({"client_secret": secret.get_secret_value()} if secret else {}),
            # Google remembers the scope; Microsoft wants to hear it again.
            **({} if self._oauth.provider == "google" else {"scope": self._endpoints.scope}),
        }
