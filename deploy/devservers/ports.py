"""Free loopback ports that stay ours.

Ports above 32767 are handed out by the kernel for outgoing connections, so a server placed there fails at
random; below 10000 live the well-known services. A probe alone is not enough when several test runs share
a machine: between probe and bind another run may probe the same port, and its server would then answer
our health check. Every port is therefore leased: a locked file per port, held for as long as the server
may come back to it (a restart uses the same ports). The lock dies with the process, so nothing is left
behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
from typing import TYPE_CHECKING, Self

from devservers.errors import StartFailed

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

LOWEST = 10_000
HIGHEST = 32_767


class PortLease:
    """One port number, reserved among all development servers of this user."""

    def __init__(self, port: int, path: Path, descriptor: int) -> None:
        """Take over an open and locked file descriptor."""
        self.port = port
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def take_or_none(cls, port: int, folder: Path) -> Self | None:
        """Lease one port, or say None when somebody has it."""
        path = folder / str(port)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same_file = os.fstat(descriptor).st_ino == path.stat().st_ino
            if same_file and _can_bind(port):
                return cls(port, path, descriptor)
        except OSError:
            pass
        os.close(descriptor)
        return None

    def release(self) -> None:
        """Give the port back; a second call does nothing."""
        if self._descriptor is None:
            return
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None


def lease_ports(count: int, folder: Path) -> list[PortLease]:
    """Lease `count` different ports, probing from a random start."""
    folder.mkdir(parents=True, exist_ok=True)
    span = HIGHEST - LOWEST + 1
    start = random.randrange(span)
    leases: list[PortLease] = []
    for step in range(span):
        if len(leases) == count:
            return leases
        lease = PortLease.take_or_none(LOWEST + (start + step) % span, folder)
        if lease is not None:
            leases.append(lease)
    for lease in leases:
        lease.release()
    raise StartFailed(f"no {count} free ports between {LOWEST} and {HIGHEST} on 127.0.0.1")


def answers_with(port: int, greeting: bytes, context: ssl.SSLContext | None = None) -> bool:
    """Whether the server on a loopback port greets with these bytes (inside TLS, if a context is given)."""
    try:
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            link = plain
            if context is not None:
                link = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            return link.recv(len(greeting)) == greeting
    except OSError:
        return False


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
