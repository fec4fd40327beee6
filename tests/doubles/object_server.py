"""An S3-compatible store on loopback (moto's), and a stand-in before it that can be away, slow, or tell lies."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from channels.attachments.object_storage import ObjectFiles
from devservers.environment import cache_folder
from devservers.ports import lease_ports

BUCKET = "files"
KEYS = {
    "region": "us-east-1",
    "access_key_id": "AKIAOFTHETEST",
    "secret_access_key": "the-secret-of-the-test",
}
_STATUSES = {"failing": 500, "busy": 503, "refusing": 403}
_AGE = timedelta(days=3)
_LISTED = re.compile(rb"<Key>([^<]*)</Key>(\s*)<LastModified>([^<]*)</LastModified>")


def _end_of(key: str) -> str:
    """Folder and name: marks and notes have the name of the content."""
    return "/".join(key.split("/")[-2:])


class ObjectServer:
    """moto's server in a process of its own, with one bucket."""

    def __init__(self, folder: Path) -> None:
        [self._lease] = lease_ports(1, cache_folder() / "ports")
        self.url = f"http://127.0.0.1:{self._lease.port}"
        with (folder / "objects.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._lease.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(
                    urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT"), timeout=5
                ).close()
                return
            except OSError:
                assert time.monotonic() < until, (folder / "objects.log").read_text()
                time.sleep(0.1)

    def storage(self, prefix: str, *, url: str = "", **options: object) -> ObjectFiles:
        """What keeps files below a prefix."""
        return ObjectFiles(BUCKET, prefix, options={"endpoint": url or self.url, **KEYS}, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(120)
        self._lease.release()


class Gate:
    """
    Stands before a server and passes on what is asked, as ``way`` says.

    ``open``; ``away``, it hangs up; ``failing``, status 500; ``busy``, status 503; ``stuck``, no answer until the way changes;
    ``refusing``, status 403; ``broken``, the body ends in the middle; ``short``, it is whole and says that it is shorter;
    ``wrong``, its first byte is another. The last three only of GET.
    ``late``, a removal is carried out, but never answered.
    """

    def __init__(self, url: str) -> None:
        self.way = "open"
        self.aged: set[str] = set()
        """Contents, by the end of their keys, that count as written three days ago until somebody writes them."""
        self.asked: Counter[str] = Counter()
        gate = self
        target = urlsplit(url)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                gate.asked[self.command] += 1
                while (way := gate.way) == "stuck":
                    time.sleep(0.05)
                if way == "away":
                    self.close_connection = True
                    return
                if way in _STATUSES:
                    self.send_response(_STATUSES[way])
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                there = http.client.HTTPConnection(target.hostname, target.port, timeout=120)
                try:
                    headers = {
                        key: value for key, value in self.headers.items() if key.lower() != "accept-encoding"
                    }
                    there.request(self.command, self.path, body=body, headers=headers)
                    answer = there.getresponse()
                    content = answer.read()
                    name = _end_of(self.path.partition("?")[0])
                    if self.command == "PUT" and answer.status == 200:
                        gate.aged.discard(name)
                    if self.command == "GET" and "list-type" in self.path:
                        content = _LISTED.sub(gate.listed, content)
                    if way == "late" and (self.command == "DELETE" or self.path.endswith("?delete")):
                        gate.asked["removal"] += 1
                        self.close_connection = True
                        return
                    self.reply(answer, content, way, name)
                finally:
                    there.close()

            def reply(self, answer: http.client.HTTPResponse, content: bytes, way: str, name: str) -> None:
                is_object = (
                    self.command == "GET" and "list-type" not in self.path and answer.status in (200, 206)
                )
                lying = is_object and bool(content)
                size = len(content)
                if lying and way == "wrong":
                    content = bytes([content[0] ^ 1]) + content[1:]
                if lying and way == "short":
                    content, size = content[:-1], size - 1
                self.send_response(answer.status)
                for key, value in answer.getheaders():
                    if key.lower() in ("content-length", "connection", "transfer-encoding", "date", "server"):
                        continue
                    if key.lower() == "last-modified" and name in gate.aged:
                        value = format_datetime(parsedate_to_datetime(value) - _AGE, usegmt=True)
                    if key.lower() == "content-range" and lying and way == "short":
                        value = f"bytes 0-{size - 1}/{size}"
                    self.send_header(key, value)
                length = answer.getheader("content-length") if self.command == "HEAD" else str(size)
                self.send_header("content-length", length or "0")
                self.end_headers()
                if lying and way == "broken":
                    self.wfile.write(content[: size // 2])
                    self.close_connection = True
                elif self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = pass_on

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def listed(self, found: re.Match[bytes]) -> bytes:
        """One object of a listing, as old as it counts."""
        key, between, at = found.groups()
        if _end_of(key.decode()) not in self.aged:
            return found[0]
        then = datetime.fromisoformat(at.decode()) - _AGE
        return b"<Key>%b</Key>%b<LastModified>%b</LastModified>" % (
            key, between, then.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode(),
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the port."""
        self.way = "away"
        self._server.shutdown()
        self._server.server_close()
