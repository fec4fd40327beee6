"""``squidbot email login`` printed what the provider sent into the terminal as it was, and ended in tracebacks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.command_line import squidbot

pytestmark = pytest.mark.slow

ESCAPE = "\\u001b]0;owned\\u0007\\u001b[2J\\u202e"
CODE = '"device_code": "d", "interval": 1, "expires_in": 3'


@contextmanager
def provider(device: bytes, token: bytes, status: int = 200) -> Iterator[str]:
    """Whatever it is told to answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            is_device = self.path == "/device"
            body = device if is_device else token
            self.send_response(200 if is_device else status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_config(home: Path, url: str, flow: str) -> None:
    oauth = {
        "provider": "custom",
        "client_id": "squid",
        "scope": "mail",
        "flow": flow,
        "device_endpoint": f"{url}/device",
        "authorization_endpoint": f"{url}/authorize",
        "token_endpoint": f"{url}/token",
    }
    email = {
        "address": "bot@mail.test",
        "username": "bot",
        "oauth": oauth,
        "imap": {"host": "127.0.0.1"},
        "smtp": {"host": "127.0.0.1"},
        "sender_verification": "off",
    }
    config = {"owner": {"aliases": ["@a:hs.test"]}, "channels": {"email": email}}
    (home / "squidbot.yaml").write_text(yaml.safe_dump(config))


def check(home: Path, url: str, flow: str = "device", pasted: str = "") -> str:
    """Exit code 1, a sentence, no traceback, and nothing that steers a terminal."""
    write_config(home, url, flow)
    done = squidbot(home, "email", "login", stdin=pasted)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert done.returncode == 1, said
    assert said.replace("\n", "").isprintable()
    return str(said)


@pytest.mark.parametrize(
    ("device", "token", "status", "said"),
    [
        (
            f'{{"verification_uri": "https://id.test/{ESCAPE}", "user_code": "A{ESCAPE}\\nType your password:", {CODE}}}',
            f'{{"error": "access_{ESCAPE}denied", "error_description": "no{ESCAPE}\\nno"}}',
            400,
            "enter A]0;owned[2J and log in there",
        ),
        (f'{{"error": "{ESCAPE}", {CODE}}}', "{}", 200, "no usable code"),
        (f'{{"verification_uri": 7, "user_code": "A", {CODE}}}', "{}", 200, "no usable code"),
        (f'{{"verification_uri": "javascript:1", "user_code": "A", {CODE}}}', "{}", 200, "no usable code"),
        ("[" * 150_000, "{}", 200, "unreadable body"),
        ('{"device_code": "d", "interval": 1' + "0" * 400 + "}", "{}", 200, "no usable code"),
    ],
)
def test_whatever_the_provider_says(tmp_path: Path, device: str, token: str, status: int, said: str) -> None:
    """It is told in a sentence."""
    with provider(device.encode(), token.encode(), status) as url:
        assert said in check(tmp_path, url)


@pytest.mark.parametrize(
    "pasted", ["", "http://[\n", "\udcff\n".encode("utf-8", "surrogateescape").decode("latin-1"), "x\n"]
)
def test_whatever_is_pasted(tmp_path: Path, pasted: str) -> None:
    """Nothing, half an address, another one."""
    assert "begin again" in check(tmp_path, "http://127.0.0.1:9", "browser", pasted)


def test_tokens_that_cannot_be_kept(tmp_path: Path) -> None:
    """A file lies where their folder should be."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "email").write_text("")
    given = b'{"access_token": "a", "refresh_token": "r"}'
    device = f'{{"verification_uri": "https://id.test/", "user_code": "A", {CODE}}}'
    with provider(device.encode(), given) as url:
        assert "state/email" in check(tmp_path, url)
