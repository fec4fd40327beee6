"""
Pictures, files, sounds and videos in events: their metadata and their encryption. Pure. The sender's claims
about size and type are never relied on. An encrypted file (``EncryptedFile``, version v2: AES-256 in counter
mode, SHA-256 of what is stored) is checked while it is decrypted, piece by piece; its hash is known only at
the end, so nothing of it may be used before `FileDecryption.finish` has returned.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from channels.matrix.client.json_access import JsonObject, object_of, text_of

VOICE_MESSAGE = "voice message"
"""The kind of a sound that was recorded for the message (MSC3245)."""

_KINDS = {"m.image": "picture", "m.file": "file", "m.audio": "sound", "m.video": "video"}
_MXC = re.compile(r"mxc://([A-Za-z0-9.:\[\]-]{1,255})/([A-Za-z0-9_-]{1,255})")
_VOICE = ("org.matrix.msc3245.voice", "org.matrix.msc3245.voice.v2", "m.voice")


class MediaInvalid(Exception):
    """An event describes its file in an unusable way. The text is a sentence that anybody may read."""


@dataclass(frozen=True, slots=True)
class FileSecret:
    """The key of an encrypted file."""

    key: bytes = field(repr=False)
    counter: bytes
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Media:
    """One file in an event, ``mxc://server/media_id``; ``remark`` stands for it until fetched."""

    kind: str
    name: str
    media_type: str
    server: str
    media_id: str
    secret: FileSecret | None = None


@dataclass(frozen=True, kw_only=True)
class FileNote:
    """The data for fetching the file of an event; ``remark`` stands for it in the text until then."""

    type: str = ""
    content: dict[str, Any] = field(default_factory=dict)
    remark: str = ""


def media_kind(kind: Any, content: JsonObject) -> str:
    """Return ``picture``, ``file``, ``sound``, ``voice message``, ``video``, ``sticker`` or ""."""
    if kind == "m.sticker":
        return "sticker"
    found = _KINDS.get(text_of(content, "msgtype"), "")
    if found == "sound" and any(key in content for key in _VOICE):
        return VOICE_MESSAGE
    return found


def caption_of(content: JsonObject) -> str:
    """The caption of a file: ``body``, if there is another ``filename`` beside it (MSC2530)."""
    body, name = text_of(content, "body"), text_of(content, "filename")
    return body if name and name != body else ""


def name_of(content: JsonObject) -> str:
    """The claimed name of the file; it may be anything."""
    return text_of(content, "filename") or text_of(content, "body")


def remark_about(kind: str, name: str) -> str:
    """The line that stands for a file in a text."""
    shown = re.sub(r"[\s\[\]]+", " ", name).strip()[:100]
    return f'[A {kind} is attached: "{shown}"]'


def media_in(kind: Any, content: JsonObject) -> Media | None:
    """Return the decrypted file of an event, None without one. Raises MediaInvalid."""
    what = media_kind(kind, content)
    if not what:
        return None
    info = object_of(content, "info")
    name, media_type = name_of(content), text_of(info, "mimetype")[:200]
    if "file" in content:
        file = object_of(content, "file")
        server, media_id = _address(file)
        return Media(what, name, media_type, server, media_id, _secret(file))
    server, media_id = _address(content)
    return Media(what, name, media_type, server, media_id)


def _address(holder: JsonObject) -> tuple[str, str]:
    found = _MXC.fullmatch(text_of(holder, "url"))
    if found is None:
        raise MediaInvalid("it has no address at a homeserver")
    return found[1], found[2]


def _secret(file: JsonObject) -> FileSecret:
    """Client-server API, "Extensions to m.room.message msgtypes": everything but v2 is refused."""
    key = object_of(file, "key")
    if text_of(file, "v") != "v2" or text_of(key, "alg") != "A256CTR" or text_of(key, "kty") != "oct":
        raise MediaInvalid("it is encrypted in a way that I do not support")
    try:
        secret = FileSecret(
            key=_unpadded(text_of(key, "k"), safe=True),
            counter=_unpadded(text_of(file, "iv")),
            sha256=_unpadded(text_of(object_of(file, "hashes"), "sha256")),
        )
    except (binascii.Error, ValueError) as error:
        raise MediaInvalid("its key is damaged") from error
    if (len(secret.key), len(secret.counter), len(secret.sha256)) != (32, 16, 32):
        raise MediaInvalid("its key is damaged")
    return secret


def _unpadded(text: str, *, safe: bool = False) -> bytes:
    text = text.rstrip("=")
    padded = text + "=" * (-len(text) % 4)
    return base64.b64decode(padded, altchars=b"-_" if safe else None, validate=True)


class FileDecryption:
    """Decrypts a file piece by piece, and verifies it at the end."""

    def __init__(self, secret: FileSecret) -> None:
        self._secret = secret
        self._hash = hashlib.sha256()
        self._cipher = _cipher(secret)

    def decrypt(self, piece: bytes) -> bytes:
        """Decrypt the next piece; it must not be used before `finish`."""
        self._hash.update(piece)
        return bytes(self._cipher.decrypt(piece))

    def finish(self) -> None:
        """Verify the whole file. Raises `MediaInvalid`: it is not what was sent."""
        if not hmac.compare_digest(self._hash.digest(), self._secret.sha256):
            raise MediaInvalid("its content was changed in transit")


class FileEncryption:
    """Encrypts a file piece by piece with a key of its own."""

    def __init__(self) -> None:
        # The lower half of the counter begins at zero, as the specification wants it.
        self._key, self._counter = secrets.token_bytes(32), secrets.token_bytes(8) + bytes(8)
        self._hash = hashlib.sha256()
        self._cipher = _cipher(FileSecret(self._key, self._counter, b""))

    def encrypt(self, piece: bytes) -> bytes:
        """Encrypt the next piece."""
        encrypted = bytes(self._cipher.encrypt(piece))
        self._hash.update(encrypted)
        return encrypted

    def file(self, mxc: str) -> Mapping[str, Any]:
        """The ``EncryptedFile`` of what was encrypted, stored at ``mxc``."""
        return {
            "v": "v2",
            "url": mxc,
            "key": {
                "kty": "oct",
                "alg": "A256CTR",
                "ext": True,
                "key_ops": ["encrypt", "decrypt"],
                "k": base64.urlsafe_b64encode(self._key).decode().rstrip("="),
            },
            "iv": base64.b64encode(self._counter).decode().rstrip("="),
            "hashes": {"sha256": base64.b64encode(self._hash.digest()).decode().rstrip("=")},
        }


def _cipher(secret: FileSecret) -> Any:
    from Crypto.Cipher import AES  # noqa: PLC0415 - needed for few messages

    return AES.new(secret.key, AES.MODE_CTR, nonce=b"", initial_value=secret.counter)
