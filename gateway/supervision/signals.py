"""
What processes on one database tell each other besides names of accounts, where some are workers.

Each is a hint: it may get lost, and whoever does not know it looks once for nothing. A worker tells whoever
has the account that it is typing, or that a history has grown, for which nobody but the account's daemon
consolidates. A daemon tells workers that there is work, or that a turn is stopped.

Every role that may connect to a database hears what is told there, and may tell something itself, also one
that may read no table. A conversation can have the name of a person. So what names one is encrypted with a
key that is made of the database's secret, and what does not come from a process that knows it does nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass

from agent_core.messages import SessionKey
from gateway.queue.model import Stopped

WORK = "+"
"""In place of an account: there is something for workers."""
_FOR_ACCOUNTS, _FOR_WORKERS = "~", "^"
"""How what is encrypted begins, so that only those read it who have something to do."""
_PLACE = "signal"
_GROWN = "grown"
_STOPPED = "stopped"
_TYPING = {True: "typing", False: "idle"}
Meaning = Stopped | tuple[str, SessionKey]


class Signals:
    """
    Writes and reads signals.

    Args:
        secret: What the processes on one database know, and nobody else.
    """

    def __init__(self, secret: str) -> None:
        from gateway.queue.postgres.state_encryption import (  # noqa: PLC0415 - only beside other processes
            CannotDecrypt,
            StateEncryption,
        )

        self._encryption = StateEncryption(f"signals {secret}")
        self._cannot_decrypt = CannotDecrypt

    def typing(self, session: SessionKey, on: bool) -> str:  # noqa: FBT001 - as channels have it
        """Work on a conversation continues, or has ended."""
        return self._encrypted(f"{_TYPING[on]} {session}")

    def grown(self, session: SessionKey) -> str:
        """A worker has committed lines of this history."""
        return self._encrypted(f"{_GROWN} {session}")

    def stopped(self, what: Stopped) -> str:
        """A turn has lost its messages, and a worker may be running it."""
        return self._encrypted(f"{_STOPPED} {what.turn} {what.why} {what.session}", _FOR_WORKERS)

    def read(self, text: str) -> Meaning | None:
        """The meaning of a signal; None: it is the name of an account, or unknown."""
        if not text.startswith((_FOR_ACCOUNTS, _FOR_WORKERS)):
            return None
        try:
            content = base64.b64decode(text[1:], validate=True)
            return _meaning(self._encryption.decrypted(content, _PLACE).decode())
        except (self._cannot_decrypt, binascii.Error, ValueError):
            return None

    def _encrypted(self, text: str, mark: str = _FOR_ACCOUNTS) -> str:
        return mark + base64.b64encode(self._encryption.encrypted(text.encode(), _PLACE)).decode()


def _meaning(text: str) -> Meaning | None:
    """What a signal says. Raises `ValueError`: it does not keep to the form."""
    word, _, rest = text.partition(" ")
    if word == _STOPPED:
        turn, why, session = rest.split(" ", 2)
        return Stopped(SessionKey.parse(session), turn, why)
    return (word, SessionKey.parse(rest)) if word in (_GROWN, *_TYPING.values()) else None


@dataclass(frozen=True, slots=True)
class Told:
    """
    The actions for signals of other processes; they are called on the event loop and return at once.

    Args:
        work: There is something to do: for this account, for workers (`WORK`), or perhaps (None).
        stopped: A turn that runs shall be left.
        typing: Show or hide that work goes on.
        grown: A history is longer.
    """

    signals: Signals
    work: Callable[[str | None], object]
    stopped: Callable[[Stopped], object] | None = None
    typing: Callable[[SessionKey, bool], object] | None = None
    grown: Callable[[SessionKey], object] | None = None

    def hear(self, text: str | None) -> None:
        """Act on a signal of another process."""
        if self._is_for_others(text):
            return
        match None if text is None else self.signals.read(text):
            case Stopped() as stopped:
                if self.stopped is not None:
                    self.stopped(stopped)
            case ("grown", session):
                if self.grown is not None:
                    self.grown(session)
            case (how, session):
                if self.typing is not None:
                    self.typing(session, how == _TYPING[True])
            case None:
                self.work(text)

    def _is_for_others(self, text: str | None) -> bool:
        unread = _FOR_WORKERS if self.stopped is None else _FOR_ACCOUNTS if self.typing is None else None
        return text is not None and unread is not None and text.startswith(unread)
