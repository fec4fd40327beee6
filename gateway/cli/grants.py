"""The commands ``squidbot grants …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.output import print_result

grants = App(
    name="grants",
    help="What tools may do without asking, for a while.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@grants.command(name="list")
def grants_list(*, where: Where = HERE, as_json: Json = False) -> int:
    """List the grants in effect."""
    from gateway.cli.render.receipts import grants as shown

    answer = ask(where, "grants_list")
    print_result(as_json, answer, shown(answer))
    return 0


@grants.command(name="revoke")
def grants_revoke(grant: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Revoke a grant. Calls in progress continue.

    Args:
        grant: Its id, such as g1a2b3c.
    """
    answer = ask(where, "grants_revoke", grant=grant)
    print_result(as_json, answer, f"{answer['id']} is revoked")
    return 0
