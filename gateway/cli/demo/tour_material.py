"""
What the demo's tour needs: a voice (espeak-ng, and a stand-in for a provider that understands it), and a web
site of one page on loopback.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devservers.errors import DevServerError
from devservers.transcription import TranscriptionServer, with_words

if TYPE_CHECKING:
    from contextlib import ExitStack

    from devservers.matrix_peer import MatrixPeer

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


_LONGEST = 1000


class SpeechUnavailable(DevServerError):
    """espeak-ng is not installed, or does not speak."""


def transcription_standin(stack: ExitStack) -> dict[str, Any]:
    """The settings with which the daemon transcribes by the stand-in, which runs as long as the demo."""
    server = stack.enter_context(TranscriptionServer())
    return {"api_base": server.api_base, "api_key": "demo"}


def speak(alice: MatrixPeer, room: str, text: str) -> None:
    """Say something as a voice message. Raises SpeechUnavailable."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise SpeechUnavailable("espeak-ng is not installed; on Debian: apt install espeak-ng")
    with tempfile.TemporaryDirectory(prefix="squidbot-voice-") as folder:
        path = Path(folder) / "voice.wav"
        command = [program, "-w", str(path), "--", text[:_LONGEST]]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30.0)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            raise SpeechUnavailable(f"espeak-ng does not speak: {error}") from error
        sound = with_words(path.read_bytes(), text[:_LONGEST])
    content = {
        "msgtype": "m.audio",
        "body": "Voice message.wav",
        "info": {"mimetype": "audio/wav", "size": len(sound)},
        "url": _uploaded(alice, sound),
        "org.matrix.msc3245.voice": {},
    }
    alice.send_event(room, "m.room.message", content)


def _uploaded(alice: MatrixPeer, content: bytes) -> str:
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{alice.url}/_matrix/media/v3/upload",
        data=content,
        headers={"Authorization": f"Bearer {alice.access_token}", "Content-Type": "audio/wav"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
        return str(json.load(answer)["content_uri"])
