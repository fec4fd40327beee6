"""Operations on grants: list and revoke."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent_core.language import _
from agent_core.operation import InChat, Who, operation
from agent_core.text import one_line
from gateway.errors import NotFound
from gateway.operations.operation_context import Caller, OperationContext
from gateway.operations.render import chat_text
from gateway.system.terminal_text import local_time, plain_line

if TYPE_CHECKING:
    from agent_core.tools.grants import Grant

_MAX_CHARS = 200


def _grants_text(answer: Mapping[str, Any]) -> str:
    return "\n".join(_grant_text(row) for row in answer["rows"]) or "no grants are in effect"


def _grant_text(row: Mapping[str, Any]) -> str:
    short = one_line(plain_line(" ".join(filter(None, [row["kind"], row["tool"], row["what"]]))), _MAX_CHARS)
    where = plain_line(row["conversation"]) if row["conversation"] else "everywhere"
    job = ", for one job alone" if row["turn"] else ""
    people = plain_line(", ".join(row["people"]))
    by, until = plain_line(row["given_by"]), local_time(row["until"])
    return f"{row['id']}  until {until}  {short}\n  for {people} in {where}{job}, given by {by}"


@operation(
    "grants list",
    writes=False,
    render=_grants_text,
    chats=[InChat("grants", Who.PERSON, chat_text.grants_text)],
)
async def list_grants(context: OperationContext) -> dict[str, Any]:
    """List the grants in effect."""
    from agent_core.tools.grants import in_force
    from gateway.turns.questions.tool_grants import is_owners

    if context.now is not None:
        rows = await context.store.grants.expire(context.now())
    else:
        now = datetime.now(UTC)
        rows = [each for each in await context.store.grants.rows() if in_force(each, now)]
    if (guest := context.guest) is not None:
        return {"rows": [_row(context, each, words=words) for each, words in _shown_to(guest, rows)]}
    # Of those for others the exact call is not shown.
    return {"rows": [_row(context, each, words=is_owners(each, context.access)) for each in rows]}


def _shown_to(guest: Caller, rows: Sequence[Grant]) -> Iterator[tuple[Grant, bool]]:
    """A guest's grants, in a room only those that count there; exact calls only where they were made."""
    from agent_core.memory.scopes import person_name
    from agent_core.messages import Audience

    me, is_room = person_name(guest.place.person), guest.place.audience is not Audience.DIRECT
    for each in rows:
        is_here = each.conversation == guest.session
        if me in each.people and (not is_room or is_here or not each.conversation):
            yield each, is_here or not is_room


@operation(
    "grants revoke",
    writes=True,
    render=lambda answer: f"{answer['id']} is revoked",
    done="Revoked.",
    chats=[InChat("grants revoke ID", Who.PERSON, lambda _answer, _who: _("The grant is revoked."))],
)
async def revoke_grant(context: OperationContext, grant: str) -> dict[str, Any]:
    """
    Revoke a grant. Calls in progress continue.

    Args:
        grant: Its id, such as g1a2b3c.
    """
    name = grant.strip("` ").lower()
    if (guest := context.guest) is not None:
        from agent_core.memory.scopes import person_name

        given = [person_name(each.by) for each in await context.store.grants.rows() if each.id == name]
        if person_name(guest.place.person) not in given:
            raise NotFound(_("there is no grant `{name}` for you to revoke", name=one_line(name, 40)))
    if not await context.store.grants.revoke(name):
        raise NotFound(f"there is no grant {name}; `squidbot grants list` lists the grants")
    return {"id": name, "revoked": True}


def _row(context: OperationContext, grant: Grant, *, words: bool) -> dict[str, Any]:
    from agent_core.tools.grants import describe_scope

    return {
        "id": grant.id,
        "kind": grant.scope.kind.value,
        "tool": grant.scope.tool,
        "covers": describe_scope(grant.scope),
        "what": grant.scope.what if words or grant.scope.kind.value != "call" else "",
        "conversation": grant.conversation,
        "is_here": context.caller is not None and grant.conversation == context.caller.session,
        "people": list(grant.people),
        "given_by": grant.by,
        "at": grant.at.isoformat(),
        "until": grant.until.astimezone(context.planned.zone if context.planned else None).isoformat(),
        "turn": grant.turn,
    }
