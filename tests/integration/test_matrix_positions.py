"""From where a room is read: the first start, the invitation, an absence, and a batch that was not accepted."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from agent_core.messages import Audience
from devservers import MatrixPeer
from tests.integration.matrix_bot import bot_joined, call, joined_room


async def test_old_history_is_left_alone_at_the_very_first_start(make_bot, alice, synapse):
    """What was said before squidbot's first start is not answered; what comes after it is."""
    bot = make_bot(allow_from=[alice.user_id])
    room = await call(alice.create_room, [bot.user_id], is_direct=True)
    account = await call(MatrixPeer.of, synapse.url, bot.credentials)
    await call(account.join, room)
    for number in range(5):
        await call(alice.send, room, f"old {number}")
    async with bot.up():
        await call(alice.send, room, "new")
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["new"]


async def test_the_first_words_before_the_join_are_taken(make_bot, alice):
    """What the person says between inviting and the bot's joining is the first question."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        pass
    room = await call(alice.create_room, [bot.user_id], is_direct=True)
    await call(alice.send, room, "are you there?")
    async with bot.up():
        await call(bot_joined, alice, room, bot.user_id)
        await call(alice.send, room, "hello")
        await bot.inbox.until_accepted(2)

    assert bot.inbox.texts == ["are you there?", "hello"]


async def test_what_was_said_before_the_invitation_is_left_alone(make_bot, alice):
    """A room with a past: only what follows the invitation is read, however much comes before."""
    bot = make_bot(allow_from=[alice.user_id], group_policy="open")
    room = await call(alice.create_room, [], is_direct=False)
    for number in range(5):
        await call(alice.send, room, f"past {number}")
    async with bot.up():
        await call(alice.invite, room, bot.user_id)
        await call(bot_joined, alice, room, bot.user_id)
        await call(alice.send, room, "welcome")
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["welcome"]


@pytest.mark.parametrize("count", [5, 130])
async def test_what_was_said_while_away_arrives_in_order(make_bot, alice, count):
    """A restart resumes: messages of the absence arrive once and in order, also beyond one timeline."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
        await call(alice.send, room, "before")
        await bot.inbox.until_accepted(1)
    expected = ["before"] + [f"message {number}" for number in range(count)]
    for text in expected[1:]:
        await call(alice.send, room, text)
    async with bot.up():
        await bot.inbox.until_accepted(len(expected), within_s=30)
        await call(alice.send, room, "after")
        await bot.inbox.until_accepted(len(expected) + 1)

    assert bot.inbox.texts == [*expected, "after"]
    assert {message.audience for message in bot.inbox.accepted} == {Audience.DIRECT}


async def test_a_timeline_alone_would_lose_messages(make_bot, alice):
    """The absence above is longer than one timeline: without filling the gap, messages are missing."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
    since = bot.inbox.positions["next_batch"]
    for number in range(130):
        await call(alice.send, room, f"message {number}")
    account = await call(MatrixPeer.login, bot.url, bot.user_id, bot.credentials.password)
    query = f"since={since}&filter={quote(json.dumps({'room': {'timeline': {'limit': 50}}}))}"
    answer = await call(account.call, "GET", f"/sync?{query}")
    timeline = answer["rooms"]["join"][room]["timeline"]

    assert timeline["limited"]
    assert len(timeline["events"]) < 130


async def test_an_unaccepted_batch_comes_again(make_bot, alice):
    """If the store fails while a batch is accepted, the same messages come with the next run."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
    await call(alice.send, room, "not to be lost")
    bot.inbox.refuse(RuntimeError("the disk is full"))
    with pytest.raises(RuntimeError, match="disk"):
        async with bot.up():
            pass
    async with bot.up():
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["not to be lost"]
