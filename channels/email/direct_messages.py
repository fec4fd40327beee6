"""Writing to somebody who has not asked; see `channels.base.Reaching`."""

from __future__ import annotations

from agent_core.messages import SessionKey
from channels.base import DeliveryFailed
from channels.email.parsing.addresses import AddressInvalid, normalise
from channels.email.parsing.threads import session_about

__all__ = ["LetterReaching"]


class LetterReaching:
    """The part of the channel that finds threads with people. An answer to what is sent there lands there."""

    name: str

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        """A thread with one person, a new one for each topic."""
        try:
            return session_about(self.name, topic, normalise(person))
        except AddressInvalid as exc:
            raise DeliveryFailed(f"this is no address to write to: {exc}") from exc

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        """A mail of ours goes to the one address of its session."""
        try:
            return session.channel == self.name and session.thread == normalise(person)
        except AddressInvalid:
            return False
