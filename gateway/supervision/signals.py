"""
What processes on one database tell each other besides names of accounts, where some are workers. Pure.

Each is one line of text and a hint: it may get lost, and whoever does not know it looks once for nothing.
A worker tells whoever has the account that it is typing, or that a history has grown, for which nobody but
the account's daemon consolidates. A daemon tells workers that there is work, or that a turn is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_core.messages import SessionKey
from gateway.queue.model import Stopped

__all__ = ["WORK", "Told", "grown", "read", "stopped", "typing"]

WORK = "+"
"""In place of an account: there is something for workers."""
_GROWN = "grown"
_STOPPED = "stopped"
_TYPING = {True: "typing", False: "idle"}


@dataclass(frozen=True, slots=True)
class Told:
    """
    What to do about the signals of others; they are called on the event loop and return at once.

    Args:
        work: There is something to do: for this account, for workers (`WORK`), or perhaps (None).
        stopped: A turn that runs shall be left.
        typing: Show or hide that work goes on.
        grown: A history is longer.
    """

    work: Callable[[str | None], object]
    stopped: Callable[[Stopped], object] | None = None
    typing: Callable[[SessionKey, bool], object] | None = None
    grown: Callable[[SessionKey], object] | None = None

    def hear(self, text: str | None) -> None:
        """Do what another process has told."""
        found = None if text is None else read(text)
        match found:
            case Stopped():
                if self.stopped is not None:
                    self.stopped(found)
            case ("grown", SessionKey() as session):
                if self.grown is not None:
                    self.grown(session)
            case ("typing" | "idle" as how, SessionKey() as session):
                if self.typing is not None:
                    self.typing(session, how == "typing")
            case _:
                self.work(text)


def typing(session: SessionKey, on: bool) -> str:  # noqa: FBT001 - as channels have it
    """Work goes on in a conversation, or no more."""
    return f"{_TYPING[on]} {session}"


def grown(session: SessionKey) -> str:
    """A worker has committed lines of this history."""
    return f"{_GROWN} {session}"


def stopped(what: Stopped) -> str:
    """A turn has lost its messages; a worker may be at it."""
    return f"{_STOPPED} {what.turn} {what.why} {what.session}"


def read(text: str) -> Stopped | tuple[str, SessionKey] | None:
    """What was told; None: it is the name of an account, or nothing that is known."""
    word, _, rest = text.partition(" ")
    try:
        if word == _STOPPED:
            turn, why, session = rest.split(" ", 2)
            return Stopped(SessionKey.parse(session), turn, why)
        if word in (_GROWN, *_TYPING.values()):
            return word, SessionKey.parse(rest)
    except ValueError:
        pass
    return None
