"""
OAuth access tokens: stored on disk and renewed before they expire, by one process at a time.

A refresh token is as good as a password. It is kept in ``state/<channel>/oauth.json`` with mode 0600, and
nothing of it is ever logged. Providers give a new one now and then; the newest counts.

What fails: a provider that is away is asked again with a back-off, and the token in hand is used as long as
it lives. A refresh token that the provider has revoked (``invalid_grant``) is not used again before the
next start: only a person can get another one, and further requests would look like an attack.

Many providers revoke the old refresh token as soon as they have issued a new one. So the file always contains
the newest known token: nothing is ever deleted from it, the provider is asked only while the file can
be written, and a token that could not be written stays in memory until it is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import anyio
import anyio.to_thread
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.state_folder import DiskFolder, StateAway, StateFolder
from channels.base import ChannelAuthFailed, ChannelUnavailable, Clock
from channels.email.auth.credentials import Login
from channels.email.config import OAuth

EARLY_S = 300.0
_RETRY = BackoffPolicy(first_s=10.0, cap_s=900.0, jitter=0)
USUAL_LIFE_S = 3600
LONGEST_LIFE_S = 400 * 86_400
CLAIMED_S = 60.0
HARDLY_OLD_S = 120.0
"""A token younger than this that is refused is not wrong because of its age."""
_AGAIN = "log in again: squidbot email login"
_log = structlog.get_logger(__name__)


class ProviderRefused(Exception):
    """The provider's token endpoint refused; ``code`` is its error code (RFC 6749, section 5.2)."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code = code
        super().__init__(f"{code}: {detail}" if detail else code)


class ProviderAway(Exception):
    """The provider does not respond, or not sensibly."""


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
        access, refresh = answer.get("access_token"), answer.get("refresh_token") or old_refresh
        if not _is_token(access) or not _is_token(refresh):
            raise ProviderAway("its answer contains no tokens")
        return cls(refresh, access, now.timestamp() + _life_s(answer.get("expires_in")))


def _is_token(value: object) -> TypeGuard[str]:
    """Printable ASCII (RFC 6749, appendix A.12)."""
    return isinstance(value, str) and value.isascii() and value.isprintable() and value != ""


def _life_s(told: object) -> float:
    try:
        life_s = float(told)  # type: ignore[arg-type]  # whatever it is, there is an answer
    except (TypeError, ValueError, OverflowError):
        return USUAL_LIFE_S
    return life_s if 0 < life_s <= LONGEST_LIFE_S else USUAL_LIFE_S


class TokenFile:
    """
    The tokens of a mailbox, as a document of its state.

    Args:
        path: The file; it and its folder are for its owner alone.
        state: The folder of that file, if it is not on disk.
    """

    def __init__(self, path: Path, state: StateFolder | None = None) -> None:
        self.path = path
        self._state = state or DiskFolder(path.parent)

    def load(self) -> Tokens | None:
        """
        The stored tokens; None if there are none that can be used. It waits for a disk or a server: call it
        in a thread. Raises `StateAway`.
        """
        try:
            return self._read()
        except StateAway:
            raise
        except OSError as exc:
            self._unreadable(exc)
            return None

    def save(self, tokens: Tokens) -> None:
        """
        Replace the stored tokens, durably; nobody else can read them at any moment.

        Raises:
            OSError: It cannot be done; what was there before is still there.
        """
        self._state.write(self.path.name, _as_bytes(tokens))

    def renew(self, old_refresh: str, new: Tokens) -> Tokens | None:
        """
        Replace the tokens that these were fetched with; returns the stored ones. If somebody has logged in
        again meanwhile, or deleted the file, that stays.

        Raises:
            OSError: It cannot be done; what was there before is still there.
        """
        raw = self._state.read(self.path.name)
        kept = self._tokens_in(raw)
        if raw is None or kept is None or kept.refresh != old_refresh:
            return kept
        return self._tokens_in(self._state.swap(self.path.name, raw, _as_bytes(new)))

    def _read(self) -> Tokens | None:
        return self._tokens_in(self._state.read(self.path.name))

    def _tokens_in(self, raw: bytes | None) -> Tokens | None:
        try:
            kept = None if raw is None else json.loads(raw)
            if kept is None:
                return None
            return Tokens(str(kept["refresh"]), str(kept["access"]), float(kept["ends_at"]))
        except (ValueError, KeyError, TypeError) as exc:
            self._unreadable(exc)
            return None

    def _unreadable(self, exc: Exception) -> None:
        _log.error("oauth.unreadable", file=str(self.path), error=type(exc).__name__)

    def try_out(self) -> bool:
        """
        Check that tokens can be stored before they are asked for. False: another process is asking right now.

        Raises:
            OSError: It could not.
        """
        return self._state.claim(self.path.name, for_s=CLAIMED_S)


def _as_bytes(tokens: Tokens) -> bytes:
    return json.dumps(asdict(tokens)).encode()


