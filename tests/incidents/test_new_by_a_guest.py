"""
A guest wrote ``!new`` in a group, and everybody's conversation was set aside. And a stranger, who had seen the id of a
room key in the owner's encrypted message, told the bot that the key was withheld: the bot said so in the owner's name.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_core.messages import Audience
from channels.matrix.crypto.undecryptable import UndecryptableEvents
from tests.doubles.homeserver import text
from tests.doubles.loopback import LoopbackServer
from tests.integration.command_world import ANN, BOB, CID, Mind, settled, talking
from tests.integration.matrix_bot import Bot
from tests.integration.secret_talk import secret_peers, secret_room, seen
from tests.scripted_rooms import CAROL, MENTION, Desk
from tests.unit.channels.matrix.test_inbound import ALICE, ROOM, rooms_with


@pytest.fixture
def server():
    found = LoopbackServer()
    found.groups = {"room"}
    return found


async def said_in_room(server, person, words):
    before = len(server.seen("room"))
    server.say(person, words, conversation="room")
    return (await server.answers(before + 1, conversation="room"))[-1].text


# ── !new ──
@pytest.mark.parametrize(("person", "begins"), [(BOB, False), (ANN, True)])
async def test_a_guest_does_not_set_aside_what_others_have_said(tmp_path, server, person, begins):
    """Cid has spoken in the room, and asks again after Bob's `!new`; the owner's `!new` begins a new conversation."""
    mind = Mind()
    async with talking(tmp_path, mind, server=server):
        await said_in_room(server, CID, "my word is xylophone")
        told = await said_in_room(server, person, "!new")
        await said_in_room(server, CID, "what was it?")

    assert ("A new conversation starts here" in told) is begins
    assert ("Only my owner or a moderator" in told) is not begins
    assert ("xylophone" in mind.shown[-1]) is not begins


async def test_a_guest_begins_anew_where_nobody_else_has_spoken(tmp_path, server):
    """As long as it is only theirs; what waits of somebody else counts as well."""
    mind = Mind()
    async with talking(tmp_path, mind, server=server) as one:
        await said_in_room(server, BOB, "my word is xylophone")
        first = await said_in_room(server, BOB, "!new")
        server.say(CID, "slow question", conversation="room")
        await mind.thinking.wait()
        second = await said_in_room(server, BOB, "!new")
        mind.gate.set()
        await settled(one, settled=4)

    assert "A new conversation starts here" in first
    assert "Only my owner or a moderator" in second
    assert "xylophone" not in mind.shown[-1]


async def test_a_summary_may_hold_the_words_of_others(tmp_path, server):
    """Of a conversation that was consolidated nobody can tell whose it is: it stays."""
    async with talking(tmp_path, Mind(), server=server) as one:
        await said_in_room(server, BOB, "hello")
        session = (await one.built.store.inbox.rows())[0].message.session
        await one.built.memory.save_session_summary(str(session), "- somebody likes blue")
        told = await said_in_room(server, BOB, "!new")

    assert "Only my owner or a moderator" in told


async def test_a_moderator_begins_anew(tmp_path, server):
    """The channel says who moderates the room."""
    mind = Mind()
    async with talking(tmp_path, mind, server=server) as one:
        await said_in_room(server, CID, "my word is xylophone")
        row = (await one.built.store.inbox.rows())[0].message
        sender = row.sender.model_copy(update={"address": BOB})
        context = replace(row.context, moderator=True)
        await one.hand_over(
            row.model_copy(update={"native_id": "m", "sender": sender, "text": "!new", "context": context})
        )
        told = (await server.answers(2, conversation="room"))[-1].text

    assert "A new conversation starts here" in told


@pytest.mark.parametrize(
    ("levels", "moderates"),
    [
        ({"users": {CAROL: 50}}, True),
        ({"users": {CAROL: 49}}, False),
        ({"users": {CAROL: 50}, "redact": 75}, False),
        ({"users_default": 0, "redact": 0}, False),
        ({}, False),
    ],
)
async def test_who_moderates_a_room_is_told_by_its_power_levels(levels, moderates):
    """Whoever may take back what others say; a room that lets everybody do so has no moderators by that."""
    registry = rooms_with(ALICE, CAROL)
    registry.get(ROOM).state({"type": "m.room.power_levels", "state_key": "", "content": levels})
    found = await Desk(registry).read(text("$1", "!new", CAROL, **MENTION))

    assert found.context.moderator is moderates
    assert found.audience is Audience.GROUP


# ── what waits for others ──
async def test_status_counts_only_what_is_one_s_own(tmp_path, server):
    """Bob hears nothing of Cid's waiting question."""
    mind = Mind()
    async with talking(tmp_path, mind, server=server) as one:
        server.say(CID, "slow question", conversation="room")
        await mind.thinking.wait()
        server.say(CID, "another", conversation="room")
        told = await said_in_room(server, BOB, "!status")
        mind.gate.set()
        await settled(one, settled=3)

    assert "nothing else waits here" in told


# ── withheld keys ──
@pytest.mark.parametrize(("by", "believed"), [("@nia:hs.test", True), ("@mallory:hs.test", False)])
def test_only_the_sender_of_a_message_says_that_its_key_is_withheld(by, believed):
    """What somebody else says of the same room key changes nothing."""
    waiting = UndecryptableEvents()
    waiting.add(ROOM, "$1", "session", sender="@nia:hs.test", now=0.0)
    content = {"session_id": "session", "code": "m.blacklisted", "room_id": ROOM}
    waiting.withheld({"type": "m.room_key.withheld", "sender": by, "content": content})

    assert [(room, "blocked" in said) for room, said, _ in waiting.due_notices(0.0)] == (
        [(ROOM, True)] if believed else []
    )


@pytest.mark.integration
async def test_a_notice_says_only_what_the_sender_s_client_has_said(synapse, fresh_credentials, tmp_path):
    """Mallory, who may talk to the bot, says that Nia has blocked it; the notice says that the key has not come."""
    bot = Bot(fresh_credentials("bot"), synapse.url, tmp_path / "bot", allow_from=["@*:hs.test"])
    with secret_peers(synapse, fresh_credentials, tmp_path) as make:
        nia, mallory = make(), make()
        async with bot.up():
            room = await secret_room(nia, bot)
            [device] = mallory.devices_of(bot.user_id)
            nia.send(room, "psst", to=bot.user_id, give_key=False)
            content = {
                "algorithm": "m.megolm.v1.aes-sha2",
                "room_id": room,
                "session_id": nia.machine._olm.outbound_group_sessions[room].id,
                "code": "m.blacklisted",
            }
            mallory.to_device("m.room_key.withheld", device.user_id, device.device_id, content)
            [(_, notice)] = await seen(nia, room, 1)

    assert "has not arrived" in notice["body"]
    assert "blocked" not in notice["body"]
