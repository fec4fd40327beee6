"""
A stand-in for a server that turns speech into text (``/audio/transcriptions`` of OpenAI's protocol).

It understands no sound: it gives back what a sound file says of itself in a comment (``ICMT`` of a WAV file,
``says=`` of an Ogg file; see `says`), and is unsure of any other. It counts what it was asked, by the content
of the file, and does wrong what it is told to.
"""

from __future__ import annotations

import collections
import email.parser
import hashlib
import json
import re
import struct
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from devservers.provider import ServerInThread

if TYPE_CHECKING:
    from collections.abc import Mapping

_WAV_WORDS = re.compile(rb"ICMT(....)", re.DOTALL)
_OGG_WORDS = re.compile(rb"(....)says=", re.DOTALL)
_UNKNOWN = "something that nobody can make out"


@dataclass(frozen=True)
class Reply:
    """What the next request gets. ``body`` None: a right answer; ``hang`` answers only after ``wait_s``."""

    status: int = 200
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    cut: bool = False
    logprob: float = -0.1


def says(content: bytes) -> str:
    """The words that a sound file has in its comment; empty if it has none."""
    if found := _WAV_WORDS.search(content):
        size = struct.unpack("<I", found[1])[0]
        return content[found.end() : found.end() + size].rstrip(b"\0").decode(errors="replace")
    if found := _OGG_WORDS.search(content):
        size = struct.unpack("<I", found[1])[0]
        return content[found.end() : found.end() + size - 5].decode(errors="replace")
    return ""


def with_words(wav: bytes, words: str) -> bytes:
    """A WAV file with the words that were spoken in it as its comment."""
    note = words.encode() + b"\0" * (len(words.encode()) % 2)
    info = b"INFO" + struct.pack("<4sI", b"ICMT", len(note)) + note
    body = wav[8:12] + struct.pack("<4sI", b"LIST", len(info)) + info + wav[12:]
    return wav[:4] + struct.pack("<I", len(body)) + body


class TranscriptionServer(ServerInThread):
    """
    The server, in a thread.

    ``asked`` counts requests by the SHA-256 of the file, ``answered`` those that got a right answer.
    """

    def __init__(self) -> None:
        self.asked: collections.Counter[str] = collections.Counter()
        self.answered: collections.Counter[str] = collections.Counter()
        self.fields: list[dict[str, str]] = []
        """The fields of each request, without the file."""
        self.always: Reply | None = None
        """What every request gets for which nothing is planned."""
        self._planned: collections.deque[Reply] = collections.deque()
        super().__init__(type("Handler", (_Handler,), {"owner": self}))

    def plan(self, *replies: Reply) -> None:
        """What the next requests get."""
        self._planned.extend(replies)

    def next_reply(self) -> Reply:
        """What this request gets."""
        return self._planned.popleft() if self._planned else self.always or Reply()


class _Handler(BaseHTTPRequestHandler):
    owner: TranscriptionServer

    def do_POST(self) -> None:
        owner = self.owner
        content, fields = self._parts()
        name, reply = hashlib.sha256(content).hexdigest(), owner.next_reply()
        owner.asked[name] += 1
        owner.fields.append({**fields, "authorization": self.headers.get("Authorization", "")})
        if reply.wait_s:
            time.sleep(reply.wait_s)
        body = reply.body
        if body is None:
            if reply.status == 200:
                owner.answered[name] += 1
                body = json.dumps(_answer(content, reply.logprob)).encode()
            else:
                body = json.dumps({"error": {"message": "planned", "type": "planned"}}).encode()
        try:
            self.send_response(reply.status)
            for key, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body) + (10 if reply.cut else 0)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            return  # whoever asked is gone
        self.close_connection = self.close_connection or reply.cut

    def _parts(self) -> tuple[bytes, dict[str, str]]:
        """The file and the other fields of a form."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        head = f"Content-Type: {self.headers.get('Content-Type')}\r\n\r\n".encode()
        content, fields = b"", {}
        for part in email.parser.BytesParser().parsebytes(head + raw).walk():
            field_name = part.get_param("name", header="content-disposition")
            payload = part.get_payload(decode=True)
            if field_name == "file":
                content = payload if isinstance(payload, bytes) else b""
                fields["file"] = str(part.get_filename())
            elif isinstance(field_name, str) and isinstance(payload, bytes):
                fields[field_name] = payload.decode(errors="replace")
        return content, fields

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def _answer(content: bytes, logprob: float) -> dict[str, object]:
    words = says(content)
    segment = {
        "text": f" {words or _UNKNOWN}",
        "start": 0.0,
        "end": 1.0,
        "avg_logprob": logprob if words else -1.5,
        "no_speech_prob": 0.01,
        "compression_ratio": 1.0,
    }
    return {"text": words or _UNKNOWN, "language": "english", "duration": 1.0, "segments": [segment]}
