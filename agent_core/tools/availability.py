"""
Decides who has a family of tools. Pure.

Three places decide which tools are in a model's request: each family asks `is_available` when the tools of a
session are made (`gateway.app.agent`), rarely used ones are left out until they are found (`deferred.py`),
and a run offers none in its last call (`agent_core.agent.run`).
"""

from __future__ import annotations

from typing import Literal

from agent_core.models import ScopeKind, Session

Availability = Literal["owner", "people", "none"]
"""The owner alone, everybody who may talk to the bot, or nobody."""


def is_available(allow: Availability, session: Session, *, in_rooms: bool = True) -> bool:
    """
    Whether the tools of a family are in the requests of this conversation. Every family uses this.

    The owner's are those in which the owner alone speaks and reads along. In a room anybody there may be the
    one who asks; a family whose results are for one person's eyes is not there (``in_rooms`` false).
    """
    kind = session.scope.kind
    if allow == "people":
        return in_rooms or kind is not ScopeKind.ROOM
    return allow == "owner" and kind is ScopeKind.OWNER
