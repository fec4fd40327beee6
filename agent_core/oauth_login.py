"""
OAuth logins, which a person does once: with a code on another device, or in a browser. `run_device_flow` is
RFC 8628: the person enters a short code wherever a browser is. `BrowserLogin` shows an address and waits for
the login's end: the browser of this machine opens it on loopback (RFC 8252), or the person pastes it, so that
a login over a remote shell works. HTTP is the caller's: what may be asked differs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
from anyio.abc import SocketStream

from agent_core.oauth import OAuthTokens, ProviderRefused, ProviderUnreachable, printable_line
from agent_core.ports import Clock

_PORT = 8913
REDIRECT = f"http://127.0.0.1:{_PORT}/callback"
MAX_WAIT_S = 1800.0
"""A login that is not finished by then has to begin again."""
_PAUSE_S = 5.0
"""Between two questions, by default, and what each "slow_down" adds (RFC 8628, section 3.5)."""
_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
Post = Callable[[str, Mapping[str, str]], Awaitable[Mapping[str, Any]]]
"""Sends a form; returns the JSON object of the answer. Raises ProviderRefused or ProviderUnreachable."""
_REASONS = {
    "access_denied": "access was denied",
    "expired_token": "the code was not entered in time; begin again",
    "invalid_client": "the provider does not know this client_id (or wants its client_secret)",
}


class LoginFailed(Exception):
    """A login that came to nothing; the text is for the person."""


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """
    A registration at a provider, its endpoints and the scope to ask for.

    ``issuer`` is the provider's name for itself, if it is known: the end of a login must come from there.
    """

    client_id: str
    client_secret: str = field(repr=False)
    scope: str
    token_endpoint: str
    device_endpoint: str = ""
    authorization_endpoint: str = ""
    issuer: str = ""

    @property
    def credentials(self) -> dict[str, str]:
        """The fields of a form that name this client."""
        secret = {"client_secret": self.client_secret} if self.client_secret else {}
        return {"client_id": self.client_id, **secret}


async def run_device_flow(
    client: OAuthClient, post: Post, clock: Clock, show: Callable[[str], None]
) -> OAuthTokens:
    """Get tokens by a code entered elsewhere. Raises LoginFailed (denied, late) or ProviderUnreachable."""
    try:
        given = await post(client.device_endpoint, {"client_id": client.client_id, "scope": client.scope})
    except ProviderRefused as error:
        raise ProviderUnreachable(f"it issued no code: {error}") from error
    where = printable_line(given.get("verification_uri") or given.get("verification_url"), 500)
    # A second line would be the provider's own instructions.
    code = printable_line(str(given.get("user_code") or "").partition("\n")[0], 40)
    secret = given.get("device_code")
    if not where.startswith(("https://", "http://")) or not code or not isinstance(secret, str):
        raise ProviderUnreachable("it issued no usable code")
    show(f"Open {where} in any browser, enter {code} and log in there. I am waiting here.")
    form = {"grant_type": _DEVICE, "device_code": secret, **client.credentials}
    pause_s = seconds_in(given.get("interval"), _PAUSE_S)
    ends_at = clock.monotonic() + seconds_in(given.get("expires_in"), MAX_WAIT_S)
    while clock.monotonic() < ends_at:
        await anyio.sleep(pause_s)
        try:
            return _new_tokens(await post(client.token_endpoint, form), clock)
        except ProviderUnreachable:
            pause_s += _PAUSE_S
        except ProviderRefused as error:
            if error.code == "slow_down":
                pause_s += _PAUSE_S
            elif error.code != "authorization_pending":
                raise _login_failed(error) from error
    raise LoginFailed(_REASONS["expired_token"])


async def run_browser_flow(
    client: OAuthClient, post: Post, clock: Clock, browser: BrowserLogin
) -> OAuthTokens:
    """Get tokens by a browser, perhaps elsewhere, with PKCE (RFC 7636). Raises as `run_device_flow`."""
    verifier = secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "client_id": client.client_id,
        "response_type": "code",
        "redirect_uri": REDIRECT,
        "scope": client.scope,
        "state": secrets.token_urlsafe(16),
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "access_type": "offline",
        "prompt": "consent",
    }
    browser.open(f"{client.authorization_endpoint}?{urlencode(query)}")
    fields = await browser.wait()
    if client.issuer and fields.get("iss", client.issuer) != client.issuer:  # RFC 9207
        raise LoginFailed("the login comes from another provider than the one that was asked; begin again")
    form = {
        "grant_type": "authorization_code",
        "code": fields["code"],
        "redirect_uri": REDIRECT,
        "code_verifier": verifier,
        **client.credentials,
    }
    try:
        return _new_tokens(await post(client.token_endpoint, form), clock)
    except ProviderRefused as error:
        raise _login_failed(error) from error


def _new_tokens(answer: Mapping[str, Any], clock: Clock) -> OAuthTokens:
    tokens = OAuthTokens().renew_from(answer, clock.now().timestamp())
    if not tokens.refresh:
        raise LoginFailed("the provider gave no token that can be renewed")
    return tokens


def _login_failed(error: ProviderRefused) -> LoginFailed:
    return LoginFailed(f"the login failed: {_REASONS.get(error.code, str(error))}")


def seconds_in(value: object, usual: float) -> float:
    """Return a number of seconds that a provider wrote, between one and the longest wait; else ``usual``."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # it may be anything
    except (TypeError, ValueError, OverflowError):
        return usual
    return usual if math.isnan(seconds) else min(max(seconds, 1.0), MAX_WAIT_S)


