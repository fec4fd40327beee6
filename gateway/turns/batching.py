"""How many waiting messages of a session become one turn."""

from __future__ import annotations

from collections.abc import Mapping

from agent_core.messages import SessionKey
from gateway.turns.approvals.review import ASKING
from gateway.turns.commands.new_conversation import NewConversation

__all__ = ["Batching"]


class Batching:
    """
    Args:
        modes: ``merge`` or ``each``, by the names of the channels that are on.
        merge: How many messages become one turn at the most.
    """

    def __init__(self, modes: Mapping[str, str], conversations: NewConversation, merge: int) -> None:
        self._modes = {ASKING.channel: "merge", **modes}
        self._conversations = conversations
        self._merge = merge

    async def limit(self, session: SessionKey) -> int:
        """
        How many messages the next turn of a session may take; 0: none, since its channel is off.

        Raises:
            StoreUnavailable: It cannot be said now.
        """
        mode = self._modes.get(session.channel)
        if mode is None:
            return 0
        return 1 if mode == "each" or await self._conversations.waits(session) else self._merge
