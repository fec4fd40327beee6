"""What a refusal to write means: the last word, or that the room is just being replaced."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import ChannelUnavailable, DeliveryFailed
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.room_resolution import UPGRADE_LIMIT, next_room_error
from tests.clock import EPOCH
from tests.doubles.homeserver import ScriptedHomeserver, failure

BOT, OLD = "@bot:hs.test", "!old:hs.test"
STONE = r"/state/m\.room\.tombstone/"
MESSAGE = OutboundMessage(
    id="m", channel="matrix", account=BOT, session=SessionKey("matrix", OLD), text="hi", created_at=EPOCH
)


async def meant(homeserver, *, errcode="M_FORBIDDEN", rooms=None, age=timedelta(0)):
    error = DeliveryFailed("the bot may not write in this room", errcode=errcode)
    return await next_room_error(error, MESSAGE, homeserver, rooms or Rooms(BOT), EPOCH + age)


async def test_a_known_tombstone_makes_it_wait():
    """The bot has heard of the upgrade already: nothing is asked, and it is tried again soon."""
    homeserver, rooms = ScriptedHomeserver(), Rooms(BOT)
    stone = {"type": "m.room.tombstone", "state_key": "", "content": {"replacement_room": "!new"}}
    rooms.update({"rooms": {"join": {OLD: {"state": {"events": [stone]}}}}})
    waits = await meant(homeserver, rooms=rooms)
    assert isinstance(waits, ChannelUnavailable)
    assert waits.retry_after_s is not None
    assert homeserver.calls == []


async def test_an_unknown_tombstone_is_asked_for():
    """The refusal may come before the news: the server is asked whether the room is being replaced."""
    homeserver = ScriptedHomeserver()
    homeserver.on("GET", STONE, HttpAnswer(200, {"replacement_room": "!new"}))
    assert isinstance(await meant(homeserver), ChannelUnavailable)


@pytest.mark.parametrize(
    "answer", [failure(404, "M_NOT_FOUND"), failure(403, "M_FORBIDDEN"), HttpAnswer(200, {"body": "closed"})]
)
async def test_without_a_replacement_it_is_the_last_word(answer):
    """No tombstone, none that the bot may see, or one that leads nowhere."""
    homeserver = ScriptedHomeserver()
    homeserver.on("GET", STONE, answer)
    assert await meant(homeserver) is None


async def test_another_refusal_is_believed_at_once():
    """Only "forbidden" is what a server says during an upgrade."""
    homeserver = ScriptedHomeserver()
    homeserver.on("GET", STONE, HttpAnswer(200, {"replacement_room": "!new"}))
    assert await meant(homeserver, errcode="M_BAD_JSON") is None
    assert homeserver.calls == []


@pytest.mark.parametrize("sign", [1, -1])
async def test_it_does_not_wait_for_ever(sign):
    """After a while the refusal is the last word, also by a clock that was set back."""
    homeserver = ScriptedHomeserver()
    homeserver.on("GET", STONE, HttpAnswer(200, {"replacement_room": "!new"}))
    assert await meant(homeserver, age=sign * UPGRADE_LIMIT) is not None
    assert await meant(homeserver, age=sign * (UPGRADE_LIMIT + timedelta(seconds=1))) is None


async def test_a_broken_link_decides_nothing():
    """Where the server cannot be asked the message waits."""
    homeserver = ScriptedHomeserver()
    homeserver.on("GET", STONE, LinkBroken("away", maybe_taken=False))
    with pytest.raises(ChannelUnavailable):
        await meant(homeserver)
