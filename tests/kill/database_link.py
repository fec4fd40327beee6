"""The way of one machine to the database, which can be cut, or swallow what is said, while others have theirs."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Self

from devservers.environment import cache_folder
from devservers.ports import lease_ports

_RESET = struct.pack("ii", 1, 0)


class DatabaseLink:
    """Passes bytes on to a port of this machine; also a context manager that ends it."""

    def __init__(self, target: int) -> None:
        self._target = target
        [self._lease] = lease_ports(1, cache_folder() / "ports")
        self.port = self._lease.port
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._passes = threading.Event()
        self._passes.set()
        self._refuses = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset what is connected, and refuse whatever comes."""
        self._refuses = True
        self._reset()

    def fall_silent(self) -> None:
        """Nothing goes through, and nobody is told."""
        self._passes.clear()

    def go_on(self) -> None:
        """As before; connections that were cut stay so."""
        self._refuses = False
        self._passes.set()

    def _reset(self) -> None:
        with self._lock:
            ended, self._open = self._open, set()
        for end in ended:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                here.close()
                continue
            try:
                there = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                here.close()
                continue
            there.settimeout(None)
            with self._lock:
                self._open |= {here, there}
            for ends in ((here, there), (there, here)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                self._passes.wait()
                to.sendall(content)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._open -= {source, to}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.go_on()
        self._reset()
        self._lease.release()
