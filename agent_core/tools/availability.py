"""
Decides who has a family of tools. Pure.

Three places decide which tools are in a model's request: each family asks `is_available` when the tools of a
session are made (`gateway.app.agent`), rarely used ones are left out until they are found (`deferred.py`),
and a run offers none in its last call (`agent_core.agent.agent_run`).
"""

from __future__ import annotations

from typing import Literal

from agent_core.models import ScopeKind, Session

Availability = Literal["owner", "people", "none"]
"""The owner alone, everybody who may talk to the bot, or nobody."""


def is_available(allow: Availability, session: Session, *, in_rooms: bool = True) -> bool:
    """
    Return True if the tools of a family are offered in this conversation. Every family uses this.

    "owner" stands for conversations in which only the owner writes and reads. Families whose results are
    private are not offered in rooms (``in_rooms`` false), where anybody may ask.
    """
    kind = session.scope.kind
    if allow == "people":
        return in_rooms or kind is not ScopeKind.ROOM
    return allow == "owner" and kind is ScopeKind.OWNER
