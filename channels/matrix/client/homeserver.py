"""
The requests to a homeserver and the meaning of its answers. Imports no library. `Homeserver` is the interface
(``nio_homeserver.py``, doubles). Any status is an answer; none is a `LinkBroken`, which says whether the
request may have been accepted. Only JSON with an ``errcode`` is the homeserver's word: pages, empty bodies
and bare statuses come from proxies (seen: a 502 after the event was stored) and are never a final refusal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from agent_core.backoff import BackoffPolicy
from channels.base import (
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
)

CLIENT = "/_matrix/client/v3"
_MAX_WAIT_S = 600.0
RETRY = BackoffPolicy(first_s=1.0, cap_s=30.0, jitter=0.4)
"""For a request to the homeserver that failed."""
_TOKEN_CODES = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"})
_ACCOUNT_CODES = {
    "M_USER_DEACTIVATED": "this account has been deactivated",
    "M_USER_SUSPENDED": "this account has been suspended by the homeserver's administrators",
    "M_USER_LOCKED": "this account has been locked by the homeserver's administrators",
}
_PASSING_CODES = frozenset({"M_RESOURCE_LIMIT_EXCEEDED", "M_UNRECOGNIZED", "M_LIMIT_EXCEEDED"})


@dataclass(frozen=True, slots=True)
class MatrixCredentials:
    """A login. ``since`` (seconds since 1970) is when this device came into being, 0.0 if long ago."""

    user_id: str
    device_id: str
    access_token: str = field(repr=False)
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """
    A ``/sync`` request, which the server may hold for ``wait_s``.

    A room or invitation over ``part_bytes`` in the answer becomes ``null``.
    """

    since: str | None
    full_state: bool
    wait_s: float
    timeline_limit: int
    part_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """
    An HTTP answer; ``body`` is its JSON object or empty.

    ``retry_after_s`` is the longer of header and body.
    """

    status: int
    body: Mapping[str, Any]
    retry_after_s: float | None = None

    @property
    def is_success(self) -> bool:
        """Return True for a 2xx status."""
        return 200 <= self.status < 300

    @property
    def errcode(self) -> str:
        """The homeserver's error code; empty if the answer is not from a homeserver."""
        code = self.body.get("errcode")
        return code if isinstance(code, str) else ""

    @property
    def error(self) -> str:
        """The homeserver's words about the error, cut short."""
        text = self.body.get("error")
        return text[:300] if isinstance(text, str) else ""

    @property
    def is_token_refused(self) -> bool:
        """Return True if the access token is invalid."""
        return self.status == 401 and self.errcode in _TOKEN_CODES

    @property
    def soft_logout(self) -> bool:
        """Return True if the device still exists and only needs a new token."""
        return self.body.get("soft_logout") is True

    @property
    def wait_s(self) -> float:
        """Return the seconds to send the server nothing after a 429."""
        return min(self.retry_after_s or 5.0, _MAX_WAIT_S)


class LinkBroken(Exception):
    """
    There was no answer.

    ``maybe_taken``: the request had left, so the server may have acted on it. ``certificate``: the server
    was reached and is not believed to be who it says.
    """

    def __init__(self, detail: str, *, maybe_taken: bool, certificate: bool = False) -> None:
        self.maybe_taken = maybe_taken
        self.certificate = certificate
        super().__init__(detail)


class AnswerTooLong(LinkBroken):
    """The answer is too long to read; the same request will not get a shorter one."""


@dataclass(frozen=True, slots=True)
class Download:
    """
    A download; ``answer`` says if it exists. ``size_bytes`` is the server's claim or None.

    ``chunks`` raises `LinkBroken`, also after a silence.
    """

    answer: HttpAnswer
    size_bytes: int | None
    chunks: AsyncIterator[bytes]


