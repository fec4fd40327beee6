"""
The OAuth login at a server: authorization code with PKCE, by the SDK's client. Everything that is asked here
was named by somebody else: the server names its provider, and the provider its endpoints. So each request is
checked: no redirect is followed, an answer has a limit, and what was checked is connected to. Where the
server is one of the public Internet, all of it has to be, by HTTPS. A server is at home only while all of its
addresses are; its own name says so, so that is asked again with each request. Only imported together with the
SDK.
"""

from __future__ import annotations

import base64
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import quote

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

from agent_core.oauth import ProviderUnreachable, lifetime_s, printable_line, read_answer, token_in
from agent_core.oauth_login import REDIRECT, BrowserLogin, LoginFailed
from agent_core.ports import Clock
from agent_core.text import one_line
from agent_core.tools.mcp.config import McpServerSettings
from agent_core.tools.mcp.mcp_logins import Login
from agent_core.tools.mcp.server_connection import ServerUnavailable
from agent_core.tools.web.ip_rules import AddressReach
from agent_core.tools.web.web_client import is_own_address

_MAX_BYTES = 200_000
_EXCHANGE_S = 30.0
_BASIC = "client_secret_basic"
_UNENCRYPTED = "is not asked without encryption (https)"
_SAID_CHARS = 200
_OWN_WORDS = re.compile(r"[A-Za-z][A-Za-z_ ]*[A-Za-z](?: \(\d{3}\)|: \d{3}\b)?")
_PUBLIC = AddressReach(is_own=is_own_address, ports=range(1, 65_536))
_ANYWHERE = AddressReach(allow_private=(ip_network("0.0.0.0/0"), ip_network("::/0")), ports=range(1, 65_536))
"""All but where clouds keep keys."""
# Its messages quote what providers say, tokens included.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)


async def is_public(url: str) -> bool:
    """Return True if any address of a server is public. Raises ServerUnavailable if none is known."""
    host, port = _place(httpx2.URL(url))
    with anyio.move_on_after(_EXCHANGE_S):
        return not _are_at_home(await _addresses(host, port), port)
    raise ServerUnavailable(f"{one_line(host, 80)} is not found in time")


class CheckedTransport(httpx2.AsyncBaseTransport):  # type: ignore[misc]
    """
    Exchanges with a provider, ``public`` ones by HTTPS at public addresses only.

    A private ``server`` may have a provider at private addresses.
    """

    def __init__(self, *, public: bool, server: str = "") -> None:
        self._inner = httpx2.AsyncHTTPTransport(retries=0, trust_env=False)
        self._public = public
        self._server = httpx2.URL(server).host

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One exchange, whole."""
        with anyio.move_on_after(_EXCHANGE_S):
            response = await self._sent(request)
            try:
                return await _whole(response, request)
            finally:
                await response.aclose()
        raise _refused(request, "does not answer in time")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        """The answer of the first address that can be reached, with the name only inside of the request."""
        addresses = await self._checked(request)
        for at, address in enumerate(addresses):
            try:
                return await self._inner.handle_async_request(
                    httpx2.Request(
                        request.method,
                        request.url.copy_with(host=address),
                        headers=request.headers,  # the name is in Host
                        stream=request.stream,
                        extensions={**request.extensions, "sni_hostname": request.url.host},
                    )
                )
            except httpx2.ConnectError:
                if at == len(addresses) - 1:
                    raise
        raise _refused(request, "has no address")

    async def _checked(self, request: httpx2.Request) -> list[str]:
        """The addresses that may be connected to."""
        host, port = _place(request.url)
        if self._public and request.url.scheme != "https":
            raise _refused(request, _UNENCRYPTED)
        addresses = await _addresses(host, port)
        at_home = not self._public and _are_at_home(addresses, port)
        if not self._public and not at_home and host == self._server:
            raise _refused(
                request, "is not asked: its address was on the local network a moment ago and no longer is"
            )
        if not at_home and request.url.scheme != "https":
            raise _refused(request, _UNENCRYPTED)
        if refusals := _refusals(addresses, port, _ANYWHERE if at_home else _PUBLIC):
            raise _refused(request, f"is not asked: {refusals[0]}")
        return addresses


async def log_in(
    settings: McpServerSettings,
    clock: Clock,
    *,
    show: Callable[[str], None],
    pasted: Callable[[], Awaitable[str]],
    public: bool | None = None,
) -> Login:
    """Log a person in by a browser; ``public`` None: by the server's addresses. Raises ServerUnavailable."""
    url = str(settings.url)
    public = await is_public(url) if public is None else public
    browser = BrowserLogin(show, pasted)

    async def open_browser(address: str) -> None:
        browser.open(address)

    async def wait_for_code() -> AuthorizationCodeResult:
        fields = await browser.wait()
        return AuthorizationCodeResult(code=fields["code"], state=fields["state"], iss=fields.get("iss"))

    provider = OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="squidbot",
            redirect_uris=[AnyUrl(REDIRECT)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="client_secret_post" if settings.client_secret else "none",
            scope=settings.scope or None,
        ),
        _RegisteredClient(settings),
        open_browser,
        wait_for_code,
    )
    try:
        async with httpx2.AsyncClient(
            auth=provider,
            follow_redirects=False,
            trust_env=False,
            timeout=httpx2.Timeout(_EXCHANGE_S),
            headers={"accept-encoding": "identity"},
            transport=CheckedTransport(public=public, server=url),
        ) as client:
            await client.post(url, json=_GREETING, headers={"accept": "application/json, text/event-stream"})
    except Exception as error:
        raise ServerUnavailable(_why(error)) from error
    return _login(url, provider, clock, public=public)


