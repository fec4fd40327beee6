"""Operations on grants: list and revoke."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from agent_core.tools.grants import Grant, GrantKind, describe_scope, in_force
from gateway.errors import NotFound
from gateway.queue.stores import Queue
from gateway.routing.access import Access
from gateway.turns.approvals.grants import is_owners

GRANT_OPERATIONS = frozenset({"grants_list", "grants_revoke"})


class GrantOperations:
    """The part of `gateway.operations.service.Operations` about grants."""

    _store: Queue
    _access: Access

    async def grants_list(self) -> dict[str, Any]:
        """The grants in effect, oldest first; of those for others not the exact call."""
        now = datetime.now(UTC)
        rows = [each for each in await self._store.grants.rows() if in_force(each, now)]
        return {"rows": [_shown(each, words=is_owners(each, self._access)) for each in rows]}

    async def grants_revoke(self, grant: str) -> dict[str, Any]:
        """Revoke a grant; calls that have begun continue."""
        name = grant.strip("` ").lower()
        if not await self._store.grants.revoke(name):
            raise NotFound(f"there is no grant {name}; `squidbot grants list` lists the grants")
        return {"id": name, "revoked": True}


def _shown(grant: Grant, *, words: bool) -> dict[str, Any]:
    return {
        "id": grant.id,
        "kind": grant.scope.kind.value,
        "tool": grant.scope.tool,
        "covers": describe_scope(grant.scope),
        "what": grant.scope.what if words or grant.scope.kind is not GrantKind.CALL else "",
        "conversation": grant.conversation,
        "people": list(grant.people),
        "given_by": grant.by,
        "at": grant.at.isoformat(),
        "until": grant.until.isoformat(),
        "turn": grant.turn,
    }
