"""What a person can ask of mailboxes. Only of a running daemon, which alone knows what it has sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from channels.base import Channel
from gateway.errors import NotFound

__all__ = ["MAIL_OPERATIONS", "MailOperations"]

MAIL_OPERATIONS = frozenset({"email_release"})


class MailOperations:
    """Operations on the mailboxes among ``self._channels``."""

    _channels: Mapping[str, Channel]
    _wake_sending: Callable[[], None]

    async def email_release(self, channel: str = "") -> dict[str, Any]:
        """Take the brake off (`channels.email.limits.circuit_breaker`); without a name, on all mailboxes."""
        found = {
            name: one
            for name, one in self._channels.items()
            if hasattr(one, "let_go") and channel in ("", name)
        }
        if not found:
            what = f"no mailbox {channel!r}" if channel else "no mailbox"
            raise NotFound(f"there is {what} in a running daemon; start it with `squidbot run`")
        released: dict[str, list[str]] = {}
        for name, one in found.items():
            let_go: Any = getattr(one, "let_go")  # noqa: B009 - no other channel has it
            released[name] = await let_go()
        self._wake_sending()
        return {"released": released}
