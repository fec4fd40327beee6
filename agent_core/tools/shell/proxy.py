"""
The proxy of one command: its only way to the network, and only to the hosts of ``tools.shell.network``. A
request is parsed strictly and built anew for the host of its address; a tunnel carries TLS to that very host.
A name is looked up once for a connection, and its address must pass the rules of the web tools (`ip_rules`).
Connections, names, bytes and times are limited and logged.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice, zip_longest

import anyio
import anyio.lowlevel
import structlog
from aiohttp.abc import AbstractResolver

from agent_core.tools.web.ip_rules import AddressReach
from agent_core.tools.web.urls import host_of, normalise_url

_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):(?P<port>[0-9]{1,5})")
_TARGET = re.compile(r"(?i:http)://(?P<authority>[^/?#@\\]{1,300})(?P<path>/[\x21-\x7e]*|\?[\x21-\x7e]*|)")
_METHOD = re.compile(r"[A-Z]{1,20}")
_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):(?P<value>[\x20-\x7e\x80-\xff\t]*)")
_LENGTH = re.compile(r"[0-9]{1,15}")
_LENGTH_NAME = "content-length"
_BLANK = " \t"
_HOP = frozenset(
    {
        *("host", "connection", "keep-alive", "te", "trailer", "upgrade"),
        *("proxy-connection", "proxy-authorization"),
    }
)
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D


class ProxyRefused(Exception):
    """The request is not carried out; ``status`` and the text go to the command."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """The target of a connection; ``head`` and the body are forwarded unless it is a tunnel."""

    host: str
    port: int
    head: bytes = b""
    body_bytes: int = 0

    @property
    def is_tunnel(self) -> bool:
        """Return True for a request by CONNECT."""
        return not self.head


def host_pattern(text: str) -> str:
    """Normalise a host, or ``*.`` and a name, of the setting ``network``. Raises ValueError."""
    star, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    address = normalise_url(f"https://{name}/")
    host = host_of(address)
    if ":" in name or address != f"https://{host}/" or (star and "." not in host):
        raise ValueError("name a host, such as pypi.org or *.example.org, without a port")
    return star + host


def is_listed(host: str, patterns: Iterable[str]) -> bool:
    """Return True if a host is one of the patterns, or below one that begins with ``*.``."""
    return any(host == each or (each.startswith("*.") and host.endswith(each[1:])) for each in patterns)


def request_of(head: bytes) -> ProxyRequest:
    """Parse a request's head, up to its empty line. Raises ProxyRefused."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not _METHOD.fullmatch(words[0]):
        raise ProxyRefused(400, "this is not an HTTP/1.1 request")
    method, target = words[:2]
    if method == "CONNECT":
        if not _AUTHORITY.fullmatch(target):
            raise ProxyRefused(400, "CONNECT takes a host and a port")
        return ProxyRequest(*_place(target))
    found = _TARGET.fullmatch(target)
    if found is None:
        raise ProxyRefused(400, "only http addresses go without a tunnel")
    authority, path = found["authority"], found["path"]
    named = authority if _AUTHORITY.fullmatch(authority) else f"{authority}:80"
    host, port = _place(named)
    headers, length = _headers(lines)
    shown = f"[{host}]" if ":" in host else host
    path = path if path.startswith("/") else f"/{path}"
    said = [
        f"{method} {path} HTTP/1.1",
        f"Host: {shown}" + ("" if port == 80 else f":{port}"),
        *headers,
        "Connection: close",
    ]
    return ProxyRequest(host, port, "\r\n".join([*said, "", ""]).encode("latin-1"), length)


def _place(authority: str) -> tuple[str, int]:
    name, _, port = authority.rpartition(":")
    try:
        host = host_of(normalise_url(f"http://{name}:{port}/"))
    except ValueError as error:
        raise ProxyRefused(400, str(error)) from None
    return host, int(port)


def _headers(lines: list[str]) -> tuple[list[str], int]:
    """Those that are handed on, and the length of the body."""
    found = [_HEADER.fullmatch(line) for line in lines if line]
    if None in found:
        raise ProxyRefused(400, "a header is malformed")
    pairs = [(each["name"], each["value"].strip(_BLANK)) for each in found if each is not None]
    values = {name.lower(): value for name, value in pairs}
    if "transfer-encoding" in values:
        raise ProxyRefused(411, "a body needs a Content-Length here")
    lengths = [value for name, value in pairs if name.lower() == _LENGTH_NAME]
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise ProxyRefused(400, "the length of the body is not clear")
    dropped = _HOP | {
        word.strip(_BLANK).lower()
        for name, value in pairs
        if name.lower() == "connection"
        for word in value.split(",")
    }
    # The length as it was understood here, so that nobody behind understands another one.
    handed_on = [f"{name}: {value}" for name, value in pairs if name.lower() not in {*dropped, _LENGTH_NAME}]
    handed_on += [f"Content-Length: {int(length)}" for length in lengths]
    return handed_on, int(lengths[0]) if lengths else 0


