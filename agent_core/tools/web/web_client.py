"""
The only part that connects to the web. It checks each connection when it is made. The check stands where
aiohttp makes a socket, so that it sees the very address (literal, name or redirect) that is connected.
Nothing of the environment (proxies, cookies, ``.netrc``) is used. Time, redirects, size before and
after unpacking, and concurrent requests are limited.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv6Address, ip_address
from types import MappingProxyType
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import yarl
from aiohappyeyeballs import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from agent_core.errors import ToolFailed
from agent_core.http_guards import BoundedResponse
from agent_core.tools.web.ip_rules import AddressReach, IPAddress
from agent_core.tools.web.urls import host_of, normalise_url, resolve_link

_USER_AGENT = "squidbot (a personal assistant, reading one page for a person)"
_ACCEPT = "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9, */*;q=0.5"
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE_BYTES = 32_768
_LOOKUPS = 8
_NOT_NAMED = "it is in your own network, and no person has named it in this conversation"
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

Guard = Callable[[IPAddress, int], str | None]


class WebFailed(ToolFailed):
    """Nothing could be fetched; the text says why and what may help."""


@dataclass(frozen=True, slots=True)
class WebLimits:
    """``total_s`` is for all of a fetch, ``silence_s`` the longest pause."""

    total_s: float = 30.0
    silence_s: float = 10.0
    redirects: int = 5
    max_bytes: int = 5_000_000
    at_once: int = 4
    apart_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Received:
    """
    The answer of a server.

    ``address`` is the URL after all redirects; ``is_cut`` means that the body continues. The body is empty
    unless the answer is a success.
    """

    address: str
    status: int
    content_type: str
    body: bytes
    is_cut: bool = False
    retry_after: str = ""
    validators: tuple[str, str] = ("", "")
    """The answer's ``ETag`` and ``Last-Modified``."""


