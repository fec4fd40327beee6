"""Grants: yeses in advance. One is made with the decision about a question (`ApprovalStore.decide`)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agent_core.tools.grants import Grant


class GrantStore(Protocol):
    """Keeps grants until they end."""

    async def rows(self) -> list[Grant]:
        """Those that are kept, oldest first, whether or not they hold."""
        ...

    async def look(self, now: datetime) -> list[Grant]:
        """Note the time, forget what is over by it, and return the others as they were noted before."""
        ...

    async def revoke(self, grant_id: str) -> bool:
        """End one; False: there is none of that id."""
        ...
