"""For whom a family of tools is there. Pure."""

from __future__ import annotations

from typing import Literal

from agent_core.models import ScopeKind, Session

__all__ = ["Allow", "is_allowed"]

Allow = Literal["owner", "people", "none"]
"""The owner alone, everybody who may talk to the bot, or nobody."""


def is_allowed(allow: Allow, session: Session) -> bool:
    """
    Whether the tools are in the requests of this conversation.

    The owner's are those in which the owner alone speaks and reads along. In a room anybody there may be the
    one who asks.
    """
    return allow == "people" or (allow == "owner" and session.scope.kind is ScopeKind.OWNER)
