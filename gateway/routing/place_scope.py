"""Whose words a message is that answers nothing."""

from __future__ import annotations

from agent_core.memory.scopes import scope_for
from agent_core.messages import Audience, SessionKey
from gateway.routing.access import Access, normalise

__all__ = ["scope_at"]


def scope_at(access: Access, session: SessionKey, place: str) -> str:
    """
    The scope of its line in the history; ``place`` is the address or the room that it is sent to.

    What is said to one person alone is not shown to others who come later.
    """
    mine = normalise(place) in access.owner_on(session.channel)
    audience = Audience.GROUP if place.startswith(("!", "#")) and not mine else Audience.DIRECT
    apart = session.channel if access.is_apart(session.channel) else ""
    return str(scope_for(session, audience, mine, place, account=apart))
