"""Parses addresses to listen on, and tells whether they are of this machine alone. Pure."""

from __future__ import annotations

import ipaddress


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``host:port``, IPv6 hosts in brackets. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f'must be "host:port", such as "127.0.0.1:8811"; got {text!r}')
    if ":" in bare and not host.startswith("["):
        raise ValueError(f'an IPv6 address stands in brackets, such as "[::1]:8811"; got {text!r}')
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