def is_address(host: str) -> bool:
    """Return True for an IP address, False for a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def check_tunnel(record: bytes, host: str) -> None:
    """Check that a tunnel's first record is TLS for this host. Raises ProxyRefused."""
    named = server_name_of(record)
    if not named and not is_address(host):
        raise ProxyRefused(403, "a tunnel must name its host")
    if named not in ("", host):
        raise ProxyRefused(403, "the tunnel is used for another host")


def server_name_of(record: bytes) -> str:
    """Return the host of a TLS record's SNI, or "". Raises ProxyRefused if several or encrypted."""
    try:
        return _server_name(record)
    except (IndexError, UnicodeDecodeError):
        raise ProxyRefused(403, "a tunnel is for TLS") from None


def _server_name(record: bytes) -> str:
    hello = _Reader(record)
    if hello.number(1) != _HANDSHAKE:
        raise IndexError
    hello.take(2)
    hello = _Reader(hello.take(hello.number(2)))
    if hello.number(1) != _CLIENT_HELLO:
        raise IndexError
    hello = _Reader(hello.take(hello.number(3)))
    hello.take(2 + 32)
    for size in (1, 2, 1):  # session, ciphers, compressions
        hello.take(hello.number(size))
    extensions = _Reader(hello.take(hello.number(2)))
    names = []
    while extensions.rest:
        kind, content = extensions.number(2), _Reader(extensions.take(extensions.number(2)))
        if kind == _ENCRYPTED_HELLO:
            raise ProxyRefused(403, "a tunnel must name its host openly")
        if kind == _SERVER_NAME:
            listed = _Reader(content.take(content.number(2)))
            listed.take(1)
            names.append(listed.take(listed.number(2)).decode("ascii").lower())
            if listed.rest or content.rest:
                raise IndexError
    if len(names) > 1:
        raise ProxyRefused(403, "a tunnel must name one host")
    return names[0] if names else ""


class _Reader:
    """Bytes from the left; IndexError where there are too few."""

    def __init__(self, content: bytes) -> None:
        self.rest = content

    def take(self, count: int) -> bytes:
        if len(self.rest) < count:
            raise IndexError
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")


_PIECE_BYTES = 65_536
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_MAX_REPORTED = 6
_Address = tuple[socket.AddressFamily, str, int]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """
    The limits of one command.

    ``names`` counts lookups in total, ``lookups`` those at once. ``connect_s`` covers all addresses of a host
    together; ``silence_s`` is the longest time without data in either direction.
    """

    connections: int = 1000
    at_once: int = 24
    names: int = 100
    lookups: int = 4
    bytes: int = 500_000_000
    head_s: float = 10.0
    connect_s: float = 10.0
    silence_s: float = 60.0


@dataclass(slots=True)
class ProxyConnection:
    """The record of one connection: its target, the bytes sent and received, or the refusal."""

    host: str = ""
    port: int = 0
    sent: int = 0
    received: int = 0
    refused: str = ""

    @property
    def where(self) -> str:
        """The host and the port."""
        return f"{self.host}:{self.port}" if self.host else "no host"


