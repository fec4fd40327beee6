"""
A stand-in for a provider of pictures: ``/v1/images/generations`` as OpenAI has it.

A picture is a real PNG, small, of a colour that follows from the prompt. It serves from a thread of its own,
for tests with and without a loop.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
import time
import zlib
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from devservers.speech import Trouble

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["ImageServer", "png_of"]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(text: str, *, width: int = 8, height: int = 8) -> bytes:
    """A picture of one colour, the same for the same text."""
    colour = hashlib.sha256(text.encode("utf-8", "replace")).digest()[:3]
    rows = (b"\0" + colour * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


class ImageServer:
    """
    The server. ``asked`` has the bodies of all requests, ``paid`` the prompts whose pictures were sent whole.

    Args:
        wait_s: So long each request takes.
    """

    def __init__(self, *, wait_s: float = 0.0) -> None:
        self.wait_s = wait_s
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.paid: list[str] = []
        self._trouble: deque[Trouble] = deque()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server._answer(self)

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self.api_base = f"http://127.0.0.1:{self._http.server_port}/v1"

    def plan(self, *trouble: Trouble) -> None:
        """What the next requests get."""
        self._trouble.extend(trouble)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if handler.path != "/v1/images/generations":
            self._send(handler, 404, b"{}", {})
            return
        self.asked.append(body)
        self.keys.append(handler.headers.get("Authorization", ""))
        trouble = self._trouble.popleft() if self._trouble else None
        time.sleep(self.wait_s if trouble is None else trouble.wait_s)
        if trouble is not None and (trouble.body or trouble.status != 200):
            self._send(handler, trouble.status, trouble.body, trouble.headers)
            return
        count = int(body.get("n") or 1)
        made = [png_of(f"{body['prompt']} {number}") for number in range(count)]
        answer = {
            "created": 1,
            "data": [{"b64_json": base64.b64encode(each).decode()} for each in made],
            "usage": {"input_tokens": 12, "output_tokens": 100 * count, "total_tokens": 12 + 100 * count},
        }
        if self._send(handler, 200, json.dumps(answer).encode(), {"Content-Type": "application/json"}):
            self.paid.append(body["prompt"])

    @staticmethod
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

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
