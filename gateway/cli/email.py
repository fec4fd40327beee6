"""The commands ``squidbot email …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: T201 - a conversation with a person

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.login import log_in
from gateway.cli.output import print_result

if TYPE_CHECKING:
    from channels.email.config import EmailConfig
    from gateway.settings import Settings
    from gateway.system.home import Home

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
    return log_in(where, lambda settings, home: _login(settings, home, account))


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


def _mailbox(settings: Settings, account: str) -> tuple[str, EmailConfig]:
    """The mailbox of that name; without one the only one there is, or the one that bears the kind's name."""
    from channels.email.config import EmailConfig as Config
    from gateway.errors import ConfigInvalid

    found = {
        name: config for name, config in settings.channels.enabled().items() if isinstance(config, Config)
    }
    name = account or (next(iter(found)) if len(found) == 1 else "email")
    if name not in found:
        known = ", ".join(found) or "none"
        raise ConfigInvalid(f"there is no mailbox {name!r} (--account); switched on: {known}")
    return name, found[name]


async def _login(settings: Settings, home: Home, account: str) -> int:
    import anyio.to_thread

    from channels.base import ChannelError
    from channels.email.auth.credentials_source import give_access
    from gateway.app.account_state import account_folders
    from gateway.errors import ConfigInvalid
    from gateway.system.clock import SystemClock
    from gateway.system.terminal_text import plain_line, plain_text

    name, config = _mailbox(settings, account)
    if config.oauth is None:
        where = settings.channels.places()[name]
        raise ConfigInvalid(f"{where}.oauth is not set, so there is nothing to log in to")

    async def pasted() -> str:
        try:
            return await anyio.to_thread.run_sync(input, "> ", abandon_on_cancel=True)
        except EOFError:  # nobody is there to open the browser, either
            return ""

    def show(text: str) -> None:
        print(plain_text(text))

    try:
        async with account_folders(settings, home, SystemClock()) as folders:
            await give_access(config, folders(name), SystemClock(), show=show, pasted=pasted)
    except (ChannelError, OSError) as error:
        print(f"squidbot: {plain_line(str(error))}", file=sys.stderr)
        return 1
    print(f"{config.username} can be used now. Try it with: squidbot check")
    return 0
