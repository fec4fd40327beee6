"""
The account's login: from a configured token, from the stored one, by password, or by a person's own login. A
token got by password is kept in ``session.json`` (0600), so that restarts do not add devices. Whoever meets a
refused token calls `MatrixLogin.renew` with it, and the first logs in. After a soft logout the device
remains; after a hard one transaction ids are lost, so `MatrixCredentials.since` says from when repetitions
are recognised. `MAX_IN_A_ROW` logins without a successful request end in `ChannelAuthFailed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from agent_core.oauth import LoginRequired, RotatingToken, TokenUnavailable
from agent_core.state_folder import StateFolder, StateUnreachable, state_in
from channels.base import (
    ChannelAuthFailed,
    ChannelClock,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
)
from channels.matrix.client.browser_login import ask_to_renew, provider_of, token_store
from channels.matrix.client.homeserver import (
    CLIENT,
    Homeserver,
    HttpAnswer,
    MatrixCredentials,
    ask,
    channel_error,
)
from channels.matrix.config import MatrixConfig

MAX_IN_A_ROW = 3
_REFUSED_PAUSE_S = 60.0
"""The time for which a new token does not count as expired."""
_FILE = "session.json"
_log = structlog.get_logger(__name__)


class ApprovalNeeded(ChannelAuthFailed):
    """The homeserver does this only after a person has agreed; the text says how."""


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    homeserver: str
    user_id: str
    device_id: str
    access_token: SecretStr
    since: float = 0.0


class MatrixLogin:
    """Keeps ``homeserver`` logged in."""

    def __init__(
        self, config: MatrixConfig, homeserver: Homeserver, state_dir: Path | StateFolder, clock: ChannelClock
    ) -> None:
        self._config = config
        self._homeserver = homeserver
        self._state = state_in(state_dir)
        self._unsaved: MatrixCredentials | None = None
        self._clock = clock
        self._lock = anyio.Lock()
        self._in_a_row = 0
        self._tokens = (
            RotatingToken(token_store(config, state_dir), clock, partial(ask_to_renew, provider_of(config)))
            if config.login == "browser"
            else None
        )

    async def enter(self) -> None:
        """Get stored credentials or log in. Raises ChannelError, see `Channel.run`."""
        if self._tokens is not None:
            await self.keep_fresh()
            return
        if self._config.access_token is not None:
            await self._use_given_token(self._config.access_token.get_secret_value())
            return
        if self._unsaved is not None:
            self._store(self._unsaved)
        stored = self._load()
        if stored is not None:
            self._homeserver.credentials = stored
            return
        async with self._lock:
            await self._by_password(device_id=self._config.device_id)

    async def keep_fresh(self) -> None:
        """Renew a token that expires soon, where somebody has logged in by a browser. Raises ChannelError."""
        if self._tokens is None:
            return
        try:
            self._homeserver.credentials = (await self._tokens.get()).credentials
        except LoginRequired as error:
            why = "the server has ended the login of" if error.revoked else "nobody has logged in yet as"
            raise ChannelAuthFailed(f"{why} {self._config.user_id}; log in: squidbot matrix login") from error
        except TokenUnavailable as error:
            raise ChannelUnavailable(
                f"no new token for {self._config.user_id} at the moment: {error}",
                retry_after_s=error.retry_after_s,
            ) from error

    async def renew(self, refused: MatrixCredentials, answer: HttpAnswer) -> None:
        """Log in again after ``answer`` rejected the token ``refused``. Raises ChannelError."""
        async with self._lock:
            current = self._homeserver.credentials
            if current is not None and current.access_token != refused.access_token:
                return
            if self._config.access_token is not None:
                raise ChannelAuthFailed(
                    "the homeserver no longer accepts the access token (that of another client may expire "
                    "within minutes): configure a password, so that squidbot can log in by itself, or login: "
                    "browser, or a new access_token with its device_id"
                )
            self._in_a_row += 1
            if self._in_a_row > MAX_IN_A_ROW:
                self._in_a_row = 0
                self._forget()
                raise ChannelAuthFailed("the homeserver accepts the login but refuses the new token at once")
            _log.warning("matrix.token_refused", soft=answer.soft_logout, device=refused.device_id)
            if self._tokens is not None:
                if not self._tokens.note_refused_token(refused.access_token):
                    raise ChannelUnavailable(
                        "the homeserver refuses a new token", retry_after_s=_REFUSED_PAUSE_S
                    )
                await self.keep_fresh()
            elif answer.soft_logout:
                await self._by_password(device_id=refused.device_id, before=refused)
            else:
                await self._by_password(device_id=self._config.device_id)

    def note_success(self) -> None:
        """Note that a request with the current token succeeded."""
        self._in_a_row = 0

    @property
    def user_id(self) -> str:
        """Return the user id of this account."""
        return self._config.user_id

    @property
    def has_password(self) -> bool:
        """Return True if a password is configured and no access token replaces it."""
        return self._config.password is not None and self._config.access_token is None

    @property
    def can_request(self) -> bool:
        """Return True if a request that needs more than the token may succeed."""
        return self.has_password or self._tokens is not None

    async def replace_device(self, old: MatrixCredentials, reason: str) -> None:
        """Replace the device, whose keys are unusable. Raises ChannelMisconfigured or ChannelError."""
        async with self._lock:
            if self._homeserver.credentials != old:
                return
            if self._tokens is not None:
                raise ChannelMisconfigured(
                    f"encryption cannot continue with the device {old.device_id}, because {reason}: log in "
                    "again (squidbot matrix login), which makes a new device"
                )
            if not self.has_password or self._config.device_id is not None:
                key = "access_token and device_id" if not self.has_password else "device_id"
                raise ChannelMisconfigured(
                    f"encryption cannot continue with the device {old.device_id}, because {reason}: "
                    f"configure a new {key}, or only a password, so that squidbot can create a new device "
                    "by itself"
                )
            # The room's searches for what the old device may have sent begin here.
            await self._by_password(device_id=None)
        try:
            await self.with_password("POST", f"{CLIENT}/delete_devices", {"devices": [old.device_id]})
        except ChannelError as error:
            _log.warning("matrix.device_undeleted", device=old.device_id, error=str(error))

    async def with_password(self, method: str, path: str, body: Mapping[str, Any]) -> HttpAnswer:
        """Make a request that may need the password again. Raises ChannelAuthFailed, ChannelError."""
        answer = await ask(self._homeserver, method, path, body)
        password = self._config.password
        if answer.status == 401 and isinstance(answer.body.get("flows"), list):
            if password is None:
                raise ApprovalNeeded(_approval_needed(answer.body))
            auth = {
                "type": "m.login.password",
                "identifier": {"type": "m.id.user", "user": self._config.user_id},
                "password": password.get_secret_value(),
                "session": answer.body.get("session"),
            }
            answer = await ask(self._homeserver, method, path, {**body, "auth": auth})
        if not answer.is_success:
            raise channel_error(answer)
        return answer

    async def _use_given_token(self, token: str) -> None:
        device_id = self._config.device_id or ""
        self._homeserver.credentials = MatrixCredentials(self._config.user_id, device_id, token)
        answer = await ask(self._homeserver, "GET", f"{CLIENT}/account/whoami")
        if answer.is_token_refused:
            raise ChannelAuthFailed(
                "the homeserver does not accept the configured access_token (that of another client may "
                "expire within minutes): configure a password or login: browser instead, or get a new one "
                "(in Element: Settings, Help & About, Access Token)"
            )
        if not answer.is_success:
            raise channel_error(answer)
        user_id = answer.body.get("user_id")
        if user_id != self._config.user_id:
            raise ChannelMisconfigured(
                f"the access_token belongs to {user_id}, but user_id says {self._config.user_id}"
            )
        theirs = answer.body.get("device_id", device_id)
        if theirs != device_id:
            raise ChannelMisconfigured(
                f"the access_token belongs to the device {theirs}, but device_id says {device_id}"
            )

    async def _by_password(self, *, device_id: str | None, before: MatrixCredentials | None = None) -> None:
        password = self._config.password
        assert password is not None, "the settings demand a password where there is no token"
        body: dict[str, Any] = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": self._config.user_id},
            "password": password.get_secret_value(),
            "initial_device_display_name": self._config.device_name,
        }
        if device_id:
            body["device_id"] = device_id
        answer = await ask(self._homeserver, "POST", f"{CLIENT}/login", body, anonymous=True)
        if not answer.is_success:
            raise _login_problem(answer, self._config)
        credentials = self._granted(answer.body, before)
        self._homeserver.credentials = credentials
        self._store(credentials)
        _log.info("matrix.logged_in", user=credentials.user_id, device=credentials.device_id)

    def _granted(self, body: Mapping[str, Any], before: MatrixCredentials | None) -> MatrixCredentials:
        user_id, device_id, token = (body.get(key) for key in ("user_id", "device_id", "access_token"))
        if not (isinstance(user_id, str) and isinstance(device_id, str) and isinstance(token, str)):
            raise ChannelUnavailable("the homeserver's answer to the login is not a login")
        if user_id != self._config.user_id:
            raise ChannelMisconfigured(
                f"the homeserver knows this account as {user_id}; write that as user_id "
                f"(now {self._config.user_id})"
            )
        same = before is not None and before.device_id == device_id
        since = before.since if before is not None and same else self._clock.now().timestamp()
        return MatrixCredentials(user_id, device_id, token, since)

    def _load(self) -> MatrixCredentials | None:
        """The stored token, unless it is somebody else's or unreadable."""
        try:
            kept = self._state.read(_FILE)
            stored = None if kept is None else _Stored.model_validate_json(kept)
        except StateUnreachable as error:
            raise ChannelUnavailable(f"the login cannot be read: {error}") from error
        except (OSError, ValidationError) as error:
            _log.warning("matrix.session_unreadable", path=self._where, error=type(error).__name__)
            return None
        if stored is None:
            return None
        if (stored.homeserver, stored.user_id) != (self._config.homeserver, self._config.user_id):
            return None
        if self._config.device_id is not None and stored.device_id != self._config.device_id:
            return None
        return MatrixCredentials(
            stored.user_id, stored.device_id, stored.access_token.get_secret_value(), stored.since
        )

    def _store(self, credentials: MatrixCredentials) -> None:
        """Keep the token. Without it the next start logs in once more, which is no reason to fail now."""
        content = {
            "homeserver": self._config.homeserver,
            "user_id": credentials.user_id,
            "device_id": credentials.device_id,
            "access_token": credentials.access_token,
            "since": credentials.since,
        }
        self._unsaved = credentials
        try:
            self._state.write(_FILE, json.dumps(content).encode())
        except StateUnreachable as error:  # another machine would log in as another device
            raise ChannelUnavailable(f"the login cannot be stored: {error}") from error
        except OSError as error:
            _log.error("matrix.session_unsaved", path=self._where, error=str(error))
        self._unsaved = None

    def _forget(self) -> None:
        try:
            self._state.remove(_FILE)
        except OSError as error:
            _log.warning("matrix.session_undeleted", path=self._where, error=str(error))

    @property
    def _where(self) -> str:
        return f"{self._state}/{_FILE}"


