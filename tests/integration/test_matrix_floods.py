"""
What a stranger's flood costs, counted on a real Synapse: events, invitations, poison for the keys.

How long answers take meanwhile is measured by `make bench`; here it is what must hold on any machine: the owner's
words come first or at once, nothing of the stranger's is taken, and no ignored event costs a call or a transaction.
"""

from __future__ import annotations

import json
import secrets

import anyio
import pytest

from channels.base import ChannelUnavailable
from tests.integration.matrix_bot import Bot, bot_joined, call, joined_room
from tests.integration.proxy import Fault, FaultProxy
from tests.integration.secret_peer import SecretPeer
from tests.integration.secret_talk import GARBAGE

EVENTS = 150
INVITES = 25
POISON = 40


@pytest.fixture
def make_bot(synapse, fresh_credentials, tmp_path):
    def make(url, **settings):
        return Bot(fresh_credentials("bot"), url, tmp_path / secrets.token_hex(4), **settings)

    return make


def poison(stranger, user_id, device):
    """Bodies that no client makes, each for the bot's own device."""
    for number in range(POISON):
        content = GARBAGE[number % len(GARBAGE)]
        if number % 2:
            ciphertext = {device.curve25519: {"type": number % 3, "body": "A" * number}}
            content = {
                "algorithm": "m.olm.v1.curve25519-aes-sha2",
                "sender_key": "A" * 43,
                "ciphertext": ciphertext,
            }
        stranger.to_device("m.room.encrypted", user_id, device.device_id, content)


@pytest.mark.parametrize("meant", [False, True])
async def test_a_flood_costs_pages_not_events(
    make_bot, fresh_user, fresh_credentials, synapse, tmp_path, *, meant
):
    """
    What a stranger says in an absence is taken in answers of /sync, not one by one, and asks the server nothing
    for each event; among it the owner's question alone is meant for the bot, unless the stranger mentions it too.
    """
    alice = await call(fresh_user, "alice")
    stranger = SecretPeer(synapse.url, fresh_credentials("mallory"), tmp_path / "mallory")
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        mention = {"m.mentions": {"user_ids": [bot.user_id]}}
        async with bot.up():
            room = await call(alice.create_room, [bot.user_id, stranger.user_id], is_direct=False)
            await call(bot_joined, alice, room, bot.user_id)
            await call(stranger.peer.join, room)
        [device] = stranger.devices_of(bot.user_id)
        for number in range(EVENTS):
            if number == EVENTS // 2:
                await call(alice.send, room, "what is the time?", **mention)
            await call(stranger.peer.send, room, f"spam {number}", **(mention if meant else {}))
        await call(poison, stranger, bot.user_id, device)

        begun = len(proxy.seen)
        transactions = []
        bot.inbox.on_accepted = lambda: transactions.append(len(bot.inbox.accepted))
        async with bot.up():
            await bot.inbox.until_accepted(EVENTS + 1, within_s=60)
        syncs = [seen for seen in proxy.seen[begun:] if "/sync" in seen.path]
        about_the_room = [seen for seen in proxy.seen[begun:] if "/rooms/" in seen.path]
    stranger.close()

    addressed = [message.text for message in bot.inbox.accepted if message.addressed]
    assert "what is the time?" in addressed
    assert (addressed == ["what is the time?"]) == (not meant)
    assert len(transactions) <= len(syncs) + 5, transactions  # a new start notes some positions besides
    assert len(about_the_room) <= 20, [seen.path for seen in about_the_room]


async def test_a_friend_does_not_wait_behind_a_strangers_invitations(make_bot, fresh_user, synapse):
    """
    While not one of the stranger's invitations can be refused, because the server does not answer that, the owner's
    own is followed and the question in there taken; afterwards all but a few, which wait for the owner's word, are
    refused, and none was ever followed.
    """
    alice, mallory = await call(fresh_user, "alice"), await call(fresh_user, "mallory")
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        refusals = proxy.add("/leave", Fault.HANG)
        async with bot.up():
            rooms = [await call(mallory.create_room, [bot.user_id], is_direct=True) for _ in range(INVITES)]
            await bot.inbox.until(
                lambda inbox: len(json.loads(inbox.positions.get("invites", "[]"))) == INVITES, within_s=60
            )
            room = await joined_room(alice, bot)
            await call(alice.send, room, "are you there?")
            await bot.inbox.until(lambda inbox: "are you there?" in inbox.texts, within_s=60)
            open_ones = json.loads(bot.inbox.positions["invites"])
            strangers = [each for each in open_ones if each["inviter"] == mallory.user_id]
            joins = [seen.path for seen in proxy.seen if "/join" in seen.path]
            assert len(strangers) == INVITES

            proxy.remove(refusals)
            await bot.inbox.until(lambda inbox: all_refused(inbox.positions["invites"]), within_s=60)
            kept = [each["room_id"] for each in json.loads(bot.inbox.positions["invites"])]
            assert len(kept) == 3
            with anyio.fail_after(60):
                for each in [room for room in rooms if room not in kept]:
                    while bot.user_id in await call(mallory.members, each):
                        await anyio.sleep(0.1)

    assert sorted(bot.inbox.texts) == ["(invites me into a room)"] * 3 + ["are you there?"]
    assert len(joins) == 1


