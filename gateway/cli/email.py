"""The command ``squidbot email login``."""

from __future__ import annotations

from gateway.cli.context import HERE, Where
from gateway.cli.generated_commands import make_group
from gateway.cli.login import log_in_account

email = make_group(__name__)


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
