"""
Finds the room of a message and its conversation, for a person or an alias; and interprets a refusal while a
room is being replaced. A server lets nobody but moderators write into a room that was replaced, and the bot
may hear of that refusal before it hears of the upgrade, or before somebody has let it into the new room. So a
refusal in a room with a tombstone is believed only after a while: until then the message waits for the room
that follows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import ChannelUnavailable, DeliveryFailed, Receipt
from channels.matrix.client.homeserver import CLIENT, Homeserver, link_errors, quote_path
from channels.matrix.client.json_access import object_of, text_of
from channels.matrix.events.room_policy import find_alias
from channels.matrix.rooms.room_state import Rooms

UPGRADE_LIMIT = timedelta(hours=1)
"""The time for which a message waits until the bot has joined the room that replaces another."""
_log = structlog.get_logger(__name__)


async def resolve(
    message: OutboundMessage,
    *,
    homeserver: Homeserver | None,
    direct_session: Callable[[str], Awaitable[SessionKey]],
) -> OutboundMessage:
    """Return the message for the room of a person or alias. Raises ChannelUnavailable, DeliveryFailed."""
    name = message.session.conversation
    if name.startswith("@"):
        session = await direct_session(name)
        context = replace(message.context, person=name)
        return message.model_copy(update={"session": session, "context": context})
    if not name.startswith("#") or homeserver is None:
        return message
    with link_errors():
        room_id = await find_alias(homeserver, name)
    if room_id is None:
        raise DeliveryFailed(f"there is no room {name}")
    return message.model_copy(update={"session": SessionKey(message.channel, room_id)})


def final_receipt(receipt: Receipt, placed: OutboundMessage, rooms: Rooms | None) -> Receipt:
    """The receipt with the conversation that goes on in the room of this message."""
    room_id, thread = placed.session.conversation, placed.session.thread
    conversation = room_id if rooms is None else rooms.conversation_of(room_id)
    return replace(receipt, session=SessionKey(placed.session.channel, conversation, thread))


async def next_room_error(
    error: DeliveryFailed, message: OutboundMessage, homeserver: Homeserver, rooms: Rooms, now: datetime
) -> ChannelUnavailable | None:
    """Return a temporary error while the room is being replaced, else None. Raises `ChannelUnavailable`."""
    room_id = message.session.conversation
    if error.fields.get("errcode") != "M_FORBIDDEN" or abs(now - message.created_at) > UPGRADE_LIMIT:
        return None
    room = rooms.get(room_id)
    content = object_of(room.tombstone, "content") if room is not None and room.tombstone else None
    if content is None:
        path = f"{CLIENT}/rooms/{quote_path(room_id)}/state/m.room.tombstone/"
        with link_errors():
            answer = await homeserver.request("GET", path)
        content = answer.body if answer.is_success else {}
    if not text_of(content, "replacement_room"):
        return None
    _log.info("matrix.move_awaited", room=room_id)
    return ChannelUnavailable("the room is being replaced by another", retry_after_s=5.0)
