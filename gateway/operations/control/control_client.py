"""
The client side of the control socket: one request and one answer, both with a length.

The standard library's HTTP client brings TLS and mail headers along, which take longer to load than the
answer takes to come. So the few lines of HTTP that our own server understands are written here.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.errors import GatewayError
from gateway.system.home import Home, short_path

_MAX_LINE = 8192
MAX_REQUEST_BYTES = 1_000_000
"""Most bytes of one request: the longest text of a message or document, above any command's need."""
TOO_MUCH = f"this is too much for one request; at most {MAX_REQUEST_BYTES:,} bytes"


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


_SILENCE_S = 70.0
"""How long a daemon may take until it answers."""


class ControlClient:
    """Asks the daemon of a home folder."""

    def __init__(self, home: Home) -> None:
        self._path = home.control_socket
        self.timezone = ""
        """The zone of the times that the daemon shows, since its last answer; empty: this machine's."""

    def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call an operation. Raises DaemonGone, or ControlFailed with the daemon's reason."""
        try:
            _, answer = exchange(self._path, f"POST /op/{name}", dict(arguments or {}), limit_s=_SILENCE_S)
        except (OSError, ValueError) as error:
            raise DaemonGone(
                f"{DaemonGone.__doc__} ({type(error).__name__})", socket=str(self._path)
            ) from error
        if "error" in answer:
            told = answer["error"]
            raise ControlFailed(told["message"], kind=told["kind"], exit_code=told["exit_code"])
        self.timezone = str(answer.get("timezone") or "")
        result: dict[str, Any] = answer["result"]
        return result


def exchange(path: Path, request: str, value: object = None, *, limit_s: float) -> tuple[int, Any]:
    """
    Send one request, such as ``GET /livez``, to a socket; return the status and the answer.

    ``value`` is sent as JSON; ``limit_s`` is the longest silence. Raises ControlFailed (too long), OSError,
    or ValueError (malformed).
    """
    body = b"" if value is None else json.dumps(value).encode()
    if len(body) > MAX_REQUEST_BYTES:
        raise ControlFailed(TOO_MUCH, kind="RequestInvalid", exit_code=2)
    head = f"{request} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(limit_s)
        with short_path(path) as name:
            link.connect(name)
        link.sendall(head.encode() + body)
        with link.makefile("rb") as answer:
            _, status, *_ = answer.readline(_MAX_LINE).split(maxsplit=2)
            length = -1
            while (line := answer.readline(_MAX_LINE)) not in (b"\r\n", b""):
                field, _, told = line.partition(b":")
                length = int(told) if field.lower() == b"content-length" else length
            if length < 0:
                raise ValueError("the answer has no content length")
            return int(status), json.loads(answer.read(length))