class Homeserver(Protocol):
    """A connection to one homeserver. Every method ends within its limit, with an answer or `LinkBroken`."""

    credentials: MatrixCredentials | None
    """Whose token the requests carry; None: no token."""

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        anonymous: bool = False,
        part_bytes: int | None = None,
    ) -> HttpAnswer:
        """
        Make one request, once, ``anonymous`` without a token. ``path`` follows the server's address.

        ``part_bytes``: an object in a list of the answer that is longer becomes ``null``.
        """
        ...

    async def sync(self, request: SyncRequest) -> HttpAnswer:
        """Ask for news, once."""
        ...

    def download(
        self, path: str, *, query: Mapping[str, str] | None = None, anonymous: bool = False
    ) -> AbstractAsyncContextManager[Download]:
        """
        Fetch a file, once, piece by piece; leaving the context ends the request.

        Entering raises `LinkBroken`. How long the whole may take is the caller's business.
        """
        ...

    async def upload(
        self,
        path: str,
        content: AsyncIterator[bytes],
        *,
        size_bytes: int,
        media_type: str,
        query: Mapping[str, str] | None = None,
        timeout_s: float = 90.0,
    ) -> HttpAnswer:
        """Send a file, once. An exception of ``content`` goes through."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


def quote_path(text: str) -> str:
    """A room id, an event id or the like, encoded as one part of a path."""
    return quote(text, safe="")


def channel_error(answer: HttpAnswer) -> ChannelError:
    """Return the channel error of an answer, other than a refused token, which needs a login first."""
    if answer.errcode in _ACCOUNT_CODES:
        return ChannelAuthFailed(
            f"the homeserver says: {_ACCOUNT_CODES[answer.errcode]}", status=answer.status
        )
    if answer.status == 429:
        return ChannelUnavailable(
            "the homeserver limits the rate of requests (429)", retry_after_s=answer.wait_s, status=429
        )
    said = (
        f"{answer.errcode} {answer.error}".strip()
        or "this is not an answer of a Matrix homeserver; is a proxy in front of it?"
    )
    return ChannelUnavailable(
        f"the homeserver answered {answer.status}: {said}",
        status=answer.status,
        errcode=answer.errcode,
        retry_after_s=answer.retry_after_s,
    )


class TokenLost(Exception):
    """The server rejected the token: log in again, then repeat."""

    def __init__(self, answer: HttpAnswer) -> None:
        self.answer = answer
        super().__init__()


class AnswerTooLarge(DeliveryFailed):
    """The homeserver rejects this message as too large."""


def send_problem(answer: HttpAnswer) -> ChannelError:  # noqa: PLR0911 - one per kind of answer
    """Return the error that a refusal, or an unusable answer, is for a message."""
    code = answer.errcode
    if answer.status == 429:
        return channel_error(answer)
    if code == "M_TOO_LARGE" or (answer.status == 413 and code):
        return AnswerTooLarge("the homeserver rejects this message as too large", errcode=code)
    if answer.status == 413:
        return DeliveryFailed("something in front of the homeserver rejects this message as too large")
    if answer.is_success or answer.status >= 500 or not code:
        return DeliveryUncertain(
            f"the homeserver's answer to the message was lost ({answer.status})",
            retry_after_s=answer.retry_after_s,
        )
    if code in _PASSING_CODES or code.startswith("M_USER_"):
        return channel_error(answer)
    if answer.status == 403:
        return DeliveryFailed(f"the bot may not write in this room: {answer.error}", errcode=code)
    if answer.status == 404:
        return DeliveryFailed(f"the homeserver does not know this room: {answer.error}", errcode=code)
    if 400 <= answer.status < 500:
        return DeliveryFailed(f"the homeserver refuses this message: {code} {answer.error}", errcode=code)
    return channel_error(answer)


def unreachable(error: LinkBroken) -> ChannelError:
    """Return the channel's error for a broken link."""
    if error.certificate:
        return ChannelMisconfigured(
            f"{error}; if that server is your own, put its authority's certificate into tls_ca_file, "
            "otherwise check homeserver"
        )
    return ChannelUnavailable(f"the homeserver cannot be reached: {error}")


@contextmanager
def link_errors() -> Iterator[None]:
    """Raise ChannelUnavailable for a link that breaks inside."""
    try:
        yield
    except LinkBroken as error:
        raise ChannelUnavailable(str(error)) from error


async def ask(
    homeserver: Homeserver,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    anonymous: bool = False,
) -> HttpAnswer:
    """Make a request, see `Homeserver.request`. Raises ChannelUnavailable or ChannelMisconfigured."""
    try:
        return await homeserver.request(method, path, body, anonymous=anonymous)
    except LinkBroken as error:
        raise unreachable(error) from error