class BrowserLogin:
    """A login in a browser, ended on this machine or by a pasted address (EOFError: no terminal)."""

    def __init__(self, show: Callable[[str], None], pasted: Callable[[], Awaitable[str]]) -> None:
        self._show = show
        self._pasted = pasted
        self._state = ""

    def open(self, url: str, *, state: str = "") -> None:
        """Show a login's address (``state``: elsewhere than in its query). Raises `LoginFailed`: unfit."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable():
            raise LoginFailed("the provider's address is not one that a browser should open")
        self._state = state or parse_qs(parts.query).get("state", [""])[-1]
        self._show(
            f"Open this in a browser and log in, if you trust {parts.hostname} with it:\n\n{url}\n\nAt "
            f"the end, the browser opens an address that begins with {REDIRECT}. On another machine that "
            "page cannot be opened: copy the whole address from the address bar and paste it here:"
        )

    async def wait(self, needed: str = "code") -> Mapping[str, str]:
        """Return the fields of the login's redirect, with ``needed`` among them. Raises `LoginFailed`."""
        found: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def take(source: Callable[[], Awaitable[str]]) -> None:
                with contextlib.suppress(EOFError):
                    found.append(await source())
                    tasks.cancel_scope.cancel()

            tasks.cancel_scope.deadline = anyio.current_time() + MAX_WAIT_S
            tasks.start_soon(take, self._pasted)
            tasks.start_soon(take, self._listen)
        if not found:
            raise LoginFailed("the login was not finished in time; begin again")
        fields = _query_fields(found[0])
        if "error" in fields:
            raise LoginFailed(f"the provider says: {printable_line(fields['error'], 60)}")
        if not self._is_own_state(fields.get("state", "")) or not fields.get(needed):
            raise LoginFailed("this is not the address at which the login ends; begin again")
        return fields

    def _is_own_state(self, state: str) -> bool:
        return secrets.compare_digest(state.encode("utf-8", "replace"), self._state.encode())

    async def _listen(self) -> str:
        """Return the address that the browser of this machine opens; others are refused."""
        came = anyio.Event()
        opened: list[str] = []

        async def serve(stream: SocketStream) -> None:
            async with stream:
                with (
                    anyio.move_on_after(10),
                    contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError),
                ):
                    target = await _request_target(stream)
                    is_end = target.startswith("/callback?") and self._is_own_state(
                        _query_fields(target).get("state", "")
                    )
                    text = "You can close this page." if is_end else "This is not the end of a login."
                    status = "200 OK" if is_end else "400 Bad Request"
                    await stream.send(
                        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n"
                        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
                    )
                    if is_end:
                        opened.append(target)
                        came.set()

        try:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=_PORT)
        except OSError:
            await anyio.sleep_forever()  # it can still be pasted
            raise
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            await came.wait()
            tasks.cancel_scope.cancel()
        return opened[0]


def _query_fields(address: str) -> dict[str, str]:
    try:
        return {name: values[0] for name, values in parse_qs(urlsplit(address.strip()).query).items()}
    except ValueError:
        return {}


async def _request_target(stream: SocketStream) -> str:
    """Return the target of a browser's request, which may come in pieces."""
    request = bytearray()
    while b"\r\n\r\n" not in request and len(request) < 16_384:
        request += await stream.receive(4096)
    words = bytes(request).partition(b"\r\n")[0].decode("ascii", "replace").split(" ")
    return words[1] if len(words) == 3 and words[0] == "GET" else ""
