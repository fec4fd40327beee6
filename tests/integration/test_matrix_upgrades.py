"""A room that is replaced in the middle of a delivery, on a real Synapse: one answer, never in clear."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from urllib.parse import quote

import anyio
import pytest

from channels.base import AckState, ChannelUnavailable, DeliveryFailed, DeliveryUncertain
from tests.integration.matrix_bot import Bot, bot_joined, call, joined_room
from tests.integration.proxy import Fault, FaultProxy
from tests.integration.secret_peer import SecretPeer

MEGOLM = {"algorithm": "m.megolm.v1.aes-sha2"}


@pytest.fixture
def nia(synapse, fresh_credentials, tmp_path):
    peer = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    yield peer
    peer.close()


@pytest.fixture
async def alice_alone(fresh_user):
    return await call(fresh_user, "alice")


@pytest.fixture
def make_bot(fresh_credentials, tmp_path):
    def make(url, **settings):
        return Bot(fresh_credentials("bot"), url, tmp_path / secrets.token_hex(4), **settings)

    return make


async def replaced(bot, peer, old, version):
    """The room is upgraded, the bot invited, and it has followed."""
    answer = await call(peer.call, "POST", f"/rooms/{quote(old)}/upgrade", {"new_version": version})
    new = answer["replacement_room"]
    await call(peer.invite, new, bot.user_id)
    await call(bot_joined, peer, new, bot.user_id)
    await bot.inbox.until(lambda inbox: json.loads(inbox.positions.get("upgrades", "{}")).get(new) == old)
    return new


async def events(peer, room, bot):
    """What the bot has said there, as the server has it."""
    chunk = (await call(peer.call, "GET", f"/rooms/{quote(room)}/messages?dir=f&limit=200"))["chunk"]
    kinds = ("m.room.message", "m.room.encrypted")
    return [one for one in chunk if one["sender"] == bot.user_id and one["type"] in kinds]


async def texts(nia, room):
    """What the person can read of the bot, and whether anything of it went in clear."""
    seen = await call(nia.read, room)
    return [content["body"] for _, content in seen], [kind for kind, _ in seen]


@pytest.mark.parametrize(("before", "after"), [("11", "12"), ("12", "12")])
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("told", [True, False])
async def test_an_answer_that_may_be_in_the_old_room_is_not_said_again_in_the_new_one(
    make_bot, nia, synapse, before, after, encrypted, told
):
    """
    Taken by the server, the answer cut off, then the room is replaced: the repetition finds it in the old room.

    Control: a channel that is not told of the uncertain try sends it a second time, under the same id, because
    ids count within a room.
    """
    alice = nia.peer
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[nia.user_id])
        async with bot.up() as channel:
            old = await joined_room(alice, bot, version=before)
            if encrypted:
                await call(alice.call, "PUT", f"/rooms/{quote(old)}/state/m.room.encryption/", MEGOLM)
                await call(nia.send, old, "a question", to=bot.user_id)
            else:
                await call(alice.send, old, "a question")
            await bot.inbox.until_accepted(1)
            answer = bot.message(old, "once", context=bot.inbox.accepted[0].context)
            rule = proxy.add(r"/send/m\.room\.(message|encrypted)/", Fault.CUT_AFTER)
            with pytest.raises(DeliveryUncertain):
                await channel.deliver(answer, uncertain=bot.mark)
            assert rule.applied == 1
            proxy.remove(rule)
            new = await replaced(bot, alice, old, after)
            again = answer.model_copy(update={"maybe_sent": told})
            for _ in range(2):
                receipt = await channel.deliver(again, uncertain=bot.mark)
            fresh = bot.message(old, "another", maybe_sent=told)
            await channel.deliver(fresh, uncertain=bot.mark)
        said = await events(alice, old, bot) + await events(alice, new, bot)

    assert len(said) == (2 if told else 3)
    if told:
        assert receipt.provider_id == said[0]["event_id"]
    assert {one["type"] for one in said} == {"m.room.encrypted" if encrypted else "m.room.message"}


@pytest.mark.parametrize("after", ["11", "12"])
async def test_an_encrypted_conversation_goes_on_encrypted_in_the_new_room(make_bot, nia, synapse, after):
    """
    Old and new room are encrypted: the key of the new one is shared, questions are read, answers go there, and
    nothing that the bot says is in clear anywhere; over a restart, too (M29).
    """
    alice = nia.peer
    bot = make_bot(synapse.url, allow_from=[nia.user_id])
    async with bot.up() as channel:
        old = await joined_room(alice, bot, version="11")
        await call(alice.call, "PUT", f"/rooms/{quote(old)}/state/m.room.encryption/", MEGOLM)
        await call(nia.send, old, "before", to=bot.user_id)
        await bot.inbox.until_accepted(1)
        first = bot.inbox.accepted[0]
        await channel.deliver(bot.message(old, "one", context=first.context), uncertain=bot.mark)
        new = await replaced(bot, alice, old, after)
        # The question of the old room is answered in the new one.
        await channel.deliver(bot.message(old, "two", context=first.context), uncertain=bot.mark)
        await call(nia.send, new, "after", to=bot.user_id)
        await bot.inbox.until_accepted(2)
    async with bot.up() as channel:
        await call(nia.send, new, "and after a restart", to=bot.user_id)
        await bot.inbox.until_accepted(3)
        asked = bot.inbox.accepted[-1]
        await channel.deliver(bot.message(old, "three", context=asked.context), uncertain=bot.mark)

    assert bot.inbox.texts == ["before", "after", "and after a restart"]
    assert len({message.session for message in bot.inbox.accepted}) == 1
    assert await texts(nia, old) == (["one"], ["m.room.encrypted"])
    assert await texts(nia, new) == (["two", "three"], ["m.room.encrypted"] * 2)
    assert [one["type"] for one in await events(alice, new, bot)] == ["m.room.encrypted"] * 2


async def test_an_answer_waits_while_the_room_is_replaced(make_bot, alice_alone, synapse):
    """
    Between the tombstone and the bot's way into the new room its server refuses what it writes in the old one:
    that is no end of the answer, which arrives in the new room, once. Control: where nothing replaces the room
    the same refusal is the last word.
    """
    bot = make_bot(synapse.url, allow_from=[alice_alone.user_id])
    async with bot.up() as channel:
        old = await joined_room(alice_alone, bot, direct=False, version="11")
        lone = await joined_room(alice_alone, bot, direct=False, version="11")
        mention = {"m.mentions": {"user_ids": [bot.user_id]}}
        await call(alice_alone.send, old, "a question", **mention)
        await bot.inbox.until_accepted(1)
        answer = bot.message(old, "once", context=bot.inbox.accepted[0].context)
        path = f"/rooms/{quote(lone)}/state/m.room.power_levels/"
        powers = await call(alice_alone.call, "GET", path)
        await call(alice_alone.call, "PUT", path, {**powers, "events_default": 50})
        with pytest.raises(DeliveryFailed):
            await channel.deliver(bot.message(lone, "never"), uncertain=bot.mark)
        new = (await call(alice_alone.call, "POST", f"/rooms/{quote(old)}/upgrade", {"new_version": "12"}))[
            "replacement_room"
        ]
        for _ in range(2):  # whether the bot has heard of it or not
            with pytest.raises(ChannelUnavailable, match="replaced"):
                await channel.deliver(answer, uncertain=bot.mark)
        await call(alice_alone.invite, new, bot.user_id)
        await call(bot_joined, alice_alone, new, bot.user_id)
        await bot.inbox.until(lambda inbox: json.loads(inbox.positions.get("upgrades", "{}")).get(new) == old)
        await channel.deliver(answer, uncertain=bot.mark)
        too_old = answer.model_copy(
            update={"id": "old", "created_at": answer.created_at - timedelta(hours=2)}
        )
        await channel.deliver(too_old, uncertain=bot.mark)
    assert len(await events(alice_alone, old, bot)) == 0
    assert len(await events(alice_alone, new, bot)) == 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_nothing_unfinished_stays_in_the_old_room(make_bot, alice_alone, synapse, restarted):
    """An answer that was half shown when its room was replaced is whole in the new one, and gone in the old."""
    streaming = {"enabled": True, "min_interval_s": 0.2}
    bot = make_bot(synapse.url, allow_from=[alice_alone.user_id], streaming=streaming)
    async with bot.up() as channel:
        old = await joined_room(alice_alone, bot, version="11")
        # In a room that was made for the two of them the bot has the power to tidy up behind itself.
        await call(alice_alone.send, old, "a question")
        await bot.inbox.until_accepted(1)
        asked = bot.inbox.accepted[0]
        await channel.acknowledge(asked.session, asked.context, AckState.RECEIVED)
        with anyio.fail_after(60):
            while not (shown := await events(alice_alone, old, bot)):
                await channel.preview(asked.session, "half of it")
                await anyio.sleep(0.1)
        new = await replaced(bot, alice_alone, old, "12")
        answer = bot.message(old, "half of it and the rest", context=asked.context)
        if not restarted:
            await channel.deliver(answer, uncertain=bot.mark)
            await gone(alice_alone, old, bot)
    if restarted:
        async with bot.up() as channel:
            await channel.deliver(answer, uncertain=bot.mark)
            await gone(alice_alone, old, bot)

    assert "half of it" in shown[0]["content"]["body"]
    assert [one["content"]["body"] for one in await events(alice_alone, new, bot)] == [
        "half of it and the rest"
    ]


async def gone(peer, room, bot):
    """Nothing that the bot has said there can be read any more."""
    with anyio.fail_after(60):
        while any(one["content"] for one in await events(peer, room, bot)):
            await anyio.sleep(0.1)