def _approval_needed(asked: Mapping[str, Any]) -> str:
    """Return where a person agrees to a request (Matrix specification, ``m.oauth``)."""
    params = asked.get("params")
    place = params.get("m.oauth") if isinstance(params, dict) else None
    url = place.get("url") if isinstance(place, dict) else None
    if isinstance(url, str) and url.startswith(("https://", "http://")) and url.isprintable():
        return f"open {url} in a browser, logged in as the bot, agree there, and restart squidbot soon after"
    return "the homeserver requires the account's password for this"


def _login_problem(answer: HttpAnswer, config: MatrixConfig) -> ChannelError:
    if answer.errcode == "M_FORBIDDEN":
        return ChannelAuthFailed(
            f"the homeserver does not accept user_id {config.user_id} with this password: check both; if "
            "they worked before, the password was changed or the account was deactivated",
            errcode=answer.errcode,
        )
    if answer.errcode in ("M_UNKNOWN", "M_UNRECOGNIZED") and answer.status in (400, 404):
        return ChannelMisconfigured(
            f"the homeserver does not accept passwords ({answer.error}): configure login: browser instead of "
            "the password, and run: squidbot matrix login",
            errcode=answer.errcode,
        )
    if not answer.errcode and answer.status in (404, 405):
        return ChannelMisconfigured(
            f"there is no Matrix client API at {config.homeserver}: is that the homeserver's own address?",
            status=answer.status,
        )
    return channel_error(answer)
