"""The operation that lets a browser into the console."""

from __future__ import annotations

from typing import Any

from agent_core.operation import InChat, Who, operation
from gateway.errors import NotFound
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import chat_text


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
            "I have no console: set gateway.http.console: true, and start the daemon (squidbot run)"
        )
    return {"url": context.console.new_link(), "seconds": LINK_S}
