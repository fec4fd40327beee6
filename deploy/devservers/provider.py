"""What the stand-ins for providers share: a server in a thread, and the trouble that requests get instead."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType


@dataclass(frozen=True)
class Trouble:
    """What one request gets instead of its answer: nothing for so long, or until then, and then this."""

    status: int = 200
    body: bytes = b""
    wait_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    until: threading.Event | None = None


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that were killed are what it is there for."""


class ServerInThread:
    """An HTTP server on a free port of this machine, from ``with`` on, for tests with and without a loop."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._http = _Quiet(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self.api_base = f"http://127.0.0.1:{self._http.server_port}/v1"
        """Its address, up to and with ``/v1``."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class ProviderServer(ServerInThread, ABC):
    """
    A server of JSON requests at one path. ``asked`` has their bodies, ``keys`` what they were authorised by.

    Args:
        path: Behind ``/v1``.
        wait_s: So long each request takes.
    """

    def __init__(self, path: str, *, wait_s: float = 0.0) -> None:
        self.wait_s = wait_s
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self._trouble: deque[Trouble] = deque()
        self._path = f"/v1{path}"
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server._answer(self)

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        super().__init__(Handler)

    def plan(self, *trouble: Trouble) -> None:
        """What the next requests get."""
        self._trouble.extend(trouble)

    @abstractmethod
    def right_answer(self, body: Mapping[str, Any]) -> tuple[bytes, str]:
        """What a request gets that is in no trouble, and its media type."""

    @abstractmethod
    def was_given(self, body: Mapping[str, Any]) -> None:
        """The right answer was sent whole."""

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if handler.path != self._path:
            _send(handler, 404, b"{}", {})
            return
        self.asked.append(body)
        self.keys.append(handler.headers.get("Authorization", ""))
        trouble = self._trouble.popleft() if self._trouble else None
        time.sleep(self.wait_s if trouble is None else trouble.wait_s)
        if trouble is not None and trouble.until is not None:
            trouble.until.wait(60)
        if trouble is not None and (trouble.body or trouble.status != 200):
            _send(handler, trouble.status, trouble.body, trouble.headers)
            return
        content, media_type = self.right_answer(body)
        if _send(handler, 200, content, {"Content-Type": media_type}):
            self.was_given(body)


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]) -> bool:
    try:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)
    except OSError:
        handler.close_connection = True
        return False
    return True
