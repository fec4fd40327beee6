"""The commands ``squidbot tokens …``: who may use the endpoint for OpenAI's clients."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where
from gateway.cli.output import print_result

if TYPE_CHECKING:
    from channels.api.tokens import ApiTokens
    from gateway.settings import Settings
    from gateway.system.home import Home

tokens = App(
    name="tokens",
    help="Tokens for programs that speak OpenAI's API.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@tokens.command(name="add")
def tokens_add(
    name: str,
    /,
    *,
    person: Annotated[str, Parameter(name="--for")] = "owner",
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    Make a token with which a program speaks for a person, and show it this once.

    Args:
        name: Its name in the list, such as that of the program.
        person: The person's address on another channel, or owner.
    """

    def add(found: ApiTokens, settings: Settings) -> int:
        from gateway.system.clock import SystemClock

        address = _person(settings, person)
        text = found.add(name, address, SystemClock().now())
        answer = {"name": name, "person": address, "token": text}
        print_result(as_json, answer, f"{text}\n\nIt speaks for {address}. It is not shown again.")
        return 0

    return _with_tokens(where, add)


@tokens.command(name="list")
def tokens_list(*, where: Where = HERE, as_json: Json = False) -> int:
    """List the tokens; nobody can see their texts."""

    def show(found: ApiTokens, _settings: Settings) -> int:
        from gateway.system.terminal_text import plain_line

        rows = [
            {"name": one.name, "person": one.person, "at": one.at.isoformat(timespec="seconds")}
            for one in found.rows()
        ]
        lines = [plain_line(f"{one['name']}  {one['person']}  {one['at']}") for one in rows]
        print_result(as_json, {"rows": rows}, "\n".join(lines) or "there are no tokens")
        return 0

    return _with_tokens(where, show)


@tokens.command(name="revoke")
def tokens_revoke(name: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Make a token worthless at once.

    Args:
        name: Its name in the list.
    """

    def revoke(found: ApiTokens, _settings: Settings) -> int:
        found.revoke(name)
        print_result(as_json, {"name": name, "revoked": True}, f"{name} is revoked")
        return 0

    return _with_tokens(where, revoke)


def _person(settings: Settings, person: str) -> str:
    """Return the address of who is meant, as it is compared. Raises TokenProblem."""
    from channels.api.tokens import TokenProblem
    from gateway.operations.access import access_of
    from gateway.routing.access import Role, normalise

    access = access_of(settings)
    address = normalise(access.owner if person == "owner" else person)
    if not address:
        raise TokenProblem("owner.aliases is empty, so nobody is the owner; add your address, or use --for")
    name = next(iter(_accounts(settings)))
    if access.role(name, address, verified=True) is Role.STRANGER:
        raise TokenProblem(f"{address} may not talk to squidbot; add the address to allow_from of a channel")
    return address


def _accounts(settings: Settings) -> list[str]:
    kinds = settings.channels.kinds()
    return [name for name in settings.channels.enabled() if kinds[name] == "api"]


def _with_tokens(where: Where, use: Callable[[ApiTokens, Settings], int]) -> int:
    from gateway.cli.login import log_in

    async def call(settings: Settings, home: Home) -> int:
        from channels.api.tokens import TokenProblem
        from gateway.errors import ConfigInvalid
        from gateway.system.terminal_text import plain_line

        if not _accounts(settings):
            raise ConfigInvalid(
                "there is no endpoint; add `api: {}` under channels (docs/openai-endpoint.md)"
            )
        try:
            return await _opened(settings, home, lambda found: use(found, settings))
        except (TokenProblem, OSError) as error:
            print(f"squidbot: {plain_line(str(error))}", file=sys.stderr)
            return 1

    return log_in(where, call)


def tokens_of(settings: Settings, home: Home, people: Collection[str], *, new: str | None = None) -> int:
    """Count the tokens that speak for these people; give them to ``new``, or to nobody if that is empty."""
    import anyio

    def use(found: ApiTokens) -> int:
        count = sum(one.person in people for one in found.rows())
        if new is not None and count:
            found.give(people, new)
        return count

    return anyio.run(_opened, settings, home, use) if _accounts(settings) else 0


async def _opened(settings: Settings, home: Home, use: Callable[[ApiTokens], int]) -> int:
    from anyio import to_thread

    from channels.api.tokens import ApiTokens
    from gateway.app.account_state import account_folders
    from gateway.system.clock import SystemClock

    async with account_folders(settings, home, SystemClock()) as folders:
        return await to_thread.run_sync(use, ApiTokens(folders(_accounts(settings)[0])))