class TokenCredentials:
    """Logins with tokens, renewed in time."""

    def __init__(self, username: str, oauth: OAuth, file: TokenFile, ask: AskProvider, clock: Clock) -> None:
        self._username = username
        self._oauth = oauth
        self._endpoints = Endpoints.of(oauth)
        self._file = file
        self._ask = ask
        self._clock = clock
        self._one_at_a_time = anyio.Lock()
        self._tokens: Tokens | None = None
        self._unsaved_after: str | None = None
        """Set while ``_tokens`` is not in the file: the refresh token that is there in its place."""
        self._taken_back = ""
        self._got_at: float | None = None
        self._failures = 0
        self._not_before = 0.0

    async def get(self) -> Login:
        """See `channels.email.auth.credentials.Credentials.get`."""
        async with self._one_at_a_time:
            # Somebody may have logged in anew meanwhile, so the file is always looked at.
            if self._tokens is not None and self._unsaved_after is not None:
                kept = await self._saved(self._tokens, instead_of=self._unsaved_after)
            else:
                try:
                    kept = await anyio.to_thread.run_sync(self._file.load)
                except StateAway as exc:
                    raise ChannelUnavailable(f"the token of {self._username} cannot be read: {exc}") from exc
            if kept is None:
                raise self._without()
            if kept.refresh == self._taken_back:
                raise ChannelAuthFailed(f"the provider has revoked the access to {self._username}; {_AGAIN}")
            if self._tokens is None or kept.refresh != self._tokens.refresh:
                self._tokens, self._failures, self._not_before = kept, 0, 0.0
            left_s = self._tokens.ends_at - self._clock.now().timestamp()
            if left_s <= EARLY_S or not self._tokens.access:
                await self._refresh(self._tokens, still_good=left_s > 0 and bool(self._tokens.access))
            if not self._tokens.access:  # a login came meanwhile, which has to be renewed first
                raise ChannelUnavailable(f"no token for {self._username} yet", retry_after_s=1.0)
            return Login(self._username, self._tokens.access, self._oauth.mechanism)

    def _without(self) -> ChannelAuthFailed:
        self._tokens = None
        return ChannelAuthFailed(f"there is no token for {self._username}; {_AGAIN}")

    def refused(self) -> None:
        """The server rejected the token: it is fetched again, unless it was new."""
        age_s = None if self._got_at is None else self._clock.monotonic() - self._got_at
        if self._tokens is not None and (age_s is None or age_s > HARDLY_OLD_S):
            self._tokens = Tokens(self._tokens.refresh)

    async def _refresh(self, old: Tokens, *, still_good: bool) -> None:
        wait_s = self._not_before - self._clock.monotonic()
        try:
            # Whoever asks must hear the answer: the old token may be worth nothing once it is on its way.
            with anyio.CancelScope(shield=True):
                new = await self._asked(old, wait_s)
                self._failures, self._not_before = 0, 0.0
                kept = await self._saved(new, instead_of=self._unsaved_after or old.refresh)
                if kept is None:
                    raise self._without()
                self._tokens, self._got_at = kept, self._clock.monotonic()
        except ProviderRefused as exc:
            if exc.code in {"invalid_grant", "interaction_required", "consent_required"}:
                self._taken_back = old.refresh
                raise ChannelAuthFailed(
                    f"the provider has revoked the access to {self._username} ({exc}); {_AGAIN}"
                ) from exc
            raise ChannelAuthFailed(
                f"the provider refuses to renew the token of {self._username} ({exc}); check client_id, "
                "client_secret and scope"
            ) from exc
        except ProviderAway as exc:
            if wait_s <= 0:
                self._failures += 1
                wait_s = _RETRY.ceiling(self._failures)
                self._not_before = self._clock.monotonic() + wait_s
                _log.warning("oauth.not_renewed", error=str(exc), retry_in_s=round(wait_s, 1))
            if still_good:
                return
            raise ChannelUnavailable(
                f"no new token for {self._username} at the moment: {exc}", retry_after_s=wait_s
            ) from exc
        _log.info("oauth.renewed", lives_s=round(new.ends_at - self._clock.now().timestamp()))

    async def _saved(self, new: Tokens, *, instead_of: str) -> Tokens | None:
        """
        What counts after it was saved, see `TokenFile.renew`. What the disk does not take now is tried again
        at the next look.
        """
        try:
            kept = await anyio.to_thread.run_sync(self._file.renew, instead_of, new)
        except OSError as exc:
            self._unsaved_after = instead_of
            _log.error("oauth.not_saved", file=str(self._file.path), error=exc.strerror)
            return new
        self._unsaved_after = None
        return kept

    async def _asked(self, old: Tokens, wait_s: float) -> Tokens:
        if wait_s > 0:
            raise ProviderAway("it did not answer a moment ago")
        try:
            mine = await anyio.to_thread.run_sync(self._file.try_out)
        except OSError as exc:
            raise ProviderAway(f"not asked, because its answer could not be stored: {exc.strerror}") from exc
        if not mine:
            raise ProviderAway("another process is asking right now")
        answer = await self._ask(self._endpoints.token, self._form(old))
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
