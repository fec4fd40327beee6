"""
OAuth logins at servers: stored on disk and renewed before they expire, by one process at a time.

A refresh token is as good as a password: it is in a file with mode 0600, and nothing of it is ever logged.
Many providers take the old one back as soon as they have given a new one. So the provider is asked only while
the file can be written, the answer is heard whoever has stopped waiting for it, and the new token is on disk
before it is used. What the provider has taken back is not used again: only a person can log in anew.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.ports import Clock
from agent_core.state_folder import DiskFolder, StateAway, StateFolder
from agent_core.tools.mcp.link import ServerUnavailable

_EARLY_S = 60.0
_USUAL_LIFE_S = 3600.0
_LONGEST_LIFE_S = 400 * 86_400.0
_HARDLY_OLD_S = 30.0
_LONGEST_TOKEN = 5461
_CLAIMED_S = 60.0
_FINAL = frozenset({"invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type"})
"""What no later question changes (RFC 6749, section 5.2). The others say nothing of the login."""
_RETRY = BackoffPolicy(first_s=5.0, cap_s=300.0, jitter=0)
_log = structlog.get_logger(__name__)


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


class LoginFile:
    """
    A login, as a document of the servers' state. Everything here waits for it, so call it in a thread.

    Args:
        path: It and its folder are for their owner alone.
        state: The folder of that file, if it is not on disk.
    """

    def __init__(self, path: Path, state: StateFolder | None = None) -> None:
        self.path = path
        self._state = state or DiskFolder(path.parent)
        self._need = path.with_suffix(".told").name

    def load(self, url: str) -> Login | None:
        """The login at this address; None if there is none that can be used. Raises `StateAway`."""
        try:
            return self._read(url)
        except StateAway:
            raise
        except OSError as error:
            self._unreadable(error)
            return None

    def save(self, login: Login) -> None:
        """
        Store the login; the earlier one stays until this one is durable.

        Raises:
            OSError: It could not be kept.
        """
        self._state.write(self.path.name, _as_bytes(login))
        self._state.remove(self._need)

    def renew(self, old: Login, new: Login) -> Login | None:
        """
        Replace the login that this one was made from; returns the stored one. If somebody has logged in or
        out meanwhile, that stays.

        Raises:
            OSError: It could not be kept.
        """
        raw = self._state.read(self.path.name)
        found = self._login_in(raw, old.url)
        if raw is None or found != old:
            return found
        kept = self._login_in(self._state.swap(self.path.name, raw, _as_bytes(new)), old.url)
        if kept == new:
            self._state.remove(self._need)
        return kept

    def forget(self) -> bool:
        """Delete the login; returns whether there was one."""
        self._state.remove(self._need)
        return self._state.remove(self.path.name)

    def try_out(self) -> bool:
        """
        Check that a login can be stored before it is asked for. False: another process is asking right now.

        Raises:
            OSError: It could not.
        """
        return self._state.claim(self.path.name, for_s=_CLAIMED_S)

    def _read(self, url: str) -> Login | None:
        return self._login_in(self._state.read(self.path.name), url)

    def _login_in(self, raw: bytes | None, url: str) -> Login | None:
        if raw is None:
            return None
        try:
            login = Login(**json.loads(raw))
        except (ValueError, TypeError) as error:
            self._unreadable(error)
            return None
        return login if login.url == url else None

    def _unreadable(self, error: Exception) -> None:
        _log.warning("mcp.login_unreadable", file=self.path.name, error=type(error).__name__)

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


def _as_bytes(login: Login) -> bytes:
    return json.dumps(asdict(login)).encode()


class Bearer:
    """
    The access token of one server.

    Args:
        name: The server's, for people.
    """

    def __init__(self, name: str, url: str, file: LoginFile, clock: Clock) -> None:
        self._name = name
        self._url = url
        self._file = file
        self._clock = clock
        self._one_at_a_time = anyio.Lock()
        self._unsaved: tuple[Login, Login] | None = None
        """What is in the file, and what belongs in its place."""
        self._refused = ""
        self._taken_back = ""
        self._got_at: float | None = None
        self._failures = 0
        self._not_before = 0.0

    async def token(self, ask: AskTokens) -> str:
        """
        A token that can be used now.

        Raises:
            LoginNeeded: Only a person can get one.
            ServerUnavailable: There is none at the moment.
        """
        async with self._one_at_a_time:
            login = await self._known()
            left_s = login.ends_at - self._clock.now().timestamp()
            refused = login.access == self._refused
            if left_s > _EARLY_S and not refused:
                return login.access
            if not login.refresh:
                if left_s > 0 and not refused:
                    return login.access
                raise LoginNeeded(self._name, "it has expired and cannot be renewed")
            try:
                # Whoever asks must hear the answer: the old token may be worth nothing once it is on its way.
                with anyio.CancelScope(shield=True):
                    login = await self._renewed(login, ask)
            except LoginNeeded:
                raise
            except ServerUnavailable:
                if left_s <= 0 or refused:
                    raise
            return login.access

    def refused(self, token: str) -> bool:
        """The server rejected a token; returns whether another one may help."""
        age_s = None if self._got_at is None else self._clock.monotonic() - self._got_at
        if token == self._refused or (age_s is not None and age_s < _HARDLY_OLD_S):
            return False
        self._refused = token
        return True

    def needed(self) -> LoginNeeded:
        """What is told where the server takes no token, however new."""
        return LoginNeeded(self._name, "it does not accept the present one")

    async def _known(self) -> Login:
        """The newest login: somebody may have logged in or out meanwhile, so the file is always looked at."""
        if self._unsaved is not None:
            login = await self._saved(*self._unsaved)
        else:
            try:
                login = await anyio.to_thread.run_sync(self._file.load, self._url)
            except StateAway as error:
                raise ServerUnavailable(f"its login cannot be read: {error}") from error
        if login is None:
            raise LoginNeeded(self._name)
        if login.refresh and login.refresh == self._taken_back:
            raise LoginNeeded(self._name, "the provider has revoked it")
        return login

    async def _renewed(self, old: Login, ask: AskTokens) -> Login:
        wait_s = self._not_before - self._clock.monotonic()
        if wait_s > 0:
            raise ServerUnavailable("its login could not be renewed a moment ago")
        try:
            mine = await anyio.to_thread.run_sync(self._file.try_out)
        except OSError as error:
            raise ServerUnavailable(
                f"its login is not renewed, because it could not be stored: {error.strerror}"
            ) from error
        if not mine:
            raise ServerUnavailable("another process is renewing its login right now")
        try:
            answer = await ask(old)
        except ServerUnavailable:
            self._failed()
            raise
        except TokenRefused as error:
            if error.code in _FINAL:
                self._taken_back = old.refresh
                raise LoginNeeded(self._name, f"the provider does not renew it: {error.code}") from error
            self._failed()
            raise ServerUnavailable(
                f"its login provider does not renew the login now: {error.code}"
            ) from error
        access = token_in(answer, "access_token")
        if not access:
            self._failed()
            raise ServerUnavailable("the answer of its login provider contains no token")
        self._failures, self._not_before = 0, 0.0
        new = replace(
            old,
            access=access,
            refresh=token_in(answer, "refresh_token") or old.refresh,
            ends_at=self._clock.now().timestamp() + lifetime_s(answer.get("expires_in")),
        )
        self._got_at = self._clock.monotonic()
        kept = await self._saved(old if self._unsaved is None else self._unsaved[0], new)
        if kept is None:
            raise LoginNeeded(self._name, "somebody has logged out")
        _log.info("mcp.login_renewed", server=self._name)
        return kept

    def _failed(self) -> None:
        self._failures += 1
        self._not_before = self._clock.monotonic() + _RETRY.ceiling(self._failures)

    async def _saved(self, old: Login, new: Login) -> Login | None:
        """
        What counts after it was kept, see `LoginFile.renew`. What the disk does not take now stays here, and
        is tried again at the next look.
        """
        try:
            kept = await anyio.to_thread.run_sync(self._file.renew, old, new)
        except OSError as error:
            self._unsaved = (old, new)
            _log.error("mcp.login_not_saved", server=self._name, error=error.strerror)
            return new
        self._unsaved = None
        return kept


def token_in(answer: Mapping[str, Any], name: str) -> str:
    """A token in an answer: printable ASCII (RFC 6749, appendix A.12); empty if there is none."""
    value = answer.get(name)
    fit = isinstance(value, str) and value.isascii() and value.isprintable() and len(value) < _LONGEST_TOKEN
    return str(value) if fit else ""


def lifetime_s(told: object) -> float:
    """The lifetime of a token, whatever a provider has said about it."""
    try:
        life_s = float(told)  # type: ignore[arg-type]  # whatever it is, there is an answer
    except (TypeError, ValueError, OverflowError):
        return _USUAL_LIFE_S
    return life_s if 0 < life_s <= _LONGEST_LIFE_S else _USUAL_LIFE_S
