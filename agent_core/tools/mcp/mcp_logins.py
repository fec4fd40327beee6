"""The OAuth logins at MCP servers: `agent_core.oauth` keeps and renews them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from agent_core.oauth import (
    AskProvider,
    LoginRequired,
    OAuthTokens,
    RotatingToken,
    TokenStore,
    TokenUnavailable,
)
from agent_core.ports import Clock
from agent_core.state_folder import StateFolder
from agent_core.tools.mcp.server_connection import ServerUnavailable


class LoginNeeded(ServerUnavailable):
    """The server requires a login that does not exist yet; only a person can log in."""

    def __init__(self, server: str, why: str = "there is none yet") -> None:
        super().__init__(f"it needs a login ({why}): squidbot mcp login {server}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login(OAuthTokens):
    """
    The result of a person's login at ``url``, used for no other.

    ``resource`` is the target by RFC 8707; ``public``: the server is on the Internet, and so must be its
    provider.
    """

    url: str
    token_endpoint: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    secret_in_header: bool = False
    resource: str = ""
    public: bool = True


class LoginFile(TokenStore[Login]):
    """The login at one address, as a document; a login at another ``url`` is never used."""

    def __init__(self, path: Path, url: str, state: StateFolder | None = None) -> None:
        super().__init__(path, lambda stored: Login.decode(stored) if stored["url"] == url else None, state)
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
        """Delete the login; returns True if there was one."""
        self._state.remove(self._need)
        return self._state.remove(self.path.name)

    def login_notice_key(self) -> str:
        """Return the id of a needed login: stable over restarts, new after each login. Raises OSError."""
        if (kept := self._state.read(self._need)) is not None:
            return kept.decode("ascii") or "told"
        need = secrets.token_hex(8)
        self._state.write(self._need, need.encode())
        return need


class Bearer:
    """The access token of one server (``name``); ``ask`` requests a renewal."""

    def __init__(self, name: str, store: LoginFile, clock: Clock, ask: AskProvider[Login]) -> None:
        self._name = name
        self._token = RotatingToken(store, clock, ask)

    async def token(self) -> str:
        """Return a usable token. Raises LoginNeeded (a person must act) or ServerUnavailable."""
        try:
            return (await self._token.get()).access
        except LoginRequired as error:
            why = f"the provider does not renew it: {error}" if error.revoked else str(error)
            raise LoginNeeded(self._name, why or "there is none yet") from error
        except TokenUnavailable as error:
            raise ServerUnavailable(f"its login cannot be used now: {error}") from error

    def note_refused_token(self, token: str) -> bool:
        """Note that the server rejected a token; returns True if another one may help."""
        return self._token.note_refused_token(token)

    def login_error(self) -> LoginNeeded:
        """Return the error where the server takes no token, however new."""
        return LoginNeeded(self._name, "it does not accept the present one")
