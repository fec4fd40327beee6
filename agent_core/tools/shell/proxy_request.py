"""
Parses and checks a command's requests to the proxy. Pure.

A request is taken apart strictly and put together anew. The host is that of its address alone: what the
command writes as ``Host`` is left out. A tunnel carries TLS to the very host that it was asked for, because
one address may serve many hosts; one to a listed address carries TLS that names no host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

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