class WebClient:
    """Fetches from the public web and what ``reach`` allows; ``tls`` True: by the system's certificates."""

    def __init__(
        self,
        reach: AddressReach,
        limits: WebLimits = WebLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        self._reach = reach
        self._limits = limits
        self.resolver: Callable[[], AbstractResolver] = SystemResolver
        self.tls: ssl.SSLContext | bool = True
        self.reading = anyio.CapacityLimiter(1)
        """For what makes text of pages: one at a time, because one takes all the time that others get."""
        self._slots = anyio.CapacityLimiter(limits.at_once)
        self._free_at: dict[str, float] = {}

    def check(self, address: str) -> None:
        """Raise WebFailed if the host of a normalised address is an IP address that nobody may reach."""
        with suppress(ValueError):  # a name is looked up only when it is fetched
            port = yarl.URL(address, encoded=True).port or 0
            if (why := self._reach.refusal(ip_address(host_of(address)), port)) is not None:
                raise WebFailed(_refused_text(why))

    async def get(
        self,
        address: str,
        *,
        named: bool = True,
        check_type: Callable[[str], None] = lambda _: None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Received:
        """
        Fetch a page. Raises WebFailed, or ValueError for an invalid address or from ``check_type``.

        Non-public addresses are reached only on the host of ``address`` and if a person has ``named`` it.
        """
        address = normalise_url(address)
        async with self._slots:
            await self._wait_for(host_of(address))
            private_host = host_of(address) if named else None
            strict = replace(self._reach, allow_private=())

            def guard(found: IPAddress, port: int) -> str | None:
                if host_of(address) == private_host or self._reach.refusal(found, port) is not None:
                    return self._reach.refusal(found, port)
                return strict.refusal(found, port) and _NOT_NAMED

            async with self._session(guard, address) as session:
                for _ in range(self._limits.redirects + 1):
                    found = await self._fetch(
                        session, address, headers={"Accept": _ACCEPT, **headers}, check_type=check_type
                    )
                    if isinstance(found, Received):
                        return found
                    try:
                        address = resolve_link(address, found)
                    except ValueError as error:
                        said = f"The server redirects to an address that cannot be used: {error}."
                        raise WebFailed(said) from None
                raise WebFailed(f"The server redirects more than {self._limits.redirects} times.")

    async def ask(
        self,
        address: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str],
        body: Mapping[str, Any] | bytes | None = None,
        trusted: bool = False,
    ) -> Received:
        """
        Call a service without redirects (``headers`` may hold its key); a mapping is sent as JSON.

        Raises WebFailed.
        """
        guard: Guard = (lambda _address, _port: None) if trusted else self._reach.refusal
        await self._wait_for(host_of(address))
        async with self._slots, self._session(guard, address) as session:
            # Else aiohttp sends a change again whose answer was lost, and its caller does not know of it.
            session._retry_connection = method == "GET"  # noqa: SLF001 - there is no other way
            found = await self._fetch(session, address, method=method, headers=headers, body=body)
        if isinstance(found, Received):
            return found
        raise WebFailed("The server redirects to another address, which is not followed here.")

    async def _wait_for(self, host: str) -> None:
        """One request to a host at a time, and not at once again."""
        now = anyio.current_time()
        if len(self._free_at) > 256:
            self._free_at = {each: at for each, at in self._free_at.items() if at > now}
        at = max(now, self._free_at.get(host, 0.0))
        if at - now > 10.0:
            raise WebFailed("There were too many requests to this host; wait a little.")
        self._free_at[host] = at + self._limits.apart_s
        await anyio.sleep(at - now)

    @asynccontextmanager
    async def _session(self, guard: Guard, address: str) -> AsyncIterator[aiohttp.ClientSession]:
        """A chain of requests with its deadline; whatever goes wrong in it becomes a `WebFailed`."""
        refused: list[str] = []
        limits = self._limits

        def checked_socket(info: AddrInfoType) -> socket.socket:
            family, kind, protocol, _, where = info
            refusal = guard(ip_address(str(where[0]).partition("%")[0]), int(where[1]))
            if refusal is not None:
                refused.append(refusal)
                raise PermissionError(errno.EACCES, refusal)
            return socket.socket(family, kind, protocol)

        try:
            with anyio.fail_after(limits.total_s):
                async with aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(
                        resolver=self.resolver(),
                        use_dns_cache=False,
                        socket_factory=checked_socket,
                        force_close=True,
                        ssl=self.tls,
                    ),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    trust_env=False,
                    response_class=BoundedResponse,
                    headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "gzip, deflate"},
                    timeout=aiohttp.ClientTimeout(total=None, sock_read=limits.silence_s),
                ) as session:
                    yield session
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
            raise WebFailed(_error_text(error, host_of(address), refused, limits)) from error

    async def _fetch(
        self,
        session: aiohttp.ClientSession,
        address: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str],
        body: Mapping[str, Any] | bytes | None = None,
        check_type: Callable[[str], None] = lambda _: None,
    ) -> Received | str:
        """One request: what came, or where it is said to be instead."""
        sent: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        response = await session.request(
            method, yarl.URL(address, encoded=True), headers=headers, **sent, allow_redirects=False
        )
        try:
            target = response.headers.get("Location")
            if response.status in _REDIRECTS and target is not None:
                return target
            content_type = response.headers.get("Content-Type", "")
            if not 200 <= response.status < 300:
                again = response.headers.get("Retry-After", "")
                return Received(address, response.status, content_type, b"", retry_after=again)
            check_type(content_type)
            content, is_cut = await self._content(response)
            validators = (response.headers.get("ETag", ""), response.headers.get("Last-Modified", ""))
            return Received(address, response.status, content_type, content, is_cut, validators=validators)
        finally:
            response.close()

    async def _content(self, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        most, content = self._limits.max_bytes, bytearray()
        async for piece in response.content.iter_chunked(_PIECE_BYTES):
            content += piece
            if len(content) > most:
                return bytes(content[:most]), True
        return bytes(content), False


def is_own_address(address: IPAddress) -> bool:
    """
    Return True if a public address belongs to this machine or to its IPv6 network.

    The kernel decides: it binds only own addresses, unless configured otherwise, and reaches its main
    addresses from themselves. Nothing is sent.
    """
    family, stranger = (
        (socket.AF_INET6, "2001:db8::1")
        if isinstance(address, IPv6Address)
        else (socket.AF_INET, "192.0.2.1")
    )
    if _binds(family, str(address)) and not _binds(family, stranger):
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError as error:
            return error.errno not in _NO_ROUTE
        source = ip_address(probe.getsockname()[0].partition("%")[0])
    if isinstance(address, IPv6Address):
        return int(source) >> 64 == int(address) >> 64
    return source == address


def _binds(family: socket.AddressFamily, address: str) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


class SystemResolver(AbstractResolver):
    """Looks up names in a few threads of its own."""

    _free = threading.BoundedSemaphore(_LOOKUPS)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name."""
        look = partial(self._look, host, port, family)
        found = await anyio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        return [
            ResolveResult(
                hostname=host,
                host=where[0],
                port=where[1],
                family=each,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for each, _, protocol, _, where in found
            if isinstance(where[0], str) and isinstance(where[1], int)
        ]

    def _look(self, host: str, port: int, family: socket.AddressFamily) -> list[Any]:
        # A lookup that nobody waits for any more goes on until it has its answer.
        if not self._free.acquire(blocking=False):
            raise OSError(errno.EAGAIN, "too many names are being looked up")
        try:
            flags = socket.AI_ADDRCONFIG
            return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=flags)
        finally:
            self._free.release()

    async def close(self) -> None:
        """Do nothing: nothing is kept."""


def _refused_text(why: str) -> str:
    return (
        f"This address may not be reached: {why}. "
        "Only the public web can be; the owner may allow a network in tools.web.allow_private."
    )


def _error_text(error: Exception, host: str, refused: Sequence[str], limits: WebLimits) -> str:
    """Describe an error for the model; the first reason that fits counts."""
    if _NOT_NAMED in refused:
        return f"This address may not be reached: {_NOT_NAMED}. Ask the person to write the address."
    if refused:
        return _refused_text(refused[0])
    for kind, said in _SAID:
        if isinstance(error, kind):
            return said.format(host=host, seconds=f"{limits.total_s:g}")
    return f"{host} cannot be reached."


_SAID: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (aiohttp.ClientConnectorDNSError, "There is no host {host}, or its name cannot be looked up now."),
    (aiohttp.ClientSSLError, "{host} has no valid certificate, so nothing proves whose server it is."),
    (TimeoutError, "{host} did not answer in time ({seconds} seconds in all). It may help to try later."),
    (aiohttp.ClientConnectorError, "{host} accepts no connections now. It may help to try later."),
    (aiohttp.ContentTypeError, "{host} sent an answer that cannot be read."),
    (
        (aiohttp.ClientResponseError, aiohttp.ClientPayloadError),
        "{host} sent an answer that is broken or cannot be unpacked.",
    ),
    ((aiohttp.ServerConnectionError, OSError), "{host} broke off the connection. It may help to try later."),
)
