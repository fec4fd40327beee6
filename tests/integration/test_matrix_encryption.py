"""
Encryption against a real Synapse, with a person whose client misbehaves on command.

What is promised: nothing encrypted is lost over crashes, late keys and hostile events; nothing goes out in clear.
"""

from __future__ import annotations

import anyio
import pytest

from channels.base import DeliveryFailed
from devservers import MatrixPeer
from tests.integration.matrix_bot import call
from tests.integration.secret_talk import GARBAGE, secret_room, seen


# ── the main job ──
@pytest.mark.smoke
async def test_question_and_answer_are_encrypted_and_sent_once(make_bot, nia):
    """Both ways, and an answer that is delivered three times is one event."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up() as channel:
        room = await secret_room(nia, bot)
        nia.send(room, "hello", to=bot.user_id)
        await bot.inbox.until_accepted(1)
        answer = bot.message(room, "A **mollusc**.")
        receipts = {(await channel.deliver(answer, uncertain=bot.mark)).provider_id for _ in range(3)}
        [(wire, content)] = await seen(nia, room, 1)

    assert bot.inbox.texts == ["hello"]
    assert len(receipts) == 1
    assert (wire, content["body"]) == ("m.room.encrypted", "A **mollusc**.")
    assert content["formatted_body"] == "<p>A <strong>mollusc</strong>.</p>"


async def test_what_is_said_while_away_is_read(make_bot, nia):
    """Messages of an absence arrive once and in order; a batch that was not accepted comes again (M9)."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = await secret_room(nia, bot)
    texts = [f"message {number}" for number in range(8)]
    for text in texts:
        nia.send(room, text, to=bot.user_id)
    bot.inbox.refuse(RuntimeError("killed"))
    with pytest.raises(RuntimeError, match="killed"):
        async with bot.up():
            pass
    async with bot.up():
        await bot.inbox.until_accepted(len(texts))

    assert bot.inbox.texts == texts


async def test_a_new_device_of_the_person_reads_the_answer(make_bot, make_peer, synapse, fresh_credentials):
    """Somebody who has just logged in elsewhere reads what comes next, also the answer to the first word."""
    account = fresh_credentials("nia")
    nia = make_peer(account)
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up() as channel:
        room = await secret_room(nia, bot)
        nia.send(room, "from the old one", to=bot.user_id)
        await bot.inbox.until_accepted(1)
        await channel.deliver(bot.message(room, "to the old one"), uncertain=bot.mark)
        login = await call(MatrixPeer.login, synapse.url, nia.user_id, account.password)
        new = make_peer(login)
        new.send(room, "from the new one", to=bot.user_id)
        await bot.inbox.until_accepted(2)
        await channel.deliver(bot.message(room, "to the new one"), uncertain=bot.mark)
        found = await seen(new, room, 2)

    assert [content["body"] for _, content in found] == ["<NoKey>", "to the new one"]


# ── never in clear ──
async def test_without_encryption_nothing_is_said(make_bot, nia):
    """A bot that has lost its means of encryption refuses; the same delivery with them is encrypted (M21)."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up() as channel:
        room = await secret_room(nia, bot)
        nia.send(room, "hello", to=bot.user_id)
        await bot.inbox.until_accepted(1)
    answer = bot.message(room, "secret")
    async with bot.up(encryption=False) as channel:
        with pytest.raises(DeliveryFailed, match="encryption is not available"):
            await channel.deliver(answer, uncertain=bot.mark)
    assert nia.read(room) == []
    async with bot.up() as channel:
        await channel.deliver(answer, uncertain=bot.mark)
        found = await seen(nia, room, 1)

    assert [(wire, content["body"]) for wire, content in found] == [("m.room.encrypted", "secret")]


# ── hostile and unlucky events ──
async def test_malformed_to_device_events_take_nothing_along(make_bot, nia, make_peer):
    """A stranger's garbage for the bot's device neither ends the sync nor costs a message that comes with it (M11)."""
    bot = make_bot(allow_from=[nia.user_id])
    stranger = make_peer()
    async with bot.up():
        room = await secret_room(nia, bot)
        [device] = nia.devices_of(bot.user_id)
        curve = device.curve25519
    for kind, body in [(0, "!!!"), (0, "AAAA"), (1, "AAAA"), (1, "*"), (7, "AAAA"), ("x", 5)]:
        ciphertext = {curve: {"type": kind, "body": body}}
        content = {
            "algorithm": "m.olm.v1.curve25519-aes-sha2",
            "sender_key": "A" * 43,
            "ciphertext": ciphertext,
        }
        stranger.to_device("m.room.encrypted", bot.user_id, device.device_id, content)
    for content in GARBAGE:
        stranger.to_device("m.room.encrypted", bot.user_id, device.device_id, content)
    for kind in ("request", "start", "key", "mac", "done"):
        content = {"transaction_id": "t", "from_device": "X", "methods": ["m.sas.v1"], "key": 5, "mac": []}
        stranger.to_device(f"m.key.verification.{kind}", bot.user_id, device.device_id, content)
    nia.send(room, "are you there?", to=bot.user_id)
    async with bot.up():
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["are you there?"]


async def test_drained_one_time_keys_are_replaced(make_bot, make_peer, synapse, fresh_credentials):
    """A stranger takes all keys while the bot is away; a new device of the person is heard nevertheless (M12)."""
    account = fresh_credentials("nia")
    nia, stranger = make_peer(account), make_peer()
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = await secret_room(nia, bot)
    devices = stranger.devices_of(bot.user_id)
    taken = 0
    while stranger.claim(devices).get(bot.user_id):
        taken += 1
    login = await call(MatrixPeer.login, synapse.url, nia.user_id, account.password)
    new = make_peer(login)
    assert new.claim(devices) == {}  # nobody could begin a session now
    async with bot.up() as channel:
        with anyio.fail_after(60):
            while not (claimed := new.claim(devices)).get(bot.user_id):
                await anyio.sleep(0.1)
        new.machine.learn_devices(bot.user_id, {})
        new.devices_of(bot.user_id)
        new.machine.start_sessions(claimed)
        new.send(room, "can you hear me?", to=bot.user_id)
        await bot.inbox.until_accepted(1)
        await channel.deliver(bot.message(room, "yes"), uncertain=bot.mark)
        found = await seen(new, room, 1)

    assert taken >= 40
    assert bot.inbox.texts == ["can you hear me?"]
    assert found[-1][1]["body"] == "yes"


@pytest.mark.parametrize("version", ["11", "12"])
async def test_a_key_that_comes_late_is_used(make_bot, nia, version):
    """The message is handed over when its key has come, even after a restart in between (M22)."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = await secret_room(nia, bot, version)
        nia.send(room, "early", to=bot.user_id, give_key=False)
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 1)
    assert "early" not in bot.inbox.positions["waiting_for_keys"]
    nia.give_key()
    async with bot.up():
        await bot.inbox.until_accepted(1)
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 0)

    assert bot.inbox.texts == ["early"]


