"""
Logins without a password, which a person makes once in a browser (``squidbot matrix login``). A server that
delegates its logins (Matrix specification v1.15, "OAuth 2.0 API") tells where: squidbot registers itself
there (RFC 7591) and asks for tokens with a code that is entered on any device (RFC 8628), or, where the
provider has no such codes, by a browser on this machine. A server with single sign-on of the older kind
(``m.login.sso``) gives a token that does not expire. Either is kept in ``oauth.json``.
"""

from __future__ import annotations

import secrets
import ssl
import string
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import anyio.to_thread

from agent_core.oauth import (
    OAuthTokens,
    ProviderRefused,
    ProviderUnreachable,
    TokenStore,
    printable_line,
    token_in,
)
from agent_core.oauth_http import HttpProvider
from agent_core.oauth_login import (
    REDIRECT,
    BrowserLogin,
    LoginFailed,
    OAuthClient,
    run_browser_flow,
    run_device_flow,
)
from agent_core.state_folder import StateFolder, state_in
from channels.base import (
    ChannelAuthFailed,
    ChannelClock,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
)
from channels.matrix.client.homeserver import CLIENT, Homeserver, MatrixCredentials, ask, channel_error
from channels.matrix.config import MatrixConfig
from channels.setup import PersonAtTerminal

TOKENS = "oauth.json"
_METADATA = ("/_matrix/client/v1/auth_metadata", "/_matrix/client/unstable/org.matrix.msc2965/auth_metadata")
_HOME_PAGE = "https://squidbot.example/"
"""Providers want one and show it; there is none yet, and nobody can own this name (RFC 2606)."""
_DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
_SCOPE = "urn:matrix:client:api:* urn:matrix:client:device:{}"
_NEVER = 1e11
"""The end of a token that does not expire, as Unix time."""
_DEVICE_CHARS = 10  # as the specification recommends


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixTokens(OAuthTokens):
    """The tokens of an account's login, and who renews them. ``since``: see `MatrixCredentials`."""

    homeserver: str = ""
    user_id: str = ""
    device_id: str = ""
    since: float = 0.0
    client_id: str = ""
    token_endpoint: str = ""

    @property
    def credentials(self) -> MatrixCredentials:
        """Return the login that requests carry."""
        return MatrixCredentials(self.user_id, self.device_id, self.access, self.since)


def token_store(config: MatrixConfig, state_dir: Path | StateFolder) -> TokenStore[MatrixTokens]:
    """Return the store of an account's tokens; those of another account count as none."""

    def decode(stored: Mapping[str, Any]) -> MatrixTokens | None:
        tokens = MatrixTokens.decode(stored)
        if tokens is None or tokens.homeserver != config.homeserver:
            return None
        return tokens if tokens.user_id == config.user_id else None

    state = state_in(state_dir)
    return TokenStore(state.local / TOKENS, decode, state)


def provider_of(config: MatrixConfig) -> HttpProvider:
    """Return the HTTP client for the provider of an account's tokens."""
    return HttpProvider(partial(ssl.create_default_context, cafile=config.tls_ca_file))


async def ask_to_renew(post: HttpProvider, tokens: MatrixTokens) -> Mapping[str, Any]:
    """Ask for new tokens. Raises ProviderUnreachable and ProviderRefused."""
    form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh, "client_id": tokens.client_id}
    return await post(tokens.token_endpoint, form)


async def login_ways(homeserver: Homeserver) -> Sequence[str]:
    """Return the ways to log in at a server: ``password``, ``browser``, both or none. Raises ChannelError."""
    answer = await ask(homeserver, "GET", f"{CLIENT}/login", anonymous=True)
    flows = answer.body.get("flows") if answer.is_success else ()
    listed = flows if isinstance(flows, list) else []
    kinds = {each.get("type") for each in listed if isinstance(each, dict)}
    by_browser = "m.login.sso" in kinds or await _metadata(homeserver) is not None
    return ["password"] * ("m.login.password" in kinds) + ["browser"] * by_browser


async def log_in_by_browser(
    config: MatrixConfig,
    homeserver: Homeserver,
    state_dir: Path | StateFolder,
    clock: ChannelClock,
    person: PersonAtTerminal,
) -> None:
    """Lead a person through the login; store the tokens. Raises ChannelError."""
    metadata = await _metadata(homeserver)
    browser = BrowserLogin(person.show, person.read_line)
    try:
        if metadata is not None:
            tokens = await _tokens_by_oauth(config, metadata, clock, browser, person.show)
        else:
            tokens = await _tokens_by_sso(config, homeserver, clock, browser)
    except LoginFailed as error:
        raise ChannelAuthFailed(str(error)) from error
    except (ProviderUnreachable, ProviderRefused) as error:
        raise ChannelUnavailable(f"the server's login cannot be used now: {error}") from error
    await _check_account(config, homeserver, tokens)
    await anyio.to_thread.run_sync(token_store(config, state_dir).save, tokens)


