"""
Recognises the copies of our own mails: a code in each proves that its content is what was sent.

A Message-ID proves nothing, because whoever has got a mail knows it. So each mail of which we get a copy
bears a field with a keyed hash over what a reader sees of it: for whom it is, its subject and date, its texts
and its files. Everybody can repeat such a mail, nobody can change it.

The hash is taken over the decoded content, so it outlasts servers that encode a mail anew or fold its fields
otherwise. One that adds a footer, or marks the subject, makes another mail of it: such a copy is left where
it is. The key is a file of the account; without it older copies are not recognised, and nothing else is lost.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from pathlib import Path

import structlog

from agent_core.state_folder import DiskFolder, StateFolder
from channels.email.parsing.mime import (
    Caps,
    Headers,
    Part,
    Unreadable,
    decoded,
    decoded_header,
    normalised,
    parse_structure,
)
from channels.email.parsing.transfer_encoding import transferred, unpacked

FIELD = "x-squidbot-copy"
_SHOWN = ("message-id", "to", "cc", "bcc", "reply-to", "subject", "date", "in-reply-to")
_KEY_BYTES = 32
_log = structlog.get_logger(__name__)


class CopyMac:
    """
    Authenticates outgoing mails, and recognises their copies.

    Args:
        file: Where the key is; it is made when it is needed.
        state: The folder of that file, if it is not on disk.
    """

    def __init__(self, file: Path, state: StateFolder | None = None) -> None:
        self._file = file
        self._state = state or DiskFolder(file.parent)
        self._key = b""
        self._loading = threading.Lock()

    def load(self) -> None:
        """Load the key, or create it. It reads and may write a file; never fails. For a worker thread."""
        with self._loading:
            if self._key:
                return
            try:
                self._key = _read_or_make(self._state, self._file.name)
            except OSError as error:
                _log.warning("mail.copy_key_not_kept", file=str(self._file), error=str(error))
                self._key = secrets.token_bytes(_KEY_BYTES)

    def authenticated(self, raw: bytes) -> bytes:
        """A mail with the field. For a worker thread."""
        self.load()
        return f"X-Squidbot-Copy: {self._mac(fingerprint(raw))}\r\n".encode() + raw

    def fits(self, headers: Headers, content: str) -> bool:
        """Whether a mail with this `fingerprint` was sent by us."""
        found = headers.all(FIELD)
        if len(found) != 1 or not content or not self._key:
            return False
        return hmac.compare_digest(found[0].strip().encode(), self._mac(content).encode())

    def _mac(self, content: str) -> str:
        return hmac.new(self._key, content.encode(), hashlib.sha256).hexdigest()


def fingerprint(raw: bytes) -> str:
    """What a mail shows to its reader, as a hash; empty if it cannot be read. For a worker thread."""
    data = normalised(raw)
    try:
        root = parse_structure(data, Caps())
    except Unreadable:
        return ""
    digest = hashlib.sha256()

    def add(*texts: str) -> None:
        digest.update(repr(texts).encode("utf-8", "backslashreplace"))

    for name in _SHOWN:
        add(name, *(" ".join(decoded_header(value).split()) for value in root.headers.all(name)))
    waiting = [root]
    while waiting:
        part = waiting.pop()
        waiting += reversed(part.children)
        add(part.media_type, str(len(part.children)), *_shown_as(part))
        if not part.children:
            digest.update(_content(data, part))
    return digest.hexdigest()


def _shown_as(part: Part) -> list[str]:
    """The name of a file, and whether it is shown or offered."""
    return [" ".join(value.split()) for value in part.headers.all("content-disposition")]


def _content(data: bytes, part: Part) -> bytes:
    """A hash of what is in a part; of a text in characters, without what is at the end of its lines."""
    encoding = (part.headers.first("content-transfer-encoding") or "").strip().lower()
    inner = hashlib.sha256()
    if part.media_type.startswith("text/"):
        charset = part.headers.typed().get_param("charset")
        text = decoded(
            transferred(data[part.start : part.end], encoding), charset if isinstance(charset, str) else None
        )
        lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
        inner.update("\n".join(lines).rstrip("\n").encode("utf-8", "backslashreplace"))
    else:
        for piece in unpacked(memoryview(data)[part.start : part.end], encoding):
            inner.update(piece)
    return inner.digest()


def _read_or_make(state: StateFolder, name: str) -> bytes:
    key = state.read(name) or b""
    if len(key) >= _KEY_BYTES:
        return key
    key = secrets.token_bytes(_KEY_BYTES)
    state.write(name, key)
    return key
