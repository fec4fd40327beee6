"""The Matrix channel against a real Synapse: nothing lost, nothing doubled, nothing said to the wrong people."""

from __future__ import annotations

import json
from urllib.parse import quote

import anyio
import pytest

from agent_core.messages import Audience, OutboundKind, SessionKey
from channels.base import DeliveryFailed
from tests.integration.matrix_bot import bodies, bot_joined, call, joined_room, wait_until
from tests.integration.proxy import Fault, FaultProxy

VERSIONS = ["11", "12"]


# ── the main job ──
@pytest.mark.smoke
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_question_arrives_and_the_answer_is_seen_once(make_bot, alice, version):
    """A direct message is accepted with its sender; the answer, delivered three times, is one event."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot, version=version)
        event_id = await call(alice.send, room, "What is a squid?")
        [question] = await bot.inbox.until_accepted(1)
        answer = bot.message(room, "A **mollusc**.", context=question.context)
        receipts = [await channel.deliver(answer, uncertain=bot.mark) for _ in range(3)]
        seen = await call(alice.wait_for_message, lambda event: event.sender == bot.user_id)

    assert question.native_id == event_id
    assert question.text == "What is a squid?"
    assert question.sender.address == alice.user_id
    assert question.sender.verified
    assert question.session == SessionKey("matrix", room)
    assert question.audience is Audience.DIRECT
    assert question.addressed
    assert len({receipt.provider_id for receipt in receipts}) == 1
    assert bot.marks == 3
    assert seen.event_id == receipts[0].provider_id
    assert seen.content["formatted_body"] == "<p>A <strong>mollusc</strong>.</p>"
    assert seen.content["m.mentions"] == {}
    assert await bodies(alice, room, bot.user_id) == ["A **mollusc**."]


async def test_another_id_is_another_event(make_bot, alice):
    """The check above counts events: two messages with the same text are two of them."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        for _ in range(2):
            await channel.deliver(bot.message(room, "same"), uncertain=bot.mark)

    assert await bodies(alice, room, bot.user_id) == ["same", "same"]


async def test_the_question_is_marked_read_and_typing_is_seen(make_bot, alice):
    """Typing appears at the person's client and goes away; the question is marked as read."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        event_id = await call(alice.send, room, "hello?")
        await bot.inbox.until_accepted(1)
        session = SessionKey("matrix", room)
        await channel.typing(session, on=True)
        await wait_until(alice, lambda: alice.typing.get(room) == [bot.user_id])
        await channel.typing(session, on=False)
        await wait_until(alice, lambda: alice.typing.get(room) == [])
        answer = await call(alice.call, "GET", "/sync?timeout=0")
        ephemeral = answer["rooms"]["join"][room]["ephemeral"]["events"]

    receipts = next(event["content"] for event in ephemeral if event["type"] == "m.receipt")
    assert bot.user_id in receipts[event_id]["m.read"]


# ── invitations ──
async def test_a_stranger_is_refused(make_bot, fresh_user):
    """An invitation by somebody who is not allowed is not accepted, and nothing is said."""
    bot = make_bot(allow_from=[])
    stranger = await call(fresh_user, "stranger")
    async with bot.up():
        room = await call(stranger.create_room, [bot.user_id], is_direct=True)
        await bot.inbox.until(lambda inbox: len(json.loads(inbox.positions.get("invites", "[]"))) == 1)
        state = f"/rooms/{quote(room)}/state/m.room.member/{quote(bot.user_id)}"
        assert (await call(stranger.call, "GET", state))["membership"] == "invite"

    assert await call(stranger.members, room) == {stranger.user_id}
    assert bot.inbox.texts == ["(invites me into a room)"], "it waits for the owner's word"


async def test_an_open_invitation_is_retried_after_a_restart(make_bot, alice, synapse):
    """A join that did not work is kept and tried again, although the server does not repeat the invitation."""
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        rule = proxy.add(r"/join$", Fault.STATUS)
        async with bot.up():
            room = await call(alice.create_room, [bot.user_id], is_direct=True)
            with anyio.fail_after(60):
                while not rule.applied:
                    await anyio.sleep(0.05)
        assert [invite["room_id"] for invite in json.loads(bot.inbox.positions["invites"])] == [room]
        proxy.clear()
        async with bot.up():
            await call(bot_joined, alice, room, bot.user_id)
            await call(alice.send, room, "finally")
            [message] = await bot.inbox.until_accepted(1)

    assert message.audience is Audience.DIRECT


# ── who reads along ──
async def test_a_room_of_two_is_not_a_direct_conversation_by_itself(make_bot, alice):
    """
    Two rooms with the same two people: only the one that was made as direct is so, also after a restart. The bot is
    meant in both, but whose memory is used goes by the audience.
    """
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        direct = await joined_room(alice, bot, direct=True)
        plain = await joined_room(alice, bot, direct=False)
    await call(alice.send, direct, "in the direct one")
    await call(alice.send, plain, "in the other")
    async with bot.up():
        await bot.inbox.until_accepted(2)
    found = {message.session.conversation: message for message in bot.inbox.accepted}

    assert (found[direct].audience, found[direct].addressed) == (Audience.DIRECT, True)
    assert (found[plain].audience, found[plain].addressed) == (Audience.GROUP, True)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_third_person_makes_it_a_group(make_bot, alice, fresh_user, version):
    """As soon as somebody else is invited, before they join, the conversation counts as a group."""
    bot = make_bot(allow_from=[alice.user_id])
    carol = await call(fresh_user, "carol")
    async with bot.up():
        room = await joined_room(alice, bot, version=version)
        await call(alice.send, room, "alone")
        await bot.inbox.until_accepted(1)
        await call(alice.invite, room, carol.user_id)
        await call(alice.send, room, "not alone")
        await bot.inbox.until_accepted(2)

    assert [message.audience for message in bot.inbox.accepted] == [Audience.DIRECT, Audience.GROUP]


async def test_in_a_group_mentions_count(make_bot, alice, fresh_user):
    """Talk among others is kept as not addressed; mentions in each form and replies to the bot are addressed."""
    bot = make_bot(allow_from=[alice.user_id])
    carol = await call(fresh_user, "carol")
    async with bot.up() as channel:
        room = await joined_room(alice, bot, direct=False)
        await call(alice.invite, room, carol.user_id)
        await call(carol.join, room)
        mine = await channel.deliver(bot.message(room, "hi all"), uncertain=bot.mark)
        bot.inbox.delivered[mine.provider_id] = "outbox-1"
        pill = f'<a href="https://matrix.to/#/{bot.user_id}">Bot</a>: hey'
        sent = [
            ({}, "what do you think, carol?", False),
            ({"m.mentions": {"user_ids": [bot.user_id]}}, "what do you think?", True),
            ({"format": "org.matrix.custom.html", "formatted_body": pill}, "Bot: hey", True),
            ({}, f"{bot.user_id[1:].partition(':')[0]}, your turn", True),
            ({"m.mentions": {"room": True}}, "@room everybody", False),
            ({"m.relates_to": {"m.in_reply_to": {"event_id": mine.provider_id}}}, "why?", True),
        ]
        for content, text, _ in sent:
            await call(alice.send, room, text, **content)
        await bot.inbox.until_accepted(len(sent))

    assert [message.addressed for message in bot.inbox.accepted] == [expected for *_, expected in sent]


async def test_edits_notices_and_odd_events_are_no_questions(make_bot, alice):
    """Edits, notices and malformed contents are skipped; the next message still arrives."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        event_id = await call(alice.send, room, "first")
        edit = {"m.relates_to": {"rel_type": "m.replace", "event_id": event_id}}
        await call(
            alice.send,
            room,
            "* changed",
            **edit,
            **{"m.new_content": {"msgtype": "m.text", "body": "changed"}},
        )
        await call(alice.send, room, "I am a robot", msgtype="m.notice")
        await call(alice.send, room, "", format=[1], formatted_body={})
        await call(alice.send, room, " ", msgtype="org.example.odd", **{"m.relates_to": ["x"]})
        await call(alice.send, room, "odd relations", **{"m.relates_to": {"rel_type": 5, "m.in_reply_to": 7}})
        await call(alice.send_event, room, "org.example.odd", {"body": {"m.relates_to": None}})
        state = f"/rooms/{quote(room)}/state"
        await call(alice.call, "PUT", f"{state}/org.example.odd", {"topic": {"not": ["a", "text"]}})
        await channel.deliver(bot.message(room, "my own words"), uncertain=bot.mark)
        await call(alice.send, room, "last")
        await bot.inbox.until_accepted(4)

    # What cannot be read is said to be so, to whoever is alone with the bot.
    assert bot.inbox.texts == ["first", "[a message of this kind]", "odd relations", "last"]


