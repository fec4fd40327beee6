"""The types that the parts of encryption exchange. Imports no library."""

from __future__ import annotations

from typing import NamedTuple


class Device(NamedTuple):
    """A person's device. Another ``curve25519`` key makes it another device, whatever its id."""

    user_id: str
    device_id: str
    curve25519: str


class StoreBroken(Exception):
    """The crypto store exists but cannot be read: its keys are lost."""


class NoKey(Exception):
    """The key of an encrypted message is not here, or not yet."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(session_id)


class NotReadable(Exception):
    """Something encrypted will never be readable; the text says why, in one word."""


class ForeignKey(NoKey, NotReadable):
    """Somebody else has sent a key of that name. It reads nothing; the sender's own may still come."""

    def __str__(self) -> str:
        return "sender_mismatched"


class MustBeUnencrypted(NotReadable):
    """Something has no meaning when it is encrypted, such as a redaction; the text is its type."""