async def _tokens_by_oauth(
    config: MatrixConfig,
    metadata: Mapping[str, Any],
    clock: ChannelClock,
    browser: BrowserLogin,
    show: Callable[[str], None],
) -> MatrixTokens:
    for name, value in metadata.items():
        is_open = config.homeserver.startswith("https:") and _address(metadata, name).startswith("http:")
        if is_open and name.endswith("_endpoint"):
            raise ChannelMisconfigured(
                f"the homeserver sends its logins to {printable_line(value)} without encryption, so nothing "
                "was asked there"
            )
    device_id = config.device_id or "".join(
        secrets.choice(string.ascii_uppercase) for _ in range(_DEVICE_CHARS)
    )
    post = provider_of(config)
    by_code = bool(_address(metadata, "device_authorization_endpoint"))
    client = OAuthClient(
        client_id=await _registered(post, metadata, config.device_name, by_code=by_code),
        client_secret="",
        scope=_SCOPE.format(device_id),
        token_endpoint=_address(metadata, "token_endpoint"),
        device_endpoint=_address(metadata, "device_authorization_endpoint"),
        authorization_endpoint=_address(metadata, "authorization_endpoint"),
        issuer=_address(metadata, "issuer"),
    )
    if by_code:
        given = await run_device_flow(client, post, clock, show)
    else:
        given = await run_browser_flow(client, post, clock, browser)
    return MatrixTokens(
        refresh=given.refresh,
        access=given.access,
        ends_at=given.ends_at,
        homeserver=config.homeserver,
        user_id=config.user_id,
        device_id=device_id,
        since=clock.now().timestamp(),
        client_id=client.client_id,
        token_endpoint=client.token_endpoint,
    )


async def _registered(post: HttpProvider, metadata: Mapping[str, Any], name: str, *, by_code: bool) -> str:
    """Register squidbot; return its client_id."""
    ways = {
        "grant_types": [_DEVICE_CODE if by_code else "authorization_code", "refresh_token"],
        "response_types": [] if by_code else ["code"],
        **({} if by_code else {"redirect_uris": [REDIRECT]}),
    }
    answer = await post.register(
        _address(metadata, "registration_endpoint"),
        {
            "client_name": name,
            "client_uri": _HOME_PAGE,
            "application_type": "native",
            "token_endpoint_auth_method": "none",
            **ways,
        },
    )
    if not (client_id := token_in(answer, "client_id")):
        raise ProviderUnreachable("it registers no client")
    return client_id


async def _tokens_by_sso(
    config: MatrixConfig, homeserver: Homeserver, clock: ChannelClock, browser: BrowserLogin
) -> MatrixTokens:
    if "browser" not in await login_ways(homeserver):
        raise ChannelMisconfigured(
            f"{config.homeserver} has no login in a browser: configure a password without login: browser"
        )
    state = secrets.token_urlsafe(16)
    back = quote(f"{REDIRECT}?{urlencode({'state': state})}", safe="")
    browser.open(f"{config.homeserver}{CLIENT}/login/sso/redirect?redirectUrl={back}", state=state)
    body = {
        "type": "m.login.token",
        "token": (await browser.wait("loginToken"))["loginToken"],
        "initial_device_display_name": config.device_name,
        **({"device_id": config.device_id} if config.device_id else {}),
    }
    answer = await ask(homeserver, "POST", f"{CLIENT}/login", body, anonymous=True)
    if not answer.is_success:
        raise channel_error(answer)
    access, device_id = token_in(answer.body, "access_token"), answer.body.get("device_id")
    if not access or not isinstance(device_id, str):
        raise ChannelUnavailable("the homeserver's answer to the login is not a login")
    return MatrixTokens(
        access=access,
        ends_at=_NEVER,
        homeserver=config.homeserver,
        user_id=config.user_id,
        device_id=device_id,
        since=clock.now().timestamp(),
    )


async def log_out(config: MatrixConfig, homeserver: Homeserver, tokens: MatrixTokens) -> None:
    """End a login, of which nobody will have need; what the server says to it does not matter."""
    with suppress(ChannelError, ProviderUnreachable, ProviderRefused):
        metadata = await _metadata(homeserver)
        if metadata is None:
            homeserver.credentials = tokens.credentials
            await ask(homeserver, "POST", f"{CLIENT}/logout", {})
        elif address := _address(metadata, "revocation_endpoint"):
            form = {
                "token": tokens.refresh,
                "token_type_hint": "refresh_token",
                "client_id": tokens.client_id,
            }
            await provider_of(config)(address, form)


async def _check_account(config: MatrixConfig, homeserver: Homeserver, tokens: MatrixTokens) -> None:
    """Raise ChannelMisconfigured if the person has logged in with another account, which stays unused."""
    homeserver.credentials = tokens.credentials
    answer = await ask(homeserver, "GET", f"{CLIENT}/account/whoami")
    if not answer.is_success:
        raise channel_error(answer)
    user_id = printable_line(answer.body.get("user_id"), 255)
    if user_id != tokens.user_id:
        await log_out(config, homeserver, tokens)
        raise ChannelMisconfigured(
            f"in the browser you are {user_id}, but the bot's user_id is {tokens.user_id}: log out there "
            "first, or use a private window, and begin again"
        )


async def _metadata(homeserver: Homeserver) -> Mapping[str, Any] | None:
    """Return what a server says of its provider (RFC 8414); None: it has none."""
    for path in _METADATA:
        answer = await ask(homeserver, "GET", path, anonymous=True)
        if answer.is_success and _address(answer.body, "token_endpoint"):
            return answer.body
        if not answer.is_success and answer.status not in (400, 404, 405):
            raise channel_error(answer)
    return None


def _address(metadata: Mapping[str, Any], name: str) -> str:
    value = metadata.get(name)
    is_fit = isinstance(value, str) and value.startswith(("https://", "http://")) and value.isprintable()
    return str(value) if is_fit else ""
