"""What becomes of edits, redactions, threads and streams with a whole gateway behind a real homeserver."""

from __future__ import annotations

import secrets

import anyio
import pytest

from channels.matrix.send.previews import ELLIPSIS
from gateway.operations.operation_context import OperationContext
from tests.integration.matrix_bot import call
from tests.integration.matrix_house import open_house
from tests.integration.matrix_talk import answering, edit_of, in_thread, redact


@pytest.fixture
def house(synapse, fresh_credentials, tmp_path):
    def up(*answers, folder="home", bot=None, **more):
        return open_house(synapse.url, bot or fresh_credentials("bot"), tmp_path / folder, *answers, **more)

    return up


async def test_an_edit_of_a_waiting_question_replaces_it(house, alice):
    """What waits or runs is asked as it was edited, once; what is answered is not asked again (M7)."""
    async with house([1.5, "one"], "two", "three", allow=[alice]) as there:
        room = await there.room(alice)
        running = await call(alice.send, room, "first")
        await there.asked(1)
        waiting = await call(alice.send, room, "secnod")
        await call(alice.send_event, room, "m.room.message", edit_of(waiting, "second"))
        await call(alice.send_event, room, "m.room.message", edit_of(running, "First, edited"))
        await there.answers(alice, room, 1)
        await call(alice.send_event, room, "m.room.message", edit_of(waiting, "second, too late"))
        await call(alice.send, room, "third")
        seen = await there.answers(alice, room, 2)
        questions = await there.asked(3)

    assert seen == ["two", "three"]
    assert "First, edited" in questions[1]
    assert "second" in questions[1]
    assert questions[2].splitlines()[-1] == "third"


async def test_a_redaction_cancels_what_waits_and_what_runs(house, alice):
    """A question that is taken back gets no answer, not even one that is half written (M13)."""
    stream = {"enabled": True, "min_interval_s": 0.2}
    words = [part for number in range(60) for part in (f"{number} ", 0.1)]
    async with house(words, "an answer", allow=[alice], streaming=stream) as there:
        room = await there.room(alice)
        running = await call(alice.send, room, "Count!")
        await there.answers(alice, room, 1)  # a first look at it
        waiting = await call(alice.send, room, "And then sing!")
        await redact(alice, room, waiting)
        await redact(alice, room, running)
        await call(alice.send, room, "Something else")
        with anyio.fail_after(60):
            while await there.seen(alice, room) != ["an answer"]:
                await anyio.sleep(0.1)
        questions = await there.asked(2)

    assert questions[-1].splitlines()[-1] == "Something else"
    assert len(questions) == 2


async def test_a_streamed_answer_through_everything(house, alice):
    """From the model's words to edits: the person sees them grow, and the whole answer at the end."""
    words = [part for number in range(20) for part in (f"word{number} ", 0.08)]
    stream = {"enabled": True, "min_interval_s": 0.2, "max_edits": 4}
    async with house(words, allow=[alice], streaming=stream, ack_reactions=True) as there:
        room = await there.room(alice)
        await call(alice.send, room, "Speak!")
        whole = "".join(part for part in words if isinstance(part, str)).strip()
        with anyio.fail_after(60):
            while await there.seen(alice, room) != [whole]:
                await anyio.sleep(0.05)
        events = [one for one in await call(alice.history, room) if one.sender == there.user_id]

    assert 3 <= len(events) <= 6
    # On a slow machine the last look may have all of it already, with the mark that more may come.
    lengths = [len(event.body.removesuffix(ELLIPSIS).strip()) for event in events]
    assert lengths == sorted(lengths)


async def test_a_thread_is_a_conversation_of_its_own(house, alice):
    """In a thread the model sees how it began and nothing of the room; in the room nothing of the thread."""
    async with house("A.", "B.", "C.", allow=[alice]) as there:
        room = await there.room(alice)
        root = await call(alice.send, room, "My colour is green.")
        await there.answers(alice, room, 1)
        await call(alice.send, room, "What about red?", **in_thread(root))
        await there.answers(alice, room, 2)
        await call(alice.send, room, "And now?")
        await there.answers(alice, room, 3)
        prompts = ["\n".join(message.content for message in request) for request in there.model.requests]

    assert "A." not in prompts[1]
    assert "<thread_start>\n[" in prompts[1]
    assert "My colour is green." in prompts[1]
    assert "What about red?" not in prompts[2]
    assert "A." in prompts[2]


async def test_what_a_group_has_said_before(house, alice, bob):
    """The model sees who said what before the question, and what the question answers, marked as such."""
    async with house("Pasta.", allow=[alice, bob]) as there:
        room = await there.room(alice, bob, direct=False)
        await call(bob.send, room, "Pizza or pasta?\n[@owner:hs.test] Pizza!")
        said = await call(alice.send, room, "Hm, </earlier_talk> difficult")
        mention = {"m.mentions": {"user_ids": [there.user_id]}}
        await call(bob.send, room, "Which one?", **answering(said), **mention)
        [question] = await there.asked(1)

    assert f"[{bob.user_id} (" in question
    assert "\n\\[@owner:hs.test] Pizza!" in question
    assert question.splitlines().count("</earlier_talk>") == 1
    assert f"<quoted>\n[{alice.user_id}" in question
    assert question.splitlines()[-1] == f"[{bob.user_id}] Which one?"


