"""
Who may schedule something and who would hear it: decided by what holds now, not when it was scheduled. A job
outlives the message in which it was wished for. Since then its person may have lost the right to speak, in
general or in this room, and somebody may have come into a room that was for two.
"""

from __future__ import annotations

from dataclasses import replace

import anyio
import structlog

from agent_core.errors import AgentError
from agent_core.language import gettext_noop
from agent_core.messages import Audience, InboundMessage, SessionKey
from channels.base import (
    Channel,
    ChannelError,
    ChannelUnavailable,
    SupportsDirectMessages,
    SupportsLeaving,
    SupportsRoomPolicy,
)
from gateway.routing.access import Access, Role

BOT_HAS_LEFT = gettext_noop("I am not in its conversation any more")
"""The note of a job that is paused until the bot is back in its conversation."""
_ASK_LIMIT_S = 30.0
_log = structlog.get_logger(__name__)


class PlaceUnknown(AgentError):
    """The channel cannot say at the moment who is in this conversation."""

    temporary = True
    channel = ""
    """The channel that cannot, where it is another one than that of the turn."""


class OwnerUnreachable(PlaceUnknown):
    """The owner's conversation, on this channel, cannot be reached at the moment."""

    def __init__(self, why: str, channel: str) -> None:
        super().__init__(why)
        self.channel = channel


def current_role(access: Access, channel: Channel | None, message: InboundMessage) -> Role:
    """Return the sender's present role in this conversation. Raises ChannelUnavailable."""
    here = None
    if isinstance(channel, SupportsRoomPolicy):
        here = channel.allowed_here(message.session, message.sender.address)
    return access.decide(message.with_context(replace(message.context, allowed_here=here))).role


async def can_others_read(channel: Channel | None, message: InboundMessage) -> bool:
    """
    Return True if others could now read what was private when the job was made.

    An email has fixed recipients; only a room can be joined by others. Raises `PlaceUnknown`.
    """
    if message.audience is not Audience.DIRECT or not isinstance(channel, SupportsDirectMessages):
        return False
    if channel.capabilities.email_style:
        return False
    try:
        with anyio.fail_after(_ASK_LIMIT_S):
            return not await channel.alone_with(message.session, message.sender.address)
    except (ChannelUnavailable, TimeoutError) as error:
        raise PlaceUnknown("I cannot find out at the moment who can read along there") from error


async def is_out_of_place(channel: Channel | None, message: InboundMessage) -> bool:
    """Return True if the job's place has other readers now, or the bot has left. Raises `PlaceUnknown`."""
    return await can_others_read(channel, message) or await has_bot_left(channel, message.session)


async def has_bot_left(channel: Channel | None, session: SessionKey) -> bool:
    """Return True if the bot has left a conversation. Raises `PlaceUnknown`."""
    if not isinstance(channel, SupportsLeaving):
        return False
    try:
        with anyio.fail_after(_ASK_LIMIT_S):
            return not await channel.is_in(session)
    except (ChannelUnavailable, TimeoutError) as error:
        raise PlaceUnknown("I cannot find out at the moment whether I am there") from error


async def direct_conversation(channel: Channel, person: str) -> SessionKey | None:
    """Return the conversation with a person alone, None if impossible. Raises `PlaceUnknown`."""
    if not isinstance(channel, SupportsDirectMessages):
        return None
    try:
        with anyio.fail_after(_ASK_LIMIT_S):
            return await channel.direct_session(person)
    except (ChannelUnavailable, TimeoutError) as error:
        raise PlaceUnknown("the direct conversation cannot be found at the moment") from error
    except ChannelError as error:
        _log.warning("job.not_moved", channel=channel.name, error=str(error))
        return None
