"""Encrypts documents with a key that is not in the database: XChaCha20-Poly1305, bound to their place."""

from __future__ import annotations

import hashlib

from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.Random import get_random_bytes

_NONCE_BYTES = 24
_TAG_BYTES = 16


class CannotDecrypt(ValueError):
    """The content was encrypted with another key or for another place, or is damaged."""


class StateEncryption:
    """Encrypts and decrypts documents; ``key`` is random, a password would be too weak."""

    def __init__(self, key: str) -> None:
        self._key = hashlib.sha256(b"squidbot state " + key.encode()).digest()

    def encrypt(self, content: bytes, *place: str) -> bytes:
        """Encrypt the content for this place."""
        nonce = get_random_bytes(_NONCE_BYTES)
        cipher = ChaCha20_Poly1305.new(key=self._key, nonce=nonce)
        cipher.update("\0".join(place).encode())
        covered, tag = cipher.encrypt_and_digest(content)
        return bytes(nonce + tag + covered)

    def decrypt(self, content: bytes, *place: str) -> bytes:
        """Decrypt the content. Raises `CannotDecrypt` if this key cannot."""
        nonce, rest = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
        try:
            cipher = ChaCha20_Poly1305.new(key=self._key, nonce=nonce)
            cipher.update("\0".join(place).encode())
            return bytes(cipher.decrypt_and_verify(rest[_TAG_BYTES:], rest[:_TAG_BYTES]))
        except ValueError as error:
            raise CannotDecrypt("it was encrypted with another key, or is damaged") from error
