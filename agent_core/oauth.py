"""
OAuth tokens that their provider rotates: stored, and renewed before they expire, by one process at a time. A
refresh token is as good as a password: it is in a document for its owner alone, and never logged. Many
providers revoke the old one as soon as they have issued a new one. So the provider is asked only while its
answer can be stored, the answer is read also when the caller has been cancelled, and the new token is durable
before it is used; one that could not be stored stays in memory until it is. A revoked one is not used again:
only a person can log in anew.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import anyio
import anyio.to_thread
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.ports import Clock
from agent_core.state_folder import DiskFolder, StateFolder, StateUnreachable
from agent_core.text import one_line

_USUAL_LIFE_S = 3600.0
_EARLY_S = 120.0
"""A token is renewed this long before it expires, so that a login does not outlive it."""
_NEW_S = 60.0
"""A token that is refused so soon after it was fetched is not refused because of its age."""
_RETRY = BackoffPolicy(first_s=5.0, cap_s=900.0, jitter=0)
_FINAL = frozenset(
    {"invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}
    | {"interaction_required", "consent_required"}
)
"""What no later question changes (RFC 6749, section 5.2, and two of Microsoft's)."""
_log = structlog.get_logger(__name__)


class ProviderUnreachable(Exception):
    """The provider does not respond, or not sensibly."""


class ProviderRefused(Exception):
    """The provider answers with an error; ``code`` is its name (RFC 6749, section 5.2)."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code = code
        super().__init__(f"{code}: {detail}" if detail else code)


class LoginRequired(Exception):
    """Only a person can get another token. ``revoked``: the provider has refused the last one."""

    def __init__(self, why: str = "", *, revoked: bool = False) -> None:
        super().__init__(why)
        self.revoked = revoked


class TokenUnavailable(Exception):
    """There is no token at the moment."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthTokens:
    """
    The tokens of a login, and what a subclass needs to renew them.

    ``refresh`` and ``access`` are empty if missing; ``ends_at`` is the end of ``access`` as Unix time.
    """

    refresh: str = field(default="", repr=False)
    access: str = field(default="", repr=False)
    ends_at: float = 0.0

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> Self | None:
        """Read a stored document; None: it is of another login. Raises ValueError, KeyError, TypeError."""
        return cls(**{**stored, "ends_at": float(stored["ends_at"])})

    def renew_from(self, answer: Mapping[str, Any], now_s: float) -> Self:
        """Return the tokens renewed by an answer at Unix time ``now_s``. Raises `ProviderUnreachable`."""
        if not (access := token_in(answer, "access_token")):
            raise ProviderUnreachable("its answer contains no tokens")
        refresh = token_in(answer, "refresh_token") or self.refresh
        return replace(
            self, access=access, refresh=refresh, ends_at=now_s + lifetime_s(answer.get("expires_in"))
        )


_T = TypeVar("_T", bound=OAuthTokens)
AskProvider = Callable[[_T], Awaitable[Mapping[str, Any]]]
"""Asks an endpoint to renew tokens; returns its answer. Raises ProviderUnreachable or ProviderRefused."""


class TokenStore(Generic[_T]):
    """
    The tokens of a login, as a private document. Everything blocks: call it in a thread.

    ``decode``: see `OAuthTokens.decode`; ``state`` replaces the disk.
    """

    def __init__(
        self, path: Path, decode: Callable[[Mapping[str, Any]], _T | None], state: StateFolder | None = None
    ) -> None:
        self.path = path
        self._decode = decode
        self._state = state or DiskFolder(path.parent)

    def load(self) -> _T | None:
        """The stored tokens; None if there are none that can be used. Raises `StateUnreachable`."""
        try:
            return self._tokens_in(self._state.read(self.path.name))
        except StateUnreachable:
            raise
        except OSError as error:
            self._log_unreadable(error)
            return None

    def save(self, tokens: _T) -> None:
        """Replace the stored tokens durably. Raises OSError; the earlier ones then stay."""
        self._state.write(self.path.name, _encode(tokens))

    def renew(self, old: _T, new: _T) -> _T | None:
        """Replace ``old`` tokens and return the stored ones; a concurrent login stays. Raises OSError."""
        raw = self._state.read(self.path.name)
        found = self._tokens_in(raw)
        if raw is None or found != old:
            return found
        return self._tokens_in(self._state.swap(self.path.name, raw, _encode(new)))

    def claim(self) -> bool:
        """Check that tokens can be stored (else OSError). False: another process is logging in."""
        return self._state.claim(self.path.name, for_s=60.0)

    def _tokens_in(self, raw: bytes | None) -> _T | None:
        try:
            return None if raw is None else self._decode(json.loads(raw))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._log_unreadable(error)
            return None

    def _log_unreadable(self, error: Exception) -> None:
        _log.error("oauth.unreadable", file=str(self.path), error=type(error).__name__)


def _encode(tokens: OAuthTokens) -> bytes:
    return json.dumps(asdict(tokens)).encode()


class RotatingToken(Generic[_T]):
    """The token of one login, renewed in time by ``ask``."""

    def __init__(self, store: TokenStore[_T], clock: Clock, ask: AskProvider[_T]) -> None:
        self.store = store
        self._clock = clock
        self._ask = ask
        self._one_at_a_time = anyio.Lock()
        self._unsaved: tuple[_T, _T] | None = None
        """What is in the document, and what belongs in its place."""
        self._refused = ""
        self._revoked: tuple[str, str] | None = None
        self._asked_with = ""
        self._got_at: float | None = None
        self._failures = 0
        self._not_before = 0.0

    async def get(self) -> _T:
        """Return usable tokens. Raises LoginRequired (a person must act) or TokenUnavailable (for now)."""
        async with self._one_at_a_time:
            tokens = await self._current()
            left_s = tokens.ends_at - self._clock.now().timestamp()
            is_usable = left_s > 0 and tokens.access not in ("", self._refused)
            if is_usable and (left_s > _EARLY_S or not tokens.refresh):
                return tokens
            if not tokens.refresh:
                raise LoginRequired("it has expired and cannot be renewed")
            try:
                # Whoever asks must get the answer: the old token may be worth nothing once it is on its way.
                with anyio.CancelScope(shield=True):
                    tokens = await self._renew(tokens)
            except TokenUnavailable:
                if not is_usable:
                    raise
            if not tokens.access:
                raise TokenUnavailable("somebody has just logged in again", 1.0)
            return tokens

    def note_refused_token(self, access: str) -> bool:
        """Note that the server rejected a token; returns True if another one may help."""
        age_s = None if self._got_at is None else self._clock.monotonic() - self._got_at
        if access == self._refused or (age_s is not None and age_s < _NEW_S):
            return False
        self._refused = access
        return True

    async def _current(self) -> _T:
        """The newest tokens: somebody may have logged in or out meanwhile, so the document is always read."""
        if self._unsaved is not None:
            tokens = await self._save(*self._unsaved)
        else:
            try:
                tokens = await anyio.to_thread.run_sync(self.store.load)
            except StateUnreachable as error:
                raise TokenUnavailable(f"it cannot be read: {error}", _RETRY.first_s) from error
        if tokens is None:
            raise LoginRequired
        if self._revoked is not None and self._revoked[0] == tokens.refresh:
            raise LoginRequired(self._revoked[1], revoked=True)
        return tokens

    async def _renew(self, old: _T) -> _T:
        if old.refresh != self._asked_with:
            self._asked_with, self._failures, self._not_before = old.refresh, 0, 0.0
        wait_s = self._not_before - self._clock.monotonic()
        if wait_s > 0:
            raise TokenUnavailable("the provider was asked in vain a moment ago", wait_s)
        try:
            is_claimed = await anyio.to_thread.run_sync(self.store.claim)
        except OSError as error:
            why = f"the provider is not asked, because its answer could not be stored: {error.strerror}"
            raise TokenUnavailable(why, _RETRY.first_s) from error
        if not is_claimed:
            raise TokenUnavailable("another process is renewing it right now", _RETRY.first_s)
        try:
            new = old.renew_from(await self._ask(old), self._clock.now().timestamp())
        except (ProviderUnreachable, ProviderRefused) as error:
            if isinstance(error, ProviderRefused) and error.code in _FINAL:
                self._revoked = old.refresh, str(error)
                raise LoginRequired(str(error), revoked=True) from error
            self._failures += 1
            wait_s = _RETRY.ceiling(self._failures)
            self._not_before = self._clock.monotonic() + wait_s
            _log.warning("oauth.not_renewed", file=self.store.path.name, error=str(error), retry_in_s=wait_s)
            raise TokenUnavailable(str(error), wait_s) from error
        self._failures, self._not_before, self._got_at = 0, 0.0, self._clock.monotonic()
        kept = await self._save(old if self._unsaved is None else self._unsaved[0], new)
        if kept is None:
            raise LoginRequired
        lives_s = round(new.ends_at - self._clock.now().timestamp())
        _log.info("oauth.renewed", file=self.store.path.name, lives_s=lives_s)
        return kept

    async def _save(self, old: _T, new: _T) -> _T | None:
        """The tokens that count now, see `TokenStore.renew`. What cannot be stored is tried again later."""
        try:
            kept = await anyio.to_thread.run_sync(self.store.renew, old, new)
        except OSError as error:
            self._unsaved = (old, new)
            _log.error("oauth.not_saved", file=str(self.store.path), error=error.strerror)
            return new
        self._unsaved = None
        return kept


def read_answer(status: int, body: bytes) -> Mapping[str, Any]:
    """Read an OAuth endpoint's answer. Raises ProviderRefused (RFC 6749 error) or ProviderUnreachable."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    is_refusal = 400 <= status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS
    if is_refusal and isinstance(answer, dict) and isinstance(answer.get("error"), str):
        raise ProviderRefused(
            printable_line(answer["error"], 60), printable_line(answer.get("error_description"))
        )
    is_good = status in (HTTPStatus.OK, HTTPStatus.CREATED)
    if not is_good or not isinstance(answer, dict):
        raise ProviderUnreachable(f"it answers {status}{' with an unreadable body' if is_good else ''}")
    return answer


def printable_line(text: object, most: int = 200) -> str:
    """Return a text of a provider for a person: on one line, without what steers a terminal."""
    line = one_line(text, most) if isinstance(text, str) else ""
    return "".join(char for char in line if char.isprintable())


def token_in(answer: Mapping[str, Any], name: str) -> str:
    """A token in an answer: printable ASCII (RFC 6749, appendix A.12); empty if there is none."""
    value = answer.get(name)
    fit = isinstance(value, str) and value.isascii() and value.isprintable() and len(value) < 5461
    return str(value) if fit else ""


def lifetime_s(told: object) -> float:
    """The lifetime of a token by what its provider says of it; an hour if that has no sense."""
    try:
        life_s = float(told)  # type: ignore[arg-type]  # whatever it is, there is an answer
    except (TypeError, ValueError, OverflowError):
        return _USUAL_LIFE_S
    return life_s if 0 < life_s <= 400 * 86_400.0 else _USUAL_LIFE_S