async def test_nothing_is_said_into_an_encrypted_room(make_bot, alice):
    """Without encryption nothing goes into an encrypted room, whether the channel knows of it or must ask."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up(encryption=False) as channel:
        room = await joined_room(alice, bot)
        state = f"/rooms/{quote(room)}/state/m.room.encryption"
        await call(alice.call, "PUT", state, {"algorithm": "m.megolm.v1.aes-sha2"})
        await call(
            alice.send_event,
            room,
            "m.room.encrypted",
            {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x"},
        )
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("encrypted_messages_unread") == 1)
        with pytest.raises(DeliveryFailed, match="encrypted"):
            await channel.deliver(bot.message(room, "secret"), uncertain=bot.mark)
        await channel.test_run.cancel()
        channel._sending._rooms.forget()
        with pytest.raises(DeliveryFailed, match="encrypted"):
            await channel.deliver(bot.message(room, "secret"), uncertain=bot.mark)

    assert bot.marks == 0
    assert bot.inbox.facts[-1]["encrypted_rooms"] == 1
    assert await bodies(alice, room, bot.user_id) == []
    assert bot.inbox.accepted == []


async def test_an_apology_and_a_notice_look_different(make_bot, alice):
    """Notices are m.notice, so that no other robot answers them; answers are m.text and point back in groups."""
    bot = make_bot(allow_from=[alice.user_id], group_policy="open")
    async with bot.up() as channel:
        room = await joined_room(alice, bot, direct=False)
        event_id = await call(alice.send, room, "hello")
        [question] = await bot.inbox.until_accepted(1)
        context = question.context
        for kind in (OutboundKind.NOTICE, OutboundKind.REPLY):
            await channel.deliver(
                bot.message(room, kind.value, kind=kind, context=context), uncertain=bot.mark
            )
        notice, reply = [e for e in await call(alice.history, room) if e.sender == bot.user_id]

    assert notice.content["msgtype"] == "m.notice"
    assert reply.content["msgtype"] == "m.text"
    assert reply.content["m.relates_to"] == {"m.in_reply_to": {"event_id": event_id}}
    assert reply.content["m.mentions"] == {"user_ids": [alice.user_id]}
