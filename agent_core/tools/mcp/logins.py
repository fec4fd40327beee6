"""The OAuth logins at MCP servers: `agent_core.oauth` keeps and renews them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from agent_core.ports import Clock
from agent_core.state_folder import StateFolder
from agent_core.tools.mcp.link import ServerUnavailable

_FINAL = frozenset({"invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type"})
"""What no later question changes (RFC 6749, section 5.2). The others say nothing of the login."""
_RETRY = BackoffPolicy(first_s=5.0, cap_s=300.0, jitter=0)


class LoginNeeded(ServerUnavailable):
    """The server requires a login that does not exist yet; only a person can log in."""

    def __init__(self, server: str, why: str = "there is none yet") -> None:
        super().__init__(f"it needs a login ({why}): squidbot mcp login {server}")


class TokenRefused(Exception):
    """The token endpoint refused; ``code`` is its error code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Login:
    """
    The result of a person's login.

    Args:
        url: Of the server that it is for; for another one it is never used.
        ends_at: Of the access token, in seconds since 1970.
        token_endpoint: Where it is renewed.
        resource: What it is for, as the provider wants to hear it (RFC 8707).
        public: The server was one of the public Internet, so its provider has to be one, too.
    """

    url: str
    token_endpoint: str
    client_id: str
    access: str = field(repr=False)
    refresh: str = field(default="", repr=False)
    ends_at: float = 0.0
    client_secret: str = field(default="", repr=False)
    secret_in_header: bool = False
    resource: str = ""
    public: bool = True


AskTokens = Callable[[Login], Awaitable[Mapping[str, Any]]]
"""
Asks the provider for new tokens; gives its answer.

Raises:
    TokenRefused: It says no.
    ServerUnavailable: It does not answer, or not sensibly.
"""


class LoginFile(TokenStore[Login]):
    """
    The login at one address, as a document of the servers' state.

    Args:
        url: A login at another one is never used.
    """

    def __init__(self, path: Path, url: str, state: StateFolder | None = None) -> None:
        super().__init__(path, lambda kept: login if (login := Login(**kept)).url == url else None, state)
        self._need = path.with_suffix(".told").name

    def save(self, tokens: Login) -> None:
        """See `TokenStore.save`."""
        super().save(tokens)
        self._state.remove(self._need)

    def renew(self, old: Login, new: Login) -> Login | None:
        """See `TokenStore.renew`."""
        kept = super().renew(old, new)
        if kept == new:
            self._state.remove(self._need)
        return kept

    def forget(self) -> bool:
        """Delete the login; returns whether there was one."""
        self._state.remove(self._need)
        return self._state.remove(self.path.name)

    def need(self) -> str:
        """
        A name for the need of a login: the same one over restarts, and another one after each login.

        Raises:
            OSError: It could not be kept.
        """
        if (kept := self._state.read(self._need)) is not None:
            return kept.decode("ascii") or "told"
        need = secrets.token_hex(8)
        self._state.write(self._need, need.encode())
        return need


class Bearer:
    """
    The access token of one server.

    Args:
        name: The server's, for people.
    """

    def __init__(self, name: str, file: LoginFile, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._token = RotatingToken(file, clock, early_s=60.0, hardly_old_s=30.0, retry=_RETRY)

    async def token(self, ask: AskTokens) -> str:
        """
        A token that can be used now.

        Raises:
            LoginNeeded: Only a person can get one.
            ServerUnavailable: There is none at the moment.
        """

        async def renewed(old: Login) -> Login:
            try:
                answer = await ask(old)
            except ServerUnavailable as error:
                raise ProviderAway(str(error)) from error
            except TokenRefused as error:
                if error.code in _FINAL:
                    raise TokenRevoked(error.code) from error
                raise ProviderAway(f"the provider says {error.code}") from error
            if not (access := token_in(answer, "access_token")):
                raise ProviderAway("the answer of its login provider contains no token")
            return replace(
                old,
                access=access,
                refresh=token_in(answer, "refresh_token") or old.refresh,
                ends_at=self._clock.now().timestamp() + lifetime_s(answer.get("expires_in")),
            )

        try:
            return (await self._token.get(renewed)).access
        except LoginRequired as error:
            why = f"the provider does not renew it: {error}" if error.revoked else str(error)
            raise LoginNeeded(self._name, why or "there is none yet") from error
        except TokenUnavailable as error:
            raise ServerUnavailable(f"its login cannot be used now: {error}") from error

    def refused(self, token: str) -> bool:
        """The server rejected a token; returns whether another one may help."""
        return self._token.report_refused(token)

    def needed(self) -> LoginNeeded:
        """The error where the server takes no token, however new."""
        return LoginNeeded(self._name, "it does not accept the present one")
