"""What `squidbot init` does when a homeserver slows it down, or a server is not to be found."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from channels.base import ChannelAuthFailed, ChannelUnavailable
from channels.email.setup import mail_form as email_form
from channels.email.setup.mail_form import EmailForm
from channels.matrix.setup.matrix_form import MatrixForm
from channels.matrix.setup.matrix_probe import enter
from channels.setup import SetupFailed, SetupServices
from gateway.cli.login import TerminalPerson
from gateway.cli.setup.dialogue import UnattendedDialogue
from gateway.cli.setup.options import parse_options
from gateway.system.clock import SystemClock


def services(folder=None):
    return SetupServices(clock=SystemClock(), person=TerminalPerson(), state=lambda: folder)


@contextmanager
def homeserver(refusals, *, pause_ms=20):
    """One that takes the login only after so many refusals with a pause; gives its address and what was asked."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self._say(200, {"flows": [{"type": "m.login.password"}], "versions": ["v1.11"]})

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            if len(asked) <= refusals:
                self._say(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "slow", "retry_after_ms": pause_ms})
            else:
                self._say(200, {"user_id": "@bot:hs.test", "access_token": "t", "device_id": "D"})

        def _say(self, status, body):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("refusals", "works"), [(0, True), (3, True), (4, False)])
def test_a_pause_that_is_asked_for_is_made(refusals, works):
    """As long as the homeserver wants, three times; then it is told."""
    with homeserver(refusals) as (address, asked):
        if works:
            enter(address, "@bot:hs.test", "pw", None, SystemClock()).folder.joinpath(
                "session.json"
            ).read_bytes()
        else:
            with pytest.raises(ChannelUnavailable):
                enter(address, "@bot:hs.test", "pw", None, SystemClock())
    assert len([path for path in asked if path.endswith("/login")]) == min(refusals, 3) + 1


def test_a_long_pause_is_told_and_not_made():
    """Nobody waits an hour at a prompt."""
    with homeserver(9, pause_ms=3_600_000) as (address, asked), pytest.raises(ChannelUnavailable):
        enter(address, "@bot:hs.test", "pw", None, SystemClock())
    assert len(asked) == 1


def test_a_homeserver_that_is_not_there_is_named(tmp_path):
    """Which one, and how to name another."""
    given = parse_options(
        {"yes": True, "matrix_user": "@bot:127.0.0.1:9", "matrix_homeserver": "http://127.0.0.1:9"}, {}
    )
    with pytest.raises(SetupFailed) as caught:
        MatrixForm().ask(given.as_mapping(), None, UnattendedDialogue(), services(tmp_path))
    assert "http://127.0.0.1:9" in str(caught.value)
    assert "--matrix-homeserver" in str(caught.value)


def test_a_mail_server_that_is_not_there_is_named():
    """Likewise."""
    there = {"imap": "127.0.0.1:1", "smtp": "127.0.0.1:1", "email_address": "bot@mail.test"}
    given = parse_options({"yes": True, **there}, {"SQUIDBOT_INIT_EMAIL_PASSWORD": "pw"})
    with pytest.raises(SetupFailed) as caught:
        EmailForm().ask(given.as_mapping(), None, UnattendedDialogue(), services())
    for word in ("127.0.0.1:1", "--imap and --smtp", "Nothing was written"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (ChannelAuthFailed("the password is wrong"), "--email-password-file"),
        (ChannelUnavailable("nobody has signed it; name its certificate in tls_ca_file"), "--tls-ca-file"),
        (ChannelUnavailable("no connection"), "--imap"),
    ],
)
def test_what_went_wrong_with_the_mailbox_names_its_options(monkeypatch, error, option):
    """Those that help, and no others."""

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(email_form, "probe_mailbox", fails)
    given = parse_options(
        {"yes": True, "email_address": "b@mail.test", "imap": "a", "smtp": "a"},
        {"SQUIDBOT_INIT_EMAIL_PASSWORD": "p"},
    )
    with pytest.raises(SetupFailed) as caught:
        EmailForm().ask(given.as_mapping(), None, UnattendedDialogue(), services())
    named = [
        each for each in ("--email-password-file", "--tls-ca-file", "--imap") if each in str(caught.value)
    ]
    assert named == [option]
