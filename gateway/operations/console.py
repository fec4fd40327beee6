"""The operation that lets a browser into the console."""

from __future__ import annotations

from typing import Any

from gateway.errors import NotFound
from gateway.system.console_logins import LINK_S, ConsoleLogins


class ConsoleOperations:
    """The part of `gateway.operations.service.Operations` for the console."""

    _console: ConsoleLogins | None

    async def console_link(self) -> dict[str, Any]:
        """A link that counts once, and for how many seconds. Raises `NotFound`: no console is served."""
        if self._console is None:
            raise NotFound(
                "no console is served: set gateway.http.console: true, and start the daemon (squidbot run)"
            )
        return {"url": self._console.new_link(), "seconds": LINK_S}
