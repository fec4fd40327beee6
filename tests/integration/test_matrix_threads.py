"""Threads on a real homeserver: answered where they are, conversations of their own by setting."""

from __future__ import annotations

import pytest

from agent_core.messages import SessionKey
from tests.integration.matrix_bot import call, joined_room
from tests.integration.matrix_talk import asked, group, in_thread, lines, mentioning


@pytest.mark.parametrize("mode", ["off", "follow", "always"])
async def test_threads_by_setting(make_bot, alice, bob, mode):
    """A thread is answered where it is; whether it is a conversation of its own is a setting (M6)."""
    bot = make_bot(allow_from=[alice.user_id, bob.user_id], threads=mode)
    async with bot.up() as channel:
        room = await group(alice, bob, bot)
        top = await asked(bot, alice, room, "A question", **mentioning(bot))
        root = await call(bob.send, room, "Lunch at noon?")
        inside = await asked(bot, alice, room, "Is it open?", **in_thread(root), **mentioning(bot))
        answers = {}
        for question in (top, inside):
            answer = bot.message(room, "Yes.", session=question.session, context=question.context)
            event_id = (await channel.deliver(answer, uncertain=bot.mark)).provider_id
            seen = await call(alice.wait_for_message, lambda one, wanted=event_id: one.event_id == wanted)
            answers[question.native_id] = seen.content["m.relates_to"]
        private = await joined_room(alice, bot)
        direct = await asked(bot, alice, private, "Between us")
        direct_root = await asked(bot, alice, private, "More", **in_thread(direct.native_id))

    shared = SessionKey("matrix", room, "shared")
    in_top = {"rel_type": "m.thread", "event_id": top.native_id, "is_falling_back": True}
    assert top.session == (
        shared if mode != "always" else SessionKey("matrix", room, f"shared{top.native_id}")
    )
    assert answers[top.native_id] == (in_top if mode == "always" else {}) | {
        "m.in_reply_to": {"event_id": top.native_id}
    }
    assert inside.session == (shared if mode == "off" else SessionKey("matrix", room, f"shared{root}"))
    assert answers[inside.native_id]["rel_type"] == "m.thread"
    assert answers[inside.native_id]["event_id"] == root
    assert ("thread", bob.user_id, "Lunch at noon?") in lines(inside)
    assert direct.session == SessionKey("matrix", private)
    assert direct_root.session == SessionKey("matrix", private, None if mode == "off" else direct.native_id)


async def test_a_thread_of_the_bot_needs_no_mention(make_bot, alice, bob):
    """With ``always`` what is said in a thread that the bot has answered in is meant for it; elsewhere not."""
    bot = make_bot(allow_from=[alice.user_id, bob.user_id], threads="always")
    async with bot.up() as channel:
        room = await group(alice, bob, bot)
        top = await asked(bot, alice, room, "A question", **mentioning(bot))
        before = await asked(bot, alice, room, "Hm", **in_thread(top.native_id))
        answer = bot.message(room, "An answer.", session=top.session, context=top.context)
        await channel.deliver(answer, uncertain=bot.mark)
        after = await asked(bot, alice, room, "And then?", **in_thread(top.native_id))
        other = await asked(bot, alice, room, "Something else")

    assert (top.addressed, before.addressed, after.addressed, other.addressed) == (True, False, True, False)
    assert after.session == top.session
