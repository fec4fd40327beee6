"""
The OAuth login of a mailbox, which a person does once: with a code on another machine, or with a browser.

`by_device` is RFC 8628: the bot shows a short code, the person enters it wherever they have a browser, and
the bot asks from time to time whether that has happened. `by_browser` is the usual way with PKCE (RFC 7636),
for providers that do not give mail to devices (Google): the last page that the browser tries to open is on a
port where nobody needs to listen, and its address, pasted, holds the code. So both work over a remote shell.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import anyio
import anyio.to_thread

from agent_core.bounded_response import BoundedResponse
from agent_core.oauth import ProviderAway
from channels.base import ChannelAuthFailed, ChannelMisconfigured, ChannelUnavailable, Clock
from channels.email.auth.oauth_tokens import AskProvider, Endpoints, ProviderRefused, Tokens
from channels.email.auth.tls import verifying_context
from channels.email.config import OAuth

ANSWER_LIMIT_S = 30.0
MAX_ANSWER_BYTES = 200_000
PAUSE_S = 5.0
SLOWER_S = 5.0
LONGEST_WAIT_S = 1800.0
REDIRECT = "http://127.0.0.1:8912/"
_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


class HttpProvider:
    """
    Asks a provider over HTTP.

    Args:
        ca_file: Certificates of one's own authority, believed besides those of the system.
    """

    def __init__(self, ca_file: Path | None = None) -> None:
        self._ca_file = ca_file

    async def __call__(self, url: str, form: dict[str, str]) -> dict[str, Any]:
        """See `channels.email.auth.oauth_tokens.AskProvider`."""
        context = await anyio.to_thread.run_sync(verifying_context, self._ca_file)
        limit = aiohttp.ClientTimeout(total=ANSWER_LIMIT_S)
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=limit, trust_env=True, response_class=BoundedResponse
                ) as session,
                session.post(
                    url,
                    data=form,
                    ssl=context,
                    allow_redirects=False,
                    headers={"Accept": "application/json"},
                ) as answer,
            ):
                raw = await _whole(answer.content)
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise ProviderAway(f"{urlsplit(url).hostname}: {type(exc).__name__}") from exc
        try:
            said = json.loads(raw)
        except (ValueError, RecursionError):
            said = None
        if (
            isinstance(said, dict)
            and isinstance(said.get("error"), str)
            and 400 <= status < 500
            and status != 429
        ):
            raise ProviderRefused(
                _first_line(said["error"])[:100], _first_line(said.get("error_description"))
            )
        if status != 200 or not isinstance(said, dict):
            unreadable = " with an unreadable body" if status == 200 else ""
            raise ProviderAway(f"{urlsplit(url).hostname} answers {status}{unreadable}")
        return said


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """
    All of a body; ``content.read(n)`` returns what the first segment held.

    Raises:
        aiohttp.ClientError: It broke off, or has no end.
    """
    raw = bytearray()
    async for piece in content.iter_any():
        raw += piece
        if len(raw) > MAX_ANSWER_BYTES:
            raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(raw)


def _first_line(text: object) -> str:
    """What a provider wrote, for a person: on one line, and nothing in it that steers a terminal."""
    line = text.strip().splitlines()[0][:200] if isinstance(text, str) and text.strip() else ""
    return "".join(char for char in line if char.isprintable())


async def by_device(oauth: OAuth, ask: AskProvider, clock: Clock, show: Callable[[str], None]) -> Tokens:
    """
    Get tokens with a code that the person enters elsewhere.

    Raises:
        ChannelAuthFailed: The person said no, or took too long.
        ChannelMisconfigured: The provider does not do this.
        ChannelUnavailable: The provider is away.
    """
    endpoints = Endpoints.of(oauth)
    if not endpoints.device:
        raise ChannelMisconfigured("this provider has no device_endpoint; use flow: browser")
    try:
        given = await ask(endpoints.device, {"client_id": oauth.client_id, "scope": endpoints.scope})
    except (ProviderAway, ProviderRefused) as exc:
        raise ChannelUnavailable(f"the provider issued no code: {exc}") from exc
    where = _first_line(given.get("verification_uri") or given.get("verification_url"))
    code, secret = _first_line(given.get("user_code"))[:40], given.get("device_code")
    if not where.startswith(("https://", "http://")) or not code or not isinstance(secret, str):
        raise ChannelUnavailable("the provider issued no usable code")
    show(f"Open {where} in any browser, enter {code} and log in there. I am waiting here.")
    form = {"grant_type": _DEVICE, "device_code": secret, **_client(oauth)}
    pause_s = _seconds(given.get("interval"), PAUSE_S)
    ends_at = clock.monotonic() + min(_seconds(given.get("expires_in"), LONGEST_WAIT_S), LONGEST_WAIT_S)
    while clock.monotonic() < ends_at:
        await anyio.sleep(pause_s)
        try:
            return Tokens.of(await ask(endpoints.token, form), clock.now())
        except ProviderRefused as exc:
            if exc.code == "slow_down":
                pause_s += SLOWER_S
            elif exc.code != "authorization_pending":
                raise _not_given(exc) from exc
        except ProviderAway:
            pause_s += SLOWER_S
    raise ChannelAuthFailed("the code was not entered in time; begin again")


async def by_browser(
    oauth: OAuth,
    ask: AskProvider,
    clock: Clock,
    show: Callable[[str], None],
    pasted: Callable[[], Awaitable[str]],
) -> Tokens:
    """
    Get tokens with a browser, which may be on another machine.

    Raises:
        ChannelAuthFailed: The person said no, or pasted something else.
        ChannelMisconfigured: The provider does not do this.
        ChannelUnavailable: The provider is away.
    """
    endpoints = Endpoints.of(oauth)
    if not endpoints.authorization:
        raise ChannelMisconfigured("this provider has no authorization_endpoint; use flow: device")
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(16)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    asked = {
        "client_id": oauth.client_id,
        "response_type": "code",
        "redirect_uri": REDIRECT,
        "scope": endpoints.scope,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "access_type": "offline",
        "prompt": "consent",
    }
    show(
        f"Open this in a browser and log in:\n\n{endpoints.authorization}?{urlencode(asked)}\n\nAt the "
        f"end, the browser tries to open an address that begins with {REDIRECT}, and cannot. Copy that "
        "whole address from the address bar and paste it here:"
    )
    code = _code_in(await pasted(), state)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": REDIRECT,
        "code_verifier": verifier,
        **_client(oauth),
    }
    try:
        return Tokens.of(await ask(endpoints.token, form), clock.now())
    except ProviderRefused as exc:
        raise _not_given(exc) from exc
    except ProviderAway as exc:
        raise ChannelUnavailable(f"the provider cannot be reached: {exc}") from exc


def _code_in(text: str, state: str) -> str:
    try:
        found = parse_qs(urlsplit(text.strip()).query)
    except ValueError:
        found = {}
    if "error" in found:
        raise ChannelAuthFailed(f"the provider says: {_first_line(found['error'][0])[:100]}")
    if (
        not secrets.compare_digest(found.get("state", [""])[0].encode("utf-8", "replace"), state.encode())
        or "code" not in found
    ):
        raise ChannelAuthFailed("this is not the address at which the login ends; begin again")
    return found["code"][0]


def _client(oauth: OAuth) -> dict[str, str]:
    secret = oauth.client_secret
    return {
        "client_id": oauth.client_id,
        **({"client_secret": secret.get_secret_value()} if secret else {}),
    }


def _seconds(value: object, usual: float) -> float:
    try:
        told = float(value)  # type: ignore[arg-type]  # whatever it is, there is an answer
    except (TypeError, ValueError, OverflowError):
        return usual
    return usual if math.isnan(told) else min(max(told, 1.0), LONGEST_WAIT_S)


def _not_given(exc: ProviderRefused) -> ChannelAuthFailed:
    why = {
        "access_denied": "access was denied",
        "expired_token": "the code was not entered in time; begin again",
        "invalid_client": "the provider does not know this client_id (or wants its client_secret)",
    }.get(exc.code, str(exc))
    return ChannelAuthFailed(f"the login failed: {why}")
