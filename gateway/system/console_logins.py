"""
Who may see the console: one-time links, and the sessions that they begin. A link counts once and for two
minutes. It only opens a page with a button, because programs that preview links fetch them, too; the button
begins the session. Links and sessions are in memory alone, as digests, so the end of the daemon ends all of
them.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from agent_core.bounded import Bounded
from agent_core.ports import Clock

LINK_S = 120
SESSION_S = 12 * 3600
_MOST = 8
"""The most valid links, and the most sessions; a further one ends the oldest."""


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """
    A browser that has come in.

    Args:
        csrf: Stands in each form; nobody else's page can know it.
        until: When it ends, on the monotonic clock.
    """

    until: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)


class ConsoleLogins:
    """
    The links and sessions of one daemon.

    Args:
        address: Where browsers find the console, such as ``http://127.0.0.1:8811``.
    """

    def __init__(self, clock: Clock, address: str) -> None:
        self.address = address
        self._clock = clock
        self._links: Bounded[str, float] = Bounded(_MOST)
        self._sessions: Bounded[str, ConsoleSession] = Bounded(_MOST)

    def new_link(self) -> str:
        """Return an address that lets one browser in, once, within `LINK_S` seconds."""
        token = secrets.token_urlsafe(32)
        self._links[_digest(token)] = self._clock.monotonic() + LINK_S
        return f"{self.address}/console/enter?token={token}"

    def is_valid(self, token: str) -> bool:
        """Return True if `enter` would accept the token now."""
        return self._links.get(_digest(token), 0.0) > self._clock.monotonic()

    def log_in(self, token: str) -> str | None:
        """Use a link up; returns the secret of the new session, or None for a link that does not count."""
        valid = self.is_valid(token)
        self._links.pop(_digest(token), None)
        if not valid:
            return None
        secret = secrets.token_urlsafe(32)
        self._sessions[_digest(secret)] = ConsoleSession(self._clock.monotonic() + SESSION_S)
        return secret

    def find(self, secret: str) -> ConsoleSession | None:
        """Return the session with this secret, unless it has ended."""
        session = self._sessions.get(_digest(secret))
        return session if session is not None and session.until > self._clock.monotonic() else None

    def log_out(self, secret: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(secret), None)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