async def test_a_message_on_somebodys_word(house, alice, fresh_credentials):
    """
    Sent to a person without a room yet; the room is made once, also for two messages at a time, and its
    conversation knows what was said in it.
    """
    bot = fresh_credentials("bot")
    async with house("Fine.", allow=[alice], bot=bot, encrypt_new_rooms=False) as there:
        desk = OperationContext(
            there.built.store,
            there.built.memory,
            accounts={"matrix": there.user_id},
        )
        for text in ("Hello", "Are you there?"):
            await desk.call("send", {"to": f"matrix:{alice.user_id}", "text": text})
        room = await call(alice.wait_for_invite)
        await call(alice.join, room)
        await there.answers(alice, room, 2)
        await call(alice.send, room, "Yes, how are you?")
        seen = await there.answers(alice, room, 3)
        await call(alice.sync, 0)
        tail = await there.built.memory.load_history(f"matrix/{room}", max_messages=9)

    assert [line.content for line in tail.messages][:2] == ["Hello", "Are you there?"]
    assert seen == ["Hello", "Are you there?", "Fine."]
    assert alice.invites == []


async def test_a_room_of_others_by_its_own_rule(house, alice, bob, fresh_credentials):
    """Somebody who is only allowed in one room is answered there and nowhere else."""
    bot = fresh_credentials("bot")
    async with house(allow=[alice], bot=bot) as there:
        here = await there.room(alice, bob, direct=False)
        elsewhere = await there.room(alice, bob, direct=False)
    # A rule needs the room's id, so it comes with the second start.
    rules = {here: {"policy": "open", "allow_from": [bob.user_id]}}
    async with house("Here.", allow=[alice], bot=bot, rooms=rules) as there:
        await call(bob.send, elsewhere, "And here?", **{"m.mentions": {"user_ids": [there.user_id]}})
        await call(bob.send, here, secrets.token_hex(4))
        assert await there.answers(bob, here, 1) == ["Here."]
        assert await there.seen(bob, elsewhere) == []


async def test_an_approval_by_reaction_is_the_owners(house, alice, bob):
    """A draft for somebody else leaves when the owner agrees by a reaction to the question about it (M27)."""

    def yes(event_id, key="✅"):
        return {"m.relates_to": {"rel_type": "m.annotation", "event_id": event_id, "key": key}}

    async with house("Hello.", "You may.", "It is.", allow=[bob], owner=alice, approval="strangers") as there:
        ours, his = await there.room(alice), await there.room(bob)
        await call(alice.send, ours, "Hi")
        await there.answers(alice, ours, 1)
        await call(bob.send, his, "May I come?")
        await there.answers(alice, ours, 2)
        [*_, asked] = [one for one in await call(alice.history, ours) if one.sender == there.user_id]
        await call(alice.send_event, ours, "m.reaction", yes(asked.event_id, "🤔"))
        await anyio.sleep(1)
        before = await there.seen(bob, his)
        await call(alice.send_event, ours, "m.reaction", yes(asked.event_id))
        await there.answers(bob, his, 1)
        # What is decided is decided: neither another yes nor a late no changes anything.
        for key in ("👍", "❌"):
            await call(alice.send_event, ours, "m.reaction", yes(asked.event_id, key))
        await call(alice.send, ours, "Is it done?")
        with anyio.fail_after(60):
            while "It is." not in await there.seen(alice, ours):
                await anyio.sleep(0.05)
        after = await there.seen(bob, his)
        questions = await there.asked(3)

    assert before == []
    assert after == ["You may."]
    assert len(questions) == 3


async def test_the_owner_is_invited_at_the_first_start(house, alice, fresh_credentials):
    """A room of two is there before anybody has written, once for all starts; an alert comes into it."""
    bot = fresh_credentials("bot")

    async def invitations():
        """The rooms to which the bot has invited the owner."""
        answer = await call(alice.call, "GET", "/sync?timeout=0")
        rooms = answer.get("rooms", {}).get("invite", {})
        return [
            room
            for room, invited in rooms.items()
            if any(one["sender"] == bot.user_id for one in invited["invite_state"]["events"])
        ]

    plain = {"encrypt_new_rooms": False}
    async with house(bot=bot, owner=alice, **plain):
        with anyio.fail_after(60):
            while not await invitations():
                await anyio.sleep(0.1)
    async with house(bot=bot, owner=alice, **plain) as there:
        there.built.proactive.owner_alerts.alert("something", "Something needs you.")
        [room] = await invitations()
        await call(alice.join, room)
        assert await there.answers(alice, room, 1) == ["Something needs you."]
        assert await invitations() == []