class CommandProxy:
    """
    Serves one command: ``hosts`` (see `host_pattern`) at addresses in ``reach``.

    ``opened`` is called with a host before the first byte goes there.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        reach: AddressReach,
        resolver: AbstractResolver,
        opened: Callable[[str], Awaitable[None]],
        limits: ProxyLimits = ProxyLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        self._hosts = hosts
        self._reach = reach
        self._resolver = resolver
        self._opened = opened
        self._limits = limits
        self._bytes = 0
        self._names: set[str] = set()
        self._lookups = anyio.Semaphore(limits.lookups)
        self.made: list[ProxyConnection] = []

    def connections_line(self) -> str:
        """One line on all connections; empty without any."""
        return "; ".join(
            part
            for part in (
                _counted("Connections", [each.where for each in self.made if not each.refused]),
                _counted("refused", [f"{each.where} ({each.refused})" for each in self.made if each.refused]),
            )
            if part
        )

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until this is cancelled; what is too much waits, and at last is closed."""
        loop = asyncio.get_running_loop()
        slots = anyio.Semaphore(self._limits.at_once)
        async with anyio.create_task_group() as tasks:
            while True:
                await slots.acquire()
                accepted, _ = await loop.sock_accept(listener)
                if len(self.made) >= self._limits.connections:
                    accepted.close()
                    await anyio.sleep(0.1)
                    slots.release()
                    continue
                connection = ProxyConnection()
                self.made.append(connection)
                tasks.start_soon(self._one, accepted, connection, slots)

    async def _one(
        self, accepted: socket.socket, connection: ProxyConnection, slots: anyio.Semaphore
    ) -> None:
        try:
            with closing(accepted):
                accepted.setblocking(False)
                try:
                    await self._carry(accepted, connection)
                except ProxyRefused as refused:
                    connection.refused = str(refused)
                    await self._say_no(accepted, refused)
        except OSError as error:  # TimeoutError is one
            if not connection.sent and not connection.received and not connection.refused:
                connection.refused = "too slow" if isinstance(error, TimeoutError) else "broken off"
        except Exception:  # noqa: BLE001 - one connection that fails ends neither the others nor the command
            connection.refused = connection.refused or "it cannot be carried out"
            _log.exception("shell.connection_failed", where=connection.where)
        finally:
            slots.release()
            _log.info(
                "shell.connection",
                where=connection.where,
                sent=connection.sent,
                received=connection.received,
                refused=connection.refused,
            )

    async def _carry(self, accepted: socket.socket, connection: ProxyConnection) -> None:
        with anyio.fail_after(self._limits.head_s):
            head, rest = await _until_empty_line(accepted)
        request = request_of(head)
        connection.host, connection.port = request.host, request.port
        if not is_listed(request.host, self._hosts):
            raise ProxyRefused(403, "not one of the hosts of tools.shell.network")
        addresses = await self._addresses_of(request)
        if request.is_tunnel:
            await asyncio.get_running_loop().sock_sendall(accepted, _ESTABLISHED)
            with anyio.fail_after(self._limits.head_s):
                rest = await _first_record(accepted, rest)
            check_tunnel(rest, request.host)
        else:
            rest = rest[: request.body_bytes]
        await self._opened(request.host)
        with closing(await self._connected(addresses)) as far:
            first = request.head + rest
            if self._is_spent(len(first)):
                raise ProxyRefused(403, "too many bytes")
            await asyncio.get_running_loop().sock_sendall(far, first)
            connection.sent += len(first)
            # A second request in the same connection could be for another host, so nothing of it goes on.
            more = None if request.is_tunnel else request.body_bytes - len(rest)
            relay = Relay(accepted, far, more=more, is_spent=self._is_spent, silence_s=self._limits.silence_s)
            try:
                await relay.run()
            finally:
                connection.sent += relay.sent
                connection.received += relay.received

    async def _addresses_of(self, request: ProxyRequest) -> Sequence[_Address]:
        """The addresses to try, one after the other: those that may be reached."""
        if is_address(request.host):
            family = socket.AF_INET6 if ":" in request.host else socket.AF_INET
            found = [(family, request.host)]
        else:
            found = await self._looked_up(request)
        why = "it has no address"
        allowed: dict[socket.AddressFamily, list[_Address]] = {}
        for family, address in dict.fromkeys(found):
            refusal = self._reach.refusal(ip_address(address.partition("%")[0]), request.port)
            if refusal is None:
                allowed.setdefault(family, []).append((family, address, request.port))
            else:
                why = refusal
        if not allowed:
            raise ProxyRefused(403, why)
        # Of both kinds by turns, because one of them may lead nowhere here.
        by_turns = (each for turn in zip_longest(*allowed.values()) for each in turn if each is not None)
        return list(islice(by_turns, 4))

    async def _looked_up(self, request: ProxyRequest) -> list[tuple[socket.AddressFamily, str]]:
        # Below `*.` there are as many names as somebody makes up, and each is told to a name server.
        if request.host not in self._names and len(self._names) >= self._limits.names:
            raise ProxyRefused(403, "too many names")
        self._names.add(request.host)
        try:
            with anyio.fail_after(self._limits.connect_s):
                async with self._lookups:
                    answers = await self._resolver.resolve(request.host, request.port, socket.AF_UNSPEC)
        except (OSError, TimeoutError):
            raise ProxyRefused(502, "there is no such host, or it cannot be looked up now") from None
        return [(socket.AddressFamily(each["family"]), each["host"]) for each in answers]

    async def _connected(self, addresses: Sequence[_Address]) -> socket.socket:
        """A connection to the first that answers in its part of the time."""
        for family, *where in addresses:
            made = socket.socket(family, socket.SOCK_STREAM)
            try:
                made.setblocking(False)
                with anyio.fail_after(self._limits.connect_s / len(addresses)):
                    await asyncio.get_running_loop().sock_connect(made, tuple(where))
            except OSError:  # TimeoutError is one
                made.close()
            except BaseException:
                made.close()
                raise
            else:
                return made
        raise ProxyRefused(502, "it cannot be reached now")

    def _is_spent(self, count: int) -> bool:
        self._bytes += count
        return self._bytes > self._limits.bytes

    async def _say_no(self, accepted: socket.socket, refused: ProxyRefused) -> None:
        body = f"squidbot's proxy: {refused}\n".encode()
        lines = (
            f"HTTP/1.1 {refused.status} Refused",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "",
            "",
        )
        with anyio.move_on_after(self._limits.head_s):
            await asyncio.get_running_loop().sock_sendall(accepted, "\r\n".join(lines).encode() + body)


