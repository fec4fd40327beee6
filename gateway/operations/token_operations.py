"""Operations that let somebody in over HTTP: programs with a token, a browser into the console."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from agent_core.language import _
from agent_core.operation import InChat, Option, Who, operation
from gateway.errors import ConfigInvalid, GatewayError, NotFound
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import chat_text
from gateway.system.terminal_text import plain_line

if TYPE_CHECKING:
    from channels.api.token_store import ApiTokens

_NEEDS = ("home", "settings", "accounts")
_Result = TypeVar("_Result")


class TokenRefused(GatewayError):
    """The token cannot be made or revoked."""

    exit_code = 1


def _list_text(answer: Mapping[str, Any]) -> str:
    rows = (plain_line(f"{one['name']}  {one['person']}  {one['at']}") for one in answer["rows"])
    return "\n".join(rows) or "there are no tokens"


@operation(
    "tokens add",
    writes=True,
    needs=_NEEDS,
    render=lambda one: f"{one['token']}\n\nIt speaks for {one['person']}. It is not shown again.",
)
async def add_token(
    context: OperationContext, name: str, *, person: Annotated[str, Option("--for")] = "owner"
) -> dict[str, Any]:
    """
    Make a token with which a program speaks for a person, and show it this once.

    Args:
        name: Its name in the list, such as that of the program.
        person: The person's address on another channel, or owner.
    """
    address = await find_person(context, person)
    text = await _with_tokens(context, lambda found: found.add(name, address, datetime.now(UTC)))
    return {"name": name, "person": address, "token": text}


@operation("tokens list", writes=False, needs=_NEEDS, render=_list_text)
async def list_tokens(context: OperationContext) -> dict[str, Any]:
    """List the tokens; nobody can see their texts."""
    found = await _with_tokens(context, lambda tokens: tokens.rows())
    return {
        "rows": [
            {"name": one.name, "person": one.person, "at": one.at.isoformat(timespec="seconds")}
            for one in found
        ]
    }


@operation(
    "tokens revoke",
    writes=True,
    done="Revoked.",
    needs=_NEEDS,
    render=lambda one: f"{one['name']} is revoked",
)
async def revoke_token(context: OperationContext, name: str) -> dict[str, Any]:
    """
    Make a token worthless at once.

    Args:
        name: Its name in the list.
    """
    await _with_tokens(context, lambda found: found.revoke(name))
    return {"name": name, "revoked": True}


@operation(
    "console",
    key="console_link",
    writes=True,
    render=lambda answer: str(answer["url"]),
    chats=[InChat("console", Who.OWNER, chat_text.console_text)],
)
async def make_console_link(context: OperationContext) -> dict[str, Any]:
    """Print a link that lets one browser into the console, once, within two minutes."""
    from gateway.system.console_logins import LINK_S

    if context.console is None:
        raise NotFound(
            _("I have no console: set gateway.http.console: true, and start the daemon (squidbot run)")
        )
    return {"url": context.console.new_link(), "seconds": LINK_S}


async def find_person(context: OperationContext, person: str) -> str:
    """Return the address of who is meant, as it is compared. Raises TokenRefused."""
    from gateway.routing.access import Role, normalise
    from gateway.routing.admissions import load

    access = context.access
    await load(context.store, access)
    address = normalise(access.owner if person == "owner" else person)
    if not address:
        raise TokenRefused("owner.aliases is empty, so nobody is the owner; add your address, or use --for")
    if access.role(find_endpoint(context), address, verified=True) is Role.STRANGER:
        raise TokenRefused(f"{address} may not talk to squidbot; add the address to allow_from of a channel")
    return address


def find_endpoint(context: OperationContext) -> str:
    """The name of the endpoint's account. Raises ConfigInvalid."""
    for name in context.accounts:
        if context.access.kind(name) == "api":
            return name
    raise ConfigInvalid("there is no endpoint; add `api: {}` under channels (docs/openai-endpoint.md)")


async def _with_tokens(context: OperationContext, use: Callable[[ApiTokens], _Result]) -> _Result:
    """Use the tokens in a thread. Raises ConfigInvalid or TokenRefused."""
    from anyio import to_thread

    from channels.api.channel import ApiChannel
    from channels.api.token_store import ApiTokens, TokenProblem

    name = find_endpoint(context)
    channel = context.channels.get(name)
    if isinstance(channel, ApiChannel):
        found = channel.tokens
    elif context.folders is not None:
        found = ApiTokens(context.folders(name))
    else:
        raise context.missing(f"account {name!r}")
    try:
        return await to_thread.run_sync(use, found)
    except (TokenProblem, OSError) as error:
        raise TokenRefused(str(error)) from error
