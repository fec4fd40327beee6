"""Edits, redactions, threads, replies and streams in encrypted rooms, as a person with Element sees them."""

from __future__ import annotations

import anyio

from agent_core.messages import OutboundKind, SessionKey
from channels.base import AckState
from tests.integration.matrix_talk import answer_to, answering, edit_of, in_thread, lines, stream
from tests.integration.test_matrix_element import (  # noqa: F401 - fixtures
    account,
    asked,
    is_good,
    person,
    secret_room,
)


async def said(uma, bot, room, content):
    """An event that becomes a message, as the channel hands it over."""
    content = {"msgtype": "m.text", "body": "", **content}
    event_id = await uma.do("event", room=room, type="m.room.message", content=content)
    await bot.inbox.until(lambda inbox: any(one.native_id == event_id for one in inbox.accepted))
    return next(one for one in bot.inbox.accepted if one.native_id == event_id)


async def test_what_a_person_does_in_an_encrypted_room(make_bot, person, account):  # noqa: F811
    """Edit, redaction, thread and reply are understood through the encryption, the bot's own words too."""
    bot = make_bot(allow_from=[account.user_id])
    async with bot.up() as channel, person(account) as uma:
        await uma.do("bootstrap", password=account.password)
        room = await secret_room(uma, bot)
        question = await asked(uma, bot, room, "What is a sqiud?")
        await uma.do(
            "event", room=room, type="m.room.message", content=edit_of(question.native_id, "A squid?")
        )
        await uma.do("redact", room=room, event=question.native_id)
        await bot.inbox.until(lambda inbox: len(inbox.amendments) >= 2)
        receipt = await channel.deliver(answer_to(bot, question, "A mollusc."), uncertain=bot.mark)
        reply = await said(uma, bot, room, {"body": "Which one?", **answering(receipt.provider_id)})
        inside = await said(uma, bot, room, {"body": "Go on.", **in_thread(reply.native_id)})
        answer = answer_to(bot, inside, "In the thread.")
        await channel.deliver(answer, uncertain=bot.mark)
        seen = await uma.answer("In the thread.")
    async with bot.up(), person(account) as uma:
        # Another device of hers, and a bot that has to fetch what is quoted.
        later = await said(uma, bot, room, {"body": "And this?", **answering(receipt.provider_id)})

    assert [(one.kind, one.native_id, one.text) for one in bot.inbox.amendments] == [
        ("replace", question.native_id, "A squid?"),
        ("withdraw", question.native_id, ""),
    ]
    assert lines(reply) == lines(later) == [("quoted", bot.user_id, "A mollusc.")]
    assert inside.session == SessionKey("matrix", room, reply.native_id)
    assert lines(inside) == [("thread", account.user_id, "Which one?")]
    assert is_good(seen)
    assert seen["content"]["m.relates_to"]["rel_type"] == "m.thread"


async def test_a_stream_in_an_encrypted_room(make_bot, person, account):  # noqa: F811
    """Each look at the unfinished answer is encrypted and without a shield, and the last one is all of it."""
    bot = make_bot(allow_from=[account.user_id], streaming={"enabled": True, "min_interval_s": 0.2})
    async with bot.up() as channel, person(account) as uma:
        await uma.do("bootstrap", password=account.password)
        room = await secret_room(uma, bot)
        question = await asked(uma, bot, room)
        text = await stream(channel, question, [f"**{number}**" for number in range(30)])
        receipt = await channel.deliver(answer_to(bot, question, text), uncertain=bot.mark)
        await channel.acknowledge(question.session, question.context, AckState.DONE)

        def is_final(event):
            return event["content"].get("m.new_content", {}).get("body") == text

        final = await uma.until(is_final)
        looks = [
            event
            for event in uma.seen
            if event["sender"] == bot.user_id and event["type"] == "m.room.message"
        ]

    assert len({event["id"] for event in looks}) >= 3
    assert all(is_good(event) for event in [*looks, final] if event["content"])
    assert final["content"]["m.relates_to"] == {"rel_type": "m.replace", "event_id": receipt.provider_id}
    assert "<strong>" in final["content"]["m.new_content"]["formatted_body"]


async def test_a_person_is_written_to_first(make_bot, person, account):  # noqa: F811
    """The bot begins the conversation: encrypted, direct, readable at once, and her answer is a direct one."""
    bot = make_bot(allow_from=[account.user_id])
    async with bot.up() as channel, person(account) as uma:
        await uma.do("bootstrap", password=account.password)
        place = SessionKey("matrix", account.user_id)
        hello = bot.message("-", "Good morning!", session=place, kind=OutboundKind.MESSAGE)
        await channel.deliver(hello, uncertain=bot.mark)
        room = (await channel.direct_session(account.user_id)).conversation
        await uma.do("join", room=room)
        seen = await uma.answer("Good morning!")
        with anyio.move_on_after(15):
            # Her client has never met the bot: it asks for its identity when the message is there.
            while not is_good(seen):
                await anyio.sleep(0.2)
                seen = await uma.do("look", room=room, event=seen["id"])
        answer = await asked(uma, bot, room, "Good morning to you.")

    assert is_good(seen)
    assert answer.session == SessionKey("matrix", room)
    assert answer.context.route["direct"]
