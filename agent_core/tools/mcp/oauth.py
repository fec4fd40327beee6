"""
The OAuth login at a server: authorization code with PKCE, by the SDK's client.

Everything that is asked here was named by somebody else: the server names its provider, and the provider its
endpoints. So each request is checked: no redirect is followed, an answer has a limit, and what was checked is
connected to. Where the server is one of the public Internet, all of it has to be, by HTTPS. A server is at
home only while all of its addresses are; its own name says so, so that is asked again with each request.
Only imported together with the SDK.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import httpx2
from anyio.abc import SocketStream
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

from agent_core.oauth import lifetime_s, token_in
from agent_core.ports import Clock
from agent_core.text import one_line
from agent_core.tools.mcp.config import McpServerSettings
from agent_core.tools.mcp.guarded_http import BoundedTransport
from agent_core.tools.mcp.link import ServerUnavailable
from agent_core.tools.mcp.logins import Login, TokenRefused
from agent_core.tools.web.client import is_own_address
from agent_core.tools.web.ip_rules import Reach

_PORT = 8913
REDIRECT = f"http://127.0.0.1:{_PORT}/callback"
_MOST_BYTES = 200_000
_EXCHANGE_S = 30.0
_LOGIN_S = 900.0
_BASIC = "client_secret_basic"
_UNENCRYPTED = "is not asked without encryption (https)"
_HEARD_BYTES = 16_384
_SAID_CHARS = 200
_OWN_WORDS = re.compile(r"[A-Za-z][A-Za-z_ ]*[A-Za-z](?: \(\d{3}\)|: \d{3}\b)?")
_PUBLIC = Reach(is_own=is_own_address, ports=range(1, 65_536))
_ANYWHERE = Reach(allow_private=(ip_network("0.0.0.0/0"), ip_network("::/0")), ports=range(1, 65_536))
"""All but where clouds keep keys."""
# Its messages quote what providers say, tokens included.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)


async def is_public(url: str) -> bool:
    """
    Whether a server is one of the public Internet: any of its addresses is. One at home may have its provider
    at home.

    Raises:
        ServerUnavailable: Its addresses are not known.
    """
    host, port = _place(httpx2.URL(url))
    with anyio.move_on_after(_EXCHANGE_S):
        return not _are_at_home(await _addresses(host, port), port)
    raise ServerUnavailable(f"{one_line(host, 80)} is not found in time")


class CheckedTransport(httpx2.AsyncBaseTransport):  # type: ignore[misc]
    """
    Exchanges with a provider.

    Args:
        public: Only addresses of the public Internet are asked, by HTTPS.
        server: Address of the server for which a provider is asked; if it is not ``public``, it is asked at
            home only.
    """

    def __init__(self, *, public: bool, server: str = "") -> None:
        self._inner = BoundedTransport()
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
    """
    Have a person log in, in a browser on this machine or another one.

    ``show`` tells the person something, ``pasted`` is what the person pastes. ``public`` says whether the
    server is one of the public Internet; None: it is looked up.

    Raises:
        ServerUnavailable: There is no login; the text says why.
    """
    url = str(settings.url)
    public = await is_public(url) if public is None else public
    browser = _Browser(show, pasted)
    known = _Known(settings)
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
        known,
        browser.open,
        browser.come_back,
    )
    try:
        with anyio.fail_after(_LOGIN_S):
            async with httpx2.AsyncClient(
                auth=provider,
                follow_redirects=False,
                trust_env=False,
                timeout=httpx2.Timeout(_EXCHANGE_S),
                headers={"accept-encoding": "identity"},
                transport=CheckedTransport(public=public, server=url),
            ) as client:
                await client.post(
                    url, json=_GREETING, headers={"accept": "application/json, text/event-stream"}
                )
    except TimeoutError as error:
        raise ServerUnavailable("the login was not finished in time; begin again") from error
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


def ask_tokens() -> Callable[[Login], Awaitable[Mapping[str, Any]]]:
    """Asks for new tokens; see `agent_core.tools.mcp.logins.AskTokens`."""

    async def ask(login: Login) -> Mapping[str, Any]:
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
        strict = login.public or await is_public(login.url)
        transport = CheckedTransport(public=strict, server=login.url)
        try:
            async with httpx2.AsyncClient(
                follow_redirects=False, trust_env=False, transport=transport
            ) as client:
                answer = await client.post(login.token_endpoint, data=form, headers=headers)
        except (httpx2.HTTPError, OSError) as error:
            raise ServerUnavailable(f"its login provider cannot be asked: {_said(error)}") from error
        try:
            said = json.loads(answer.content)
        except (ValueError, RecursionError):
            said = None
        refused = 400 <= answer.status_code < 500 and answer.status_code != HTTPStatus.TOO_MANY_REQUESTS
        if refused and isinstance(said, dict) and isinstance(said.get("error"), str):
            raise TokenRefused(_plain(said["error"])[:60])
        if answer.status_code != HTTPStatus.OK or not isinstance(said, dict):
            raise ServerUnavailable(f"its login provider answers {answer.status_code}")
        return said

    return ask


class _Known:
    """Implements the SDK's ``TokenStorage``: what the settings say of the client, and nothing else."""

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


