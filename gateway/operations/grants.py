"""Operations on grants: list and revoke."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from agent_core.tools.grants import Grant, in_force
from gateway.errors import NotFound
from gateway.queue.stores import Queue

GRANT_OPERATIONS = frozenset({"grants_list", "grants_revoke"})


class GrantOperations:
    """The part of `gateway.operations.service.Operations` about grants."""

    _store: Queue

    async def grants_list(self) -> dict[str, Any]:
        """The grants in effect, oldest first."""
        now = datetime.now(UTC)
        return {"rows": [_shown(each) for each in await self._store.grants.rows() if in_force(each, now)]}

    async def grants_revoke(self, grant: str) -> dict[str, Any]:
        """Revoke a grant; calls that have begun continue."""
        name = grant.strip("` ").lower()
        if not await self._store.grants.revoke(name):
            raise NotFound(f"there is no grant {name}; `squidbot grants list` lists the grants")
        return {"id": name, "revoked": True}


def _shown(grant: Grant) -> dict[str, Any]:
    return {
        "id": grant.id,
        "kind": grant.scope.kind.value,
        "tool": grant.scope.tool,
        "what": grant.scope.what,
        "conversation": grant.conversation,
        "people": list(grant.people),
        "given_by": grant.by,
        "at": grant.at.isoformat(),
        "until": grant.until.isoformat(),
        "turn": grant.turn,
    }