_GREETING = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "squidbot", "version": "1"},
    },
}


async def renew_login(login: Login) -> Mapping[str, Any]:
    """Ask the provider of a login for new tokens; see `agent_core.oauth.AskProvider`."""
    form = {"grant_type": "refresh_token", "refresh_token": login.refresh}
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    if login.resource:
        form["resource"] = login.resource
    if login.secret_in_header:
        pair = f"{quote(login.client_id, safe='')}:{quote(login.client_secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        form["client_id"] = login.client_id
        if login.client_secret:
            form["client_secret"] = login.client_secret
    try:
        public = login.public or await is_public(login.url)
        transport = CheckedTransport(public=public, server=login.url)
        async with httpx2.AsyncClient(follow_redirects=False, trust_env=False, transport=transport) as client:
            answer = await client.post(login.token_endpoint, data=form, headers=headers)
        return read_answer(answer.status_code, answer.content)
    except (httpx2.HTTPError, OSError, ServerUnavailable, ProviderUnreachable) as error:
        raise ProviderUnreachable(f"its login provider cannot be asked: {_error_text(error)}") from error


class _RegisteredClient:
    """Implements the SDK's ``TokenStorage``: the client of the settings, and nothing else."""

    def __init__(self, settings: McpServerSettings) -> None:
        self._settings = settings

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        pass  # kept by the caller, when all of it is known

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        secret = self._settings.client_secret
        if not self._settings.client_id:
            return None
        return OAuthClientInformationFull(
            client_id=self._settings.client_id,
            client_secret=secret.get_secret_value() if secret else None,
            token_endpoint_auth_method="client_secret_post" if secret else "none",
            redirect_uris=[AnyUrl(REDIRECT)],
        )

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


def _login(url: str, provider: OAuthClientProvider, clock: Clock, *, public: bool) -> Login:
    context = provider.context
    tokens, client = context.current_tokens, context.client_info
    if tokens is None or client is None:
        raise ServerUnavailable("the server requires no login")
    said = tokens.model_dump()
    access = token_in(said, "access_token")
    if not access:
        raise ServerUnavailable("the provider's answer contains no token")
    endpoint = context.oauth_metadata.token_endpoint if context.oauth_metadata else None
    base = context.get_authorization_base_url(url)
    with_resource = context.should_include_resource_param(context.protocol_version)
    return Login(
        url=url,
        token_endpoint=str(endpoint) if endpoint else f"{base}/token",
        client_id=client.client_id or "",
        access=access,
        refresh=token_in(said, "refresh_token"),
        ends_at=clock.now().timestamp() + lifetime_s(tokens.expires_in),
        client_secret=client.client_secret or "",
        secret_in_header=client.token_endpoint_auth_method == _BASIC,
        resource=context.get_resource_url() if with_resource else "",
        public=public,
    )


async def _whole(response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    if 300 <= response.status_code < 400:
        raise _refused(request, "redirects to another address, which is not followed")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise _refused(request, "sends compressed content that was not asked for")
    body = bytearray()
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return httpx2.Response(response.status_code, headers=response.headers, content=b"", request=request)
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    async for piece in response.stream:
        body += piece
        if len(body) > _MAX_BYTES:
            raise _refused(request, "sends too much")
    kept = {name: value for name, value in response.headers.items() if name.lower() != "transfer-encoding"}
    return httpx2.Response(response.status_code, headers=kept, content=bytes(body), request=request)


def _refused(request: httpx2.Request, why: str) -> httpx2.RequestError:
    return httpx2.RequestError(f"{request.url.host} {why}", request=request)


def _place(url: httpx2.URL) -> tuple[str, int]:
    return url.host, url.port or (443 if url.scheme == "https" else 80)


async def _addresses(host: str, port: int) -> list[str]:
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ServerUnavailable(f"{one_line(host, 80)} is not known: {error.strerror}") from error
    return [str(place[0]).partition("%")[0] for *_, place in found]


def _refusals(addresses: Sequence[str], port: int, reach: AddressReach) -> list[str]:
    """Return the reasons why some of these addresses may not be reached."""
    each = [reach.refusal(ip_address(address), port) for address in addresses]
    return [why for why in each if why]


def _are_at_home(addresses: Sequence[str], port: int) -> bool:
    """Return True if none of these addresses is public."""
    return len(_refusals(addresses, port, _PUBLIC)) == len(addresses)


def _why(error: BaseException) -> str:
    """Describe an error without text that a provider wrote."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, ServerUnavailable):
        return str(error)
    if isinstance(error, httpx2.HTTPError | OSError | LoginFailed):
        return f"the login failed: {_error_text(error)}"
    # The SDK says in its own words what has failed, then a status, then what the provider has written.
    found = _OWN_WORDS.match(str(error))
    return f"the login failed: {found[0][:_SAID_CHARS] if found else type(error).__name__}"


def _error_text(error: Exception) -> str:
    return printable_line(str(error) or type(error).__name__, _SAID_CHARS)