async def _until_empty_line(accepted: socket.socket) -> tuple[bytes, bytes]:
    got = b""
    while b"\r\n\r\n" not in got:
        piece = await asyncio.get_running_loop().sock_recv(accepted, 4096)
        if not piece or len(got) > 16_384:
            raise ProxyRefused(400, "this is not an HTTP/1.1 request")
        got += piece
    head, _, rest = got.partition(b"\r\n\r\n")
    return head, rest


async def _first_record(accepted: socket.socket, got: bytes) -> bytes:
    """Read until a whole TLS record is there; returns less if it is none."""
    while len(got) < 5 or len(got) < min(5 + 16_384, 5 + int.from_bytes(got[3:5], "big")):
        if got and got[0] != 22:
            break
        piece = await asyncio.get_running_loop().sock_recv(accepted, _PIECE_BYTES)
        if not piece:
            break
        got += piece
    return got


def _counted(what: str, each: Sequence[str]) -> str:
    """Return ``what: a, b (3 times) and 4 more``."""
    counts = Counter(each).most_common()
    if not counts:
        return ""
    shown = [name if count == 1 else f"{name} ({count} times)" for name, count in counts[:_MAX_REPORTED]]
    if len(counts) > _MAX_REPORTED:
        shown.append(f"{len(counts) - _MAX_REPORTED} more")
    return f"{what}: {', '.join(shown)}"


class Relay:
    """
    Relays between two sockets, at most ``more`` bytes to the far one (None: any).

    Ends when ``is_spent`` (called per piece) is True, or after ``silence_s`` without data.
    """

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        *,
        more: int | None,
        is_spent: Callable[[int], bool],
        silence_s: float,
    ) -> None:
        self._near, self._far = near, far
        self._more = more
        self._is_spent = is_spent
        self._silence_s = silence_s
        self._scope = anyio.CancelScope()
        self.sent = self.received = 0

    async def run(self) -> None:
        """Until it ends; an end that breaks off ends it, too."""
        self._note_progress()
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ending, self._outwards)
                await self._ending(self._inwards)
                tasks.cancel_scope.cancel()

    async def _ending(self, direction: Callable[[], Awaitable[None]]) -> None:
        try:
            await direction()
        except OSError:
            self._scope.cancel()

    async def _outwards(self) -> None:
        left = self._more
        while left is None or left > 0:
            most = _PIECE_BYTES if left is None else min(_PIECE_BYTES, left)
            piece = await self._moved(self._near, self._far, most)
            self.sent += piece
            left = None if left is None else left - piece
            if not piece:
                break
        if self._more is None:
            self._far.shutdown(socket.SHUT_WR)

    async def _inwards(self) -> None:
        while piece := await self._moved(self._far, self._near, _PIECE_BYTES):
            self.received += piece

    async def _moved(self, source: socket.socket, target: socket.socket, most: int) -> int:
        """Forward one piece; return its number of bytes, 0 at the end."""
        await anyio.lowlevel.checkpoint()  # where bytes are always there, nothing below waits
        loop = asyncio.get_running_loop()
        piece = await loop.sock_recv(source, most)
        if not piece:
            return 0
        if self._is_spent(len(piece)):
            self._scope.cancel()
            return 0
        await loop.sock_sendall(target, piece)
        self._note_progress()
        return len(piece)

    def _note_progress(self) -> None:
        self._scope.deadline = anyio.current_time() + self._silence_s
