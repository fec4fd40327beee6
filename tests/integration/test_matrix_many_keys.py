"""
More room keys than one answer of ``/sync`` brings: Synapse hands out 100 to-device events at a time.

Every start of the bot makes new room keys, so somebody who was away for many of them has as many to take; and the bot
that was away has those of everybody who wrote.
"""

from __future__ import annotations

from tests.integration.matrix_bot import call
from tests.integration.secret_talk import secret_room

MANY = 110


def write(peer, room, to, texts):
    """Say each of these with a room key of its own."""
    for text in texts:
        peer.new_key(room)
        peer.send(room, text, to=to)


async def test_a_person_who_was_away_reads_everything(make_peer, fresh_credentials):
    """The person of the tests herself: what she cannot read is not for want of a second sync."""
    writer, reader = make_peer(fresh_credentials("ole")), make_peer(fresh_credentials("nia"))
    room = writer.create_room(reader.user_id)
    reader.peer.join(room)
    await call(write, writer, room, reader.user_id, [f"#{number}" for number in range(MANY)])

    said = await call(reader.read, room)
    assert [content["body"] for _, content in said] == [f"#{number}" for number in range(MANY)]


async def test_the_bot_that_was_away_reads_everything(make_bot, nia):
    """Each message once and in order, and nobody is told that a key is missing which is on its way."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = await secret_room(nia, bot)
    texts = [f"#{number}" for number in range(MANY)]
    await call(write, nia, room, bot.user_id, texts)
    async with bot.up():
        await bot.inbox.until_accepted(MANY, within_s=60)

    assert bot.inbox.texts == texts
    assert await call(nia.read, room) == []
