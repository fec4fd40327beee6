"""One IMAP command: what it brings, and how it can fail. aioimaplib's command with a patient timer."""

from __future__ import annotations

from dataclasses import dataclass

from aioimaplib import aioimaplib

from channels.email.imap.syntax import ImapResponse

__all__ = ["Command", "LinkLost", "Refused", "Reply"]


class LinkLost(Exception):
    """The connection to the server is gone."""


class Refused(Exception):
    """The server answered NO or BAD; ``text`` is what it said."""

    def __init__(self, command: str, result: str, text: bytes) -> None:
        self.command = command
        self.result = result
        self.text = text.decode("utf-8", "replace")
        super().__init__(f"{command}: {result} {self.text}")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command brought: the untagged responses meanwhile, and the text of the final OK."""

    untagged: tuple[ImapResponse, ...]
    text: bytes


class Command(aioimaplib.Command):  # type: ignore[misc]  # aioimaplib has no types
    """A command whose timer starts anew with everything that arrives, half a literal included."""

    def progressed(self) -> None:
        """Something has arrived."""
        if not self.done:
            self._reset_timer()

    def fail(self, exc: Exception) -> None:
        """Whoever waits gets ``exc``."""
        if not self._event.is_set():
            self._exception = exc
            self.close(b"", "KO")

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self._event.is_set())
