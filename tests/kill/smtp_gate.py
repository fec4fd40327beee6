"""
`SmtpGate`: stands between a daemon and its submission server, and pulls a trigger at a named point.

The daemon speaks to it in the clear (on this machine that is allowed), it speaks STARTTLS to the server. What
the server has accepted stays accepted, whoever dies meanwhile; ``filing`` makes it a provider that puts what
is submitted into the Sent folder by itself, before it says so.
"""

from __future__ import annotations

import contextlib
import imaplib
import re
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from devservers import MailPeer

POINTS = ("greeting", "AUTH", "MAIL", "RCPT", "DATA", "354", "content", "accepted", "told", "QUIT")
"""
Before the greeting, before each command goes on, before the daemon hears 354, before the mail goes on, after
the server has it, after the daemon was told, and when it says goodbye.
"""
_END = b"\r\n.\r\n"


class SmtpGate:
    """
    Serves in threads; ``arm`` sets the trap for the next connection that comes so far.

    Args:
        upstream: The port of the server.
        peer: The bot's own mailbox: whose TLS settings are used, and where copies are filed.
        filing: Whether copies are filed.
    """

    def __init__(self, upstream: int, peer: MailPeer, *, filing: bool) -> None:
        self._upstream = upstream
        self._peer = peer
        self._filing = filing
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._point = ""
        self._pull: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self.pulled = threading.Event()
        self._threads: list[threading.Thread] = []

    def arm(self, point: str, pull: Callable[[], None]) -> None:
        """At ``point``, call ``pull`` once."""
        with self._lock:
            self._point, self._pull = point, pull
            self.pulled.clear()

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._guarded, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _guarded(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError, ssl.SSLError):
            client.settimeout(20)
            with socket.create_connection(("127.0.0.1", self._upstream), timeout=120) as raw:
                self._serve(client, raw)

    def _serve(self, client: socket.socket, raw: socket.socket) -> None:
        greeting = _reply(raw)
        raw.sendall(b"EHLO gate\r\n")
        _reply(raw)
        raw.sendall(b"STARTTLS\r\n")
        _reply(raw)
        self._at("greeting")
        with self._peer.tls.wrap_socket(raw, server_hostname="127.0.0.1") as server:
            client.sendall(greeting)
            while True:
                line = _until(client, b"\r\n")
                word = line.split(None, 1)[0].decode().upper() if line.split() else ""
                self._at(word)
                server.sendall(line)
                answer = _reply(server)
                if word == "DATA" and answer.startswith(b"354"):
                    self._take(client, server, answer)
                else:
                    with contextlib.suppress(OSError):
                        client.sendall(answer)
                if word == "QUIT":
                    return

    def _take(self, client: socket.socket, server: ssl.SSLSocket, answer: bytes) -> None:
        self._at("354")
        client.sendall(answer)
        content = _until(client, _END)
        self._at("content")
        server.sendall(content)
        answer = _reply(server)
        if self._filing and answer.startswith(b"250"):
            with self._peer.imap() as imap:
                mail = re.sub(rb"(?m)^\.\.", b".", content[: -len(_END)] + b"\r\n")
                imap.append("Sent", "(\\Seen)", imaplib.Time2Internaldate(0), mail)
        self._at("accepted")
        client.sendall(answer)
        self._at("told")

    def _at(self, point: str) -> None:
        with self._lock:
            is_it = point == self._point
            if is_it:
                self._point = ""
        if is_it:
            self._pull()
            self.pulled.set()


def _until(source: socket.socket, end: bytes) -> bytes:
    got = bytearray()
    while not got.endswith(end):
        # One byte too many would belong to the next command, which nobody sends before he is answered.
        piece = source.recv(65536)
        if not piece:
            raise EOFError
        got += piece
    return bytes(got)


def _reply(source: socket.socket) -> bytes:
    got = bytearray()
    while not re.search(rb"(?:\A|\r\n)\d\d\d [^\r\n]*\r\n\Z|(?:\A|\r\n)\d\d\d\r\n\Z", got):
        piece = source.recv(65536)
        if not piece:
            raise EOFError
        got += piece
    return bytes(got)
