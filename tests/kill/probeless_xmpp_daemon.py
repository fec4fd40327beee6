"""A daemon whose XMPP channel does not look into the archive before it sends an answer again: the control."""

from __future__ import annotations

import sys

from squidbot_xmpp import channel

from gateway.cli import main


async def _look_nowhere(self: object, message: object) -> None:
    """Say that the server surely does not have it."""


channel.XmppChannel.probe = _look_nowhere  # type: ignore[assignment, method-assign]

if __name__ == "__main__":
    sys.exit(main())