async def test_without_the_kept_reference_it_would_be_lost(make_bot, nia):
    """The check above catches a channel that forgets what it waits for: the position has passed the message."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = await secret_room(nia, bot)
        nia.send(room, "early", to=bot.user_id, give_key=False)
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 1)
    del bot.inbox.positions["waiting_for_keys"]
    nia.give_key()
    async with bot.up():
        nia.send(room, "later", to=bot.user_id)
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["later"]


@pytest.mark.parametrize("version", ["11", "12"])
async def test_a_withheld_key_is_told_once_with_its_reason(make_bot, nia, version):
    """One notice, encrypted, however many messages it is about; and none once a key works (M22)."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = await secret_room(nia, bot, version)
        [device] = nia.devices_of(bot.user_id)
        for number in range(3):
            nia.send(room, f"message {number}", to=bot.user_id, give_key=False)
            if number == 0:
                nia.withhold(room, device, "m.unverified")
                [(wire, notice)] = await seen(nia, room, 1)
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 3)
        await anyio.sleep(1)

    # Whoever waits for an answer has to send it again, so that this rings: a notice would not.
    assert (wire, notice["msgtype"]) == ("m.room.encrypted", "m.text")
    assert notice["m.mentions"] == {"user_ids": [nia.user_id]}
    assert "does not trust" in notice["body"]
    assert len(nia.read(room)) == 1
    assert bot.inbox.accepted == []


async def test_strangers_get_no_references(make_bot, nia, make_peer):
    """What a person who may not talk to the bot sends without a key is neither kept nor answered."""
    bot = make_bot(allow_from=[nia.user_id])
    stranger = make_peer()
    async with bot.up():
        room = await secret_room(nia, bot)
        await call(nia.peer.invite, room, stranger.user_id)
        await call(stranger.peer.join, room)
        stranger.send(room, "psst", to=bot.user_id, give_key=False)
        nia.send(room, "hello", to=bot.user_id)
        await bot.inbox.until_accepted(1)

    assert bot.inbox.facts[-1].get("waiting_for_keys") == 0


# ── verification ──
async def test_only_people_who_may_talk_to_the_bot_can_verify_it(make_bot, nia, make_peer):
    """A request of somebody allowed is answered; the same request of a stranger is not."""
    bot = make_bot(allow_from=[nia.user_id])
    stranger = make_peer()
    answers = {}
    async with bot.up():
        [device] = nia.devices_of(bot.user_id)
        for one in (stranger, nia):
            request = {
                "from_device": one.machine.device_id,
                "methods": ["m.sas.v1"],
                "timestamp": 0,
                "transaction_id": "t1",
            }
            one.to_device("m.key.verification.request", bot.user_id, device.device_id, request)
        with anyio.fail_after(60):
            while not (answers := to_device_of(nia)):
                await anyio.sleep(0.1)
        unanswered = to_device_of(stranger)

    assert [event["type"] for event in answers] == ["m.key.verification.ready"]
    assert unanswered == []


def to_device_of(peer):
    return peer.peer.call("GET", "/sync?timeout=0").get("to_device", {}).get("events", [])
