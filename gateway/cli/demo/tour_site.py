"""A web site of one page on loopback, for the demo's assistant to read."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PAGE = b"""<!doctype html><title>Squids</title>
<h1>Squids</h1>
<p>Squids have eight arms, two tentacles and three hearts. They swim by jet propulsion.</p>
<p>Whoever has written this page could also have written an order to the assistant.</p>
"""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as the base class has it
        """Say nothing about it."""


class Site:
    """The running site."""

    def __init__(self, port: int) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The address of its page."""
        return f"http://127.0.0.1:{self._server.server_port}/squids"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
