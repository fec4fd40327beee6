"""
Encrypts a backup with a passphrase, as a stream: a large one needs no more memory than a small one.

The format, all numbers big-endian::

    header (56 bytes)
        0   16  "squidbot-sealed1"
       16    1  log2 of scrypt's N (17), 17: r (8), 18: p (1), 19: 0
       20   16  salt
       36    4  size of a chunk of plaintext (65536)
       40   16  the first half of HMAC-SHA-256(mac_key, the 40 bytes before)
    chunks, each: ciphertext, then a tag of 16 bytes

scrypt (RFC 7914) makes 64 bytes of passphrase and salt: the key of the chunks and ``mac_key``. So a wrong
passphrase is told from a damaged file. The chunks are ChaCha20-Poly1305 (RFC 8439) in the STREAM construction
(Hoang, Reyhanitabar, Rogaway, Vizár: "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance", 2015): the nonce of a chunk is its number in 11 bytes and a last byte that is 1 for the
final chunk and else 0. Chunks that were swapped, repeated, left out or cut off at the end are refused. A
nonce never comes twice under one key, because the salt is random.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import secrets
import struct
from typing import BinaryIO

from Crypto.Cipher import ChaCha20_Poly1305

from gateway.errors import GatewayError

MAGIC = b"squidbot-sealed1"  # what files begin with, whatever the code calls them
_LOG_N, _R, _P = 17, 8, 1
_CHUNK = 65_536
_TAG = 16
_HEAD = struct.Struct(">16s4B16sI")
_MAC = 16


class WrongPassphrase(GatewayError):
    """The passphrase is not the one that this backup was made with."""

    exit_code = 77  # EX_NOPERM


class BackupDamaged(GatewayError):
    """The encrypted file is damaged, cut off or was changed."""

    exit_code = 65  # EX_DATAERR


def is_encrypted(beginning: bytes) -> bool:
    """Return True if a file that begins like this is an encrypted backup."""
    return beginning.startswith(MAGIC)


def _keys(passphrase: str, salt: bytes, log_n: int) -> tuple[bytes, bytes]:
    made = hashlib.scrypt(
        passphrase.encode("utf-8", "surrogateescape"),
        salt=salt,
        n=1 << log_n,
        r=_R,
        p=_P,
        maxmem=(128 * _R << log_n) + (1 << 20),
        dklen=64,
    )
    return made[:32], made[32:]


def _mac(key: bytes, head: bytes) -> bytes:
    return hmac.digest(key, head, "sha256")[:_MAC]


def _nonce(number: int, *, final: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if final else b"\0")


class EncryptingWriter(io.RawIOBase):
    """Encrypts a stream; `finish` writes the final chunk. ``log_n`` is the cost of guessing."""

    def __init__(self, below: BinaryIO, passphrase: str, *, log_n: int = _LOG_N) -> None:
        super().__init__()
        salt = secrets.token_bytes(16)
        self._key, mac_key = _keys(passphrase, salt, log_n)
        head = _HEAD.pack(MAGIC, log_n, _R, _P, 0, salt, _CHUNK)
        self._below = below
        self._waiting = bytearray()
        self._number = 0
        below.write(head + _mac(mac_key, head))

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: object) -> int:
        """Encrypt some plaintext."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # whatever has bytes, as RawIOBase says
        self._waiting += view
        # The last one stays here: only `finish` knows whether it is the final one.
        while len(self._waiting) > _CHUNK:
            self._put(bytes(self._waiting[:_CHUNK]), final=False)
            del self._waiting[:_CHUNK]
        return len(view)

    def _put(self, chunk: bytes, *, final: bool) -> None:
        cipher = ChaCha20_Poly1305.new(key=self._key, nonce=_nonce(self._number, final=final))
        ciphertext, tag = cipher.encrypt_and_digest(chunk)
        self._below.write(ciphertext + tag)
        self._number += 1

    def finish(self) -> None:
        """Write the final chunk; without it no reader accepts the file as complete."""
        self._put(bytes(self._waiting), final=True)
        self._waiting.clear()


class DecryptingReader(io.RawIOBase):
    """Reads authenticated plaintext only. Raises WrongPassphrase (when made) or BackupDamaged."""

    def __init__(self, below: BinaryIO, passphrase: str) -> None:
        super().__init__()
        head, mac = below.read(_HEAD.size), below.read(_MAC)
        if len(head) != _HEAD.size or len(mac) != _MAC:
            raise BackupDamaged("the file ends inside its header")
        magic, log_n, r, p, _, salt, chunk = _HEAD.unpack(head)
        if magic != MAGIC or (r, p) != (_R, _P) or not 1 <= log_n <= 20 or not 1 <= chunk <= 1_048_576:
            raise BackupDamaged("the file does not begin like an encrypted backup of this version")
        self._key, mac_key = _keys(passphrase, salt, log_n)
        if not hmac.compare_digest(_mac(mac_key, head), mac):
            raise WrongPassphrase
        self._below = below
        self._size = chunk + _TAG
        self._next = below.read(self._size)
        self._plain = b""
        self._at = 0
        self._number = 0
        self._ended = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill a buffer as far as one chunk goes; 0 at the end."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while self._at == len(self._plain):
            if self._ended:
                return 0
            self._open_next()
        piece = self._plain[self._at : self._at + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _open_next(self) -> None:
        chunk, self._next = self._next, self._below.read(self._size)
        final = not self._next
        if len(chunk) < _TAG:
            raise BackupDamaged("the file is cut off")
        cipher = ChaCha20_Poly1305.new(key=self._key, nonce=_nonce(self._number, final=final))
        try:
            self._plain = cipher.decrypt_and_verify(chunk[:-_TAG], chunk[-_TAG:])
        except ValueError as error:
            where = "its end is missing or damaged" if final else f"chunk {self._number} is damaged"
            raise BackupDamaged(f"the encrypted file cannot be trusted: {where}") from error
        self._at, self._ended = 0, final
        self._number += 1
