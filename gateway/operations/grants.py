"""Operations on grants: list and revoke."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent_core.operation import operation
from gateway.errors import NotFound
from gateway.operations.context import OperationContext
from gateway.system.terminal_text import plain_line

if TYPE_CHECKING:
    from agent_core.tools.grants import Grant

_LONGEST_CHARS = 200


def _grants_text(answer: Mapping[str, Any]) -> str:
    return "\n".join(_grant_text(row) for row in answer["rows"]) or "no grants are in effect"


def _grant_text(row: Mapping[str, Any]) -> str:
    until = datetime.fromisoformat(row["until"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    what = plain_line(" ".join(filter(None, [row["kind"], row["tool"], row["what"]])))
    short = what if len(what) <= _LONGEST_CHARS else f"{what[: _LONGEST_CHARS - 1]}…"
    where = plain_line(row["conversation"]) if row["conversation"] else "everywhere"
    job = ", for one job alone" if row["turn"] else ""
    people = plain_line(", ".join(row["people"]))
    by = plain_line(row["given_by"])
    return f"{row['id']}  until {until}  {short}\n  for {people} in {where}{job}, given by {by}"


@operation("grants list", writes=False, render=_grants_text)
async def list_grants(context: OperationContext) -> dict[str, Any]:
    """List the grants in effect."""
    from agent_core.tools.grants import in_force
    from gateway.turns.approvals.grants import is_owners

    now = datetime.now(UTC)
    rows = [each for each in await context.store.grants.rows() if in_force(each, now)]
    # Of those for others the exact call is not shown.
    return {"rows": [_row(each, words=is_owners(each, context.access)) for each in rows]}


@operation("grants revoke", writes=True, render=lambda answer: f"{answer['id']} is revoked", done="Revoked.")
async def revoke_grant(context: OperationContext, grant: str) -> dict[str, Any]:
    """
    Revoke a grant. Calls in progress continue.

    Args:
        grant: Its id, such as g1a2b3c.
    """
    name = grant.strip("` ").lower()
    if not await context.store.grants.revoke(name):
        raise NotFound(f"there is no grant {name}; `squidbot grants list` lists the grants")
    return {"id": name, "revoked": True}


def _row(grant: Grant, *, words: bool) -> dict[str, Any]:
    from agent_core.tools.grants import describe_scope

    return {
        "id": grant.id,
        "kind": grant.scope.kind.value,
        "tool": grant.scope.tool,
        "covers": describe_scope(grant.scope),
        "what": grant.scope.what if words or grant.scope.kind.value != "call" else "",
        "conversation": grant.conversation,
        "people": list(grant.people),
        "given_by": grant.by,
        "at": grant.at.isoformat(),
        "until": grant.until.isoformat(),
        "turn": grant.turn,
    }
