"""The commands ``squidbot email …``."""

from __future__ import annotations

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.login import log_in_account
from gateway.cli.output import print_result

email = App(
    name="email",
    help="Mailboxes.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@email.command(name="login")
def email_login(*, account: str = "", where: Where = HERE) -> int:
    """
    Authorize squidbot for a mailbox at Google, Microsoft or another OAuth provider.

    This requires channels.email.oauth in the configuration. The token is stored in the home folder, readable
    by its owner alone. A running daemon uses it at once.

    Args:
        account: Which mailbox, if there are several: its name under channels.email.
    """
    return log_in_account(where, "email", account)


@email.command(name="reset-breaker")
def email_reset_breaker(*, account: str = "", where: Where = HERE, as_json: Json = False) -> int:
    """
    Reset the circuit breaker, which opens when two programs seem to answer each other.

    squidbot then sends waiting replies within minutes, and releases the mail that the breaker quarantined.

    Args:
        account: Only on this mailbox: its name under channels.email.
    """
    answer = ask(where, "email_reset_breaker", channel=account)
    lines = [
        f"{name}: the circuit breaker is reset; it was open because {'; '.join(why)}"
        if why
        else f"{name}: the circuit breaker was not open, so there is nothing to reset"
        for name, why in answer["reset"].items()
    ]
    print_result(as_json, answer, "\n".join(lines))
    return 0 if any(answer["reset"].values()) else 1
