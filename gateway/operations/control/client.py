"""
The command line's side of the control socket. Plain and synchronous on the standard library: a command must
not spend longer on loading a network library than on its question.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.errors import GatewayError
from gateway.system.home import Home, short_path

__all__ = ["ControlClient", "ControlFailed", "DaemonGone", "UnixConnection"]


class DaemonGone(GatewayError):
    """The daemon holds the home folder but does not answer; it may be starting or stopping. Try again."""

    temporary = True
    exit_code = 75


class ControlFailed(GatewayError):
    """The daemon refused."""

    def __init__(self, detail: str, /, *, kind: str, exit_code: int) -> None:
        super().__init__(detail, kind=kind)
        self.kind = kind
        self.exit_code = exit_code


class ControlClient:
    """
    Asks the daemon of a home folder.

    Args:
        limit_s: How long an answer may take.
    """

    def __init__(self, home: Home, *, limit_s: float = 70.0) -> None:
        self._path = home.control_socket
        self._limit_s = limit_s

    def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        Call an operation.

        Raises:
            DaemonGone: Nobody answers.
            ControlFailed: The daemon says why not.
        """
        connection = UnixConnection(self._path, self._limit_s)
        try:
            body = json.dumps(dict(arguments or {})).encode()
            connection.request("POST", f"/op/{name}", body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DaemonGone(
                f"{DaemonGone.__doc__} ({type(error).__name__})", socket=str(self._path)
            ) from error
        finally:
            connection.close()
        if "error" in answer:
            told = answer["error"]
            raise ControlFailed(told["message"], kind=told["kind"], exit_code=told["exit_code"])
        result: dict[str, Any] = answer["result"]
        return result


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket of the file system."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Reach the socket, also where its path is too long for the kernel."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with short_path(self._path) as path:
            self.sock.connect(path)
