"""The command ``!console``: the owner gets a link to the console."""

from __future__ import annotations

from gateway.system.console_logins import ConsoleLogins
from gateway.turns.commands.asked import NOT_HERE, CommandContext


class ConsoleCommand:
    """Answers ``!console``; without ``logins`` there is no console."""

    def __init__(self, logins: ConsoleLogins | None) -> None:
        self._logins = logins

    async def answer(self, asked: CommandContext) -> str:
        """Return a link for the owner in private, and for nobody else."""
        if not asked.owner:
            return NOT_HERE
        if self._logins is None:
            return "I have no console. `gateway.http.console: true` in the configuration switches it on."
        where = "" if self._logins.address.startswith("https:") else ", on the machine where I run"
        return f"Open this within two minutes{where}. It counts once.\n\n{self._logins.new_link()}"
