"""Operations on people: who may write, and letting somebody in beside the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_core.language import _, list_of
from agent_core.operation import InChat, Who, operation
from agent_core.text import one_line
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import chat_text, table


def _by(row: Mapping[str, Any]) -> str:
    told = "let in" if row["let_in"] else "settings"
    return f"{told}, linked" if row["linked"] else told


def _people_text(answer: Mapping[str, Any]) -> str:
    rows = [(row["address"], row["channel"], row["role"], _by(row)) for row in answer["rows"]]
    return table(("ADDRESS", "CHANNEL", "ROLE", "BY"), rows) if rows else "nobody"


@operation("person list", key="people_list", writes=False, render=_people_text)
async def list_people(context: OperationContext) -> dict[str, Any]:
    """List who may write to squidbot, by channel, and who was let in beside the settings."""
    from gateway.routing import admissions, links
    from gateway.routing.access import Role

    access = context.access
    await admissions.load(context.store, access)
    linked = (await links.load(context.store.state, access)).mains()

    def role_of(address: str, role: Role) -> str:
        """The role in the household of somebody who has an entry in ``people``."""
        rules = access.household.rules(address)
        return f"{rules.role} ({rules.name})" if role is Role.ALLOWED and rules.addresses else role.value

    return {
        "rows": [
            {
                "channel": channel,
                "address": address,
                "role": role_of(address, role),
                "let_in": extra,
                "linked": linked.get(address, ""),
            }
            for channel in context.access.channels()
            for address, role, extra in context.access.people(channel)
        ]
    }


@operation(
    "person unlink",
    writes=True,
    render=lambda one: (
        f"{one['address']} is {'linked no more' if one['unlinked'] else 'not linked with !link'}"
    ),
    done="It is an address of its own again.",
)
async def unlink_person(context: OperationContext, address: str) -> dict[str, Any]:
    """
    Make an address that was linked with `!link` a person of its own again.

    Args:
        address: A mail address or a Matrix id, as `squidbot person list` shows it.
    """
    from gateway.routing.access import normalise
    from gateway.routing.links import PeopleLinks
    from gateway.system.clock import SystemClock

    who = normalise(address)
    links = PeopleLinks(context.store.state, context.access, SystemClock())
    return {"address": who, "unlinked": await links.unlink(who)}


def _allowed_text(answer: Mapping[str, Any]) -> str:
    told = f"{answer['address']} may {'write now' if answer['allowed'] else 'not write any more'}"
    kept = f"; {answer['messages']} kept messages are answered" if answer["messages"] else ""
    return f"{told} ({', '.join(answer['channels'])}){kept}"


async def _address_in_list(context: OperationContext, said: str) -> str:
    """Return whose address the name of a refused message means; else the text. Raises RequestInvalid."""
    from gateway.routing.access import kinds_of
    from gateway.routing.admissions import refused_rows

    if kinds_of(said):
        return said
    senders = {
        f"m{row.id}": row.message.sender
        for row in await refused_rows(context.store, context.access, limit=500)
    }
    if said.lower() in senders:
        return senders[said.lower()].address
    # Somebody may call themselves anything: a person decides about an address.
    alike = dict.fromkeys(
        one.address for one in senders.values() if said.lower() in f"{one.name} {one.address}".lower()
    )
    if alike:
        people = list_of([f"`{one_line(each, 120)}`" for each in list(alike)[:5]], " or ")
        raise RequestInvalid(
            _("`{said}` is no address; perhaps you mean {people}", said=one_line(said, 40), people=people)
        )
    return said


@operation(
    "allow",
    writes=True,
    render=_allowed_text,
    done="Done. What was kept of somebody who may write now is being answered.",
    chats=[
        InChat("allow ADDRESS", Who.OWNER, chat_text.allow_text),
        InChat("allow remove ADDRESS", Who.OWNER, chat_text.allow_text, {"remove": True}),
    ],
)
async def allow_person(context: OperationContext, address: str, *, remove: bool = False) -> dict[str, Any]:
    """
    Let somebody write to squidbot beside `allow_from`, and answer what was kept of them.

    Args:
        address: A mail address or a Matrix id, or the name of a refused message, such as m7.
        remove: Take that back; who stands in `allow_from` stays in.
    """
    from gateway.routing.admissions import admit_person, revoke_admission

    address = address if remove else await _address_in_list(context, address)
    done = await (revoke_admission if remove else admit_person)(context.store, context.access, address)
    if done.problem:
        raise RequestInvalid(f"`{one_line(done.address, 120)}` {done.problem}")
    return {
        "address": done.address,
        "allowed": not remove,
        "channels": list(done.channels),
        "messages": done.messages,
        "invitations": done.invitations,
        "running": context.running,
    }