class _Ended(OAuthFlowError):  # type: ignore[misc]
    """A login that came to its end in the browser; the text is ours."""


class _Browser:
    """Where the person logs in, and how the end of that gets here: by the browser itself, or pasted."""

    def __init__(self, show: Callable[[str], None], pasted: Callable[[], Awaitable[str]]) -> None:
        self._show = show
        self._pasted = pasted
        self._state = ""

    async def open(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable():
            raise _Ended("the provider's address is not one that a browser should open")
        self._state = parse_qs(parts.query).get("state", [""])[-1]
        self._show(
            f"Open this in a browser and log in, if you trust {parts.hostname} with it:\n\n{url}\n\nAt "
            f"the end, the browser opens an address that begins with {REDIRECT}. On another machine that "
            "page cannot be opened: copy the whole address from the address bar and paste it here:"
        )

    async def come_back(self) -> AuthorizationCodeResult:
        """What the last address holds, whichever way it comes first."""
        found: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def paste() -> None:
                with contextlib.suppress(EOFError):  # nobody is at the terminal; the browser may still come
                    found.append(await self._pasted())
                    tasks.cancel_scope.cancel()

            async def listen() -> None:
                found.append(await self._heard())
                tasks.cancel_scope.cancel()

            tasks.start_soon(paste)
            tasks.start_soon(listen)
        try:
            said = {name: values[0] for name, values in parse_qs(urlsplit(found[0].strip()).query).items()}
        except ValueError:
            said = {}
        if "error" in said:
            raise _Ended(f"the provider says: {_plain(said['error'])[:60]}")
        if not self._is_ours(said.get("state", "")) or not said.get("code"):
            raise _Ended("this is not the address at which the login ends; begin again")
        return AuthorizationCodeResult(code=said["code"], state=said["state"], iss=said.get("iss"))

    def _is_ours(self, state: str) -> bool:
        return secrets.compare_digest(state.encode("utf-8", "replace"), self._state.encode())

    async def _heard(self) -> str:
        """The address that the browser of this machine opens; others that come here are not ours."""
        came = anyio.Event()
        heard: list[str] = []

        async def serve(stream: SocketStream) -> None:
            async with stream:
                with (
                    anyio.move_on_after(10),
                    contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError),
                ):
                    target = await _target(stream)
                    query = parse_qs(urlsplit(target).query)
                    ours = target.startswith("/callback?") and self._is_ours(query.get("state", [""])[0])
                    text = "You can close this page." if ours else "This is not the end of a login."
                    await stream.send(
                        f"HTTP/1.1 {'200 OK' if ours else '400 Bad Request'}\r\nContent-Type: text/plain\r\n"
                        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
                    )
                    if ours:
                        heard.append(target)
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
        return heard[0]


async def _target(stream: SocketStream) -> str:
    """What a browser asks for; its request may come in pieces."""
    said = bytearray()
    while b"\r\n\r\n" not in said and len(said) < _HEARD_BYTES:
        said += await stream.receive(4096)
    words = bytes(said).partition(b"\r\n")[0].decode("ascii", "replace").split(" ")
    return words[1] if len(words) == 3 and words[0] == "GET" else ""


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
        if len(body) > _MOST_BYTES:
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


def _refusals(addresses: Sequence[str], port: int, reach: Reach) -> list[str]:
    """Why some of these may not be reached."""
    each = [reach.refusal(ip_address(address), port) for address in addresses]
    return [why for why in each if why]


def _are_at_home(addresses: Sequence[str], port: int) -> bool:
    """Whether none of these is one of the public Internet."""
    return len(_refusals(addresses, port, _PUBLIC)) == len(addresses)


def _why(error: BaseException) -> str:
    """What has gone wrong, without what providers wrote into it."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, ServerUnavailable):
        return str(error)
    if isinstance(error, httpx2.HTTPError | OSError | _Ended):
        return f"the login failed: {_said(error)}"
    # The SDK says in its own words what has failed, then a status, then what the provider has written.
    found = _OWN_WORDS.match(str(error))
    return f"the login failed: {found[0][:_SAID_CHARS] if found else type(error).__name__}"


def _said(error: Exception) -> str:
    return _plain(one_line(str(error) or type(error).__name__, _SAID_CHARS))


def _plain(text: str) -> str:
    return "".join(char for char in text if char.isprintable())
