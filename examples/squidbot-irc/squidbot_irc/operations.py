"""The requests of an operator: to join a room."""

from __future__ import annotations

from typing import Any

from squidbot_api.channel import ChannelError, RunningAccounts
from squidbot_api.declare import operation
from squidbot_irc import IrcAddresses
from squidbot_irc.channel import IrcChannel


@operation("irc join", writes=True, render=lambda answer: f"asked the server for {answer['room']}")
async def join_room(context: RunningAccounts, room: str) -> dict[str, Any]:
    """
    Join a room until the next start.

    Args:
        room: Its name, such as "#team".
    """
    if not IrcAddresses().is_room(room):
        raise ChannelError(f"{room!r} is not the name of a room")
    for account in context.channels_of("irc").values():
        assert isinstance(account, IrcChannel)
        await account.join(room)
    return {"room": room}