def all_refused(invites):
    """Whether nothing is open but what waits for the owner."""
    return all(each["kept_at"] for each in json.loads(invites))


async def test_nobody_goes_on_while_devices_are_asked_for(make_bot, fresh_credentials, synapse, tmp_path):
    """
    Two rooms with the same person, whose devices the bot does not know yet: while the server has not said which there
    are, nothing is said in either, and what is said afterwards can be read in both.
    """
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[nia.user_id])
        async with bot.up() as channel:
            rooms = [nia.create_room(bot.user_id), nia.create_room(bot.user_id)]
            for room in rooms:
                await call(bot_joined, nia.peer, room, bot.user_id)
            await bot.inbox.until(lambda inbox: json.loads(inbox.positions.get("invites", "[]")) == [])
            slow = proxy.add("/keys/query", Fault.HANG)

            async def say(room):
                for _ in range(5):
                    try:
                        return await channel.deliver(bot.message(room, "hello"), uncertain=bot.mark)
                    except ChannelUnavailable:
                        await anyio.sleep(0.1)
                return None

            async with anyio.create_task_group() as group:
                group.start_soon(say, rooms[0])
                while not slow.applied:
                    await anyio.sleep(0.01)
                group.start_soon(say, rooms[1])
                with anyio.move_on_after(3):
                    while proxy.count("/send/m.room.encrypted") == 0:
                        await anyio.sleep(0.05)
                early = proxy.count("/send/m.room.encrypted")
                proxy.remove(slow)
            said = [[content.get("body") for _, content in nia.read(room)] for room in rooms]
    nia.close()

    assert early == 0
    assert said == [["hello"], ["hello"]]


async def test_slow_devices_of_one_person_hold_nobody_else_up(make_bot, fresh_credentials, synapse, tmp_path):
    """
    Two rooms with two people: while the server does not say which devices the one has, what is said to the other
    arrives; and afterwards the first can read theirs.
    """
    names = ("ann-the-slow", "quick")  # asked for in this order, and the bot between them
    slow, quick = [SecretPeer(synapse.url, fresh_credentials(one), tmp_path / one) for one in names]
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[one.user_id for one in (slow, quick)])
        async with bot.up() as channel:
            rooms = {peer: peer.create_room(bot.user_id) for peer in (slow, quick)}
            for peer, room in rooms.items():
                await call(bot_joined, peer.peer, room, bot.user_id)
            await bot.inbox.until(lambda inbox: json.loads(inbox.positions.get("invites", "[]")) == [])
            unsaid = proxy.add("/keys/query", Fault.HANG, times=1)

            async def say_slowly():
                for _ in range(5):
                    try:
                        return await channel.deliver(bot.message(rooms[slow], "hello"), uncertain=bot.mark)
                    except ChannelUnavailable:
                        await anyio.sleep(0.1)
                return None

            async with anyio.create_task_group() as group:
                group.start_soon(say_slowly)
                while not unsaid.applied:
                    await anyio.sleep(0.01)
                with anyio.fail_after(60):  # less than the request that hangs has
                    await channel.deliver(bot.message(rooms[quick], "hello"), uncertain=bot.mark)
                heard = [content.get("body") for _, content in quick.read(rooms[quick])]
                early = slow.read(rooms[slow])
                proxy.remove(unsaid)
            late = [content.get("body") for _, content in slow.read(rooms[slow])]
    for peer in rooms:
        peer.close()

    assert heard == ["hello"]
    assert early == []
    assert late == ["hello"]
