"""Commands and reactions on a real homeserver: beside a turn that runs, and for a turn that waits for a yes."""

from __future__ import annotations

import re

import anyio
import pytest

from tests.doubles.agent import ModelScript, StreamingModel
from tests.doubles.agent import call as use
from tests.integration.matrix_bot import call
from tests.integration.matrix_house import open_house
from tests.integration.test_tool_approval import Guarded


class SlowModel(StreamingModel):
    """Thinks until ``gate`` is opened if the question says "slow"; answers in order with what it was given."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.gate = anyio.Event()

    async def answer(self, messages, tools):
        self.requests.append(list(messages))
        text = self.answers.pop(0)
        if "slow" in messages[-1].content:
            await self.gate.wait()
        yield text


@pytest.fixture
def house(synapse, fresh_credentials, tmp_path):
    def up(model, **more):
        return open_house(synapse.url, fresh_credentials("bot"), tmp_path / "home", model=model, **more)

    return up


def reaction(event_id, key):
    return {"m.relates_to": {"rel_type": "m.annotation", "event_id": event_id, "key": key}}


async def test_commands_are_answered_while_a_turn_runs(house, alice):
    """`!status`, `!help` and `!approve` while the model thinks: answered before it; `!stop` ends the turn."""
    model = SlowModel("First.", "Second.")
    async with house(model, owner=alice) as there:
        room = await there.room(alice)
        await call(alice.send, room, "slow one")
        await there.asked(1)
        told = []
        for number, command in enumerate(("!status", "!help", "!approve"), start=1):
            await call(alice.send, room, command)
            told = await there.answers(alice, room, number)
        model.gate.set()
        told = await there.answers(alice, room, 4)
        model.gate = anyio.Event()
        await call(alice.send, room, "slow two")
        await there.asked(2)
        await call(alice.send, room, "!stop")
        after = await there.answers(alice, room, 5)

    assert [text.split()[0] for text in told] == ["I", "These", "Nothing", "First."]
    assert after[4].startswith("Stopped: I do not answer 1 message")


async def test_reactions_decide_while_a_turn_runs(house, alice, bob):
    """The owner's yes and no to drafts count at once, though a turn runs in the room where they are given."""
    model = SlowModel("Hello.", "You may.", "Slowly.", "You may not.")
    async with house(model, allow=[bob], owner=alice, approval="strangers") as there:
        ours, his = await there.room(alice), await there.room(bob)
        await call(alice.send, ours, "Hi")
        await there.answers(alice, ours, 1)
        await call(bob.send, his, "May I come?")
        await there.answers(alice, ours, 2)
        await call(alice.send, ours, "slow one")
        await there.asked(3)
        await call(bob.send, his, "And my dog?")
        await there.answers(alice, ours, 3)
        questions = [one for one in await call(alice.history, ours) if one.sender == there.user_id][-2:]
        await call(alice.send_event, ours, "m.reaction", reaction(questions[1].event_id, "👎"))
        await there.answers(alice, ours, 4)
        await call(alice.send_event, ours, "m.reaction", reaction(questions[0].event_id, "👍"))
        seen_by_bob = await there.answers(bob, his, 1)
        told = await there.answers(alice, ours, 5)
        assert "Slowly." not in told  # the turn runs still
        model.gate.set()
        told = await there.answers(alice, ours, 6)

    assert seen_by_bob == ["You may."]
    assert told[5] == "Slowly."
    assert "is rejected" in told[3]
    assert "is approved" in told[4]


async def of_the_bot(there, peer, room):
    """The newest event of the bot."""
    return [one for one in await call(peer.history, room) if one.sender == there.user_id][-1]


async def test_a_tool_waits_for_the_reaction_of_who_asked(house, alice, bob):
    """M27: the question is a notice in the room; only the first reaction of who asked counts, not others'."""
    tool = Guarded()
    model = ModelScript(use("write_down", what="one"), "First.")
    async with house(model, allow=[alice, bob], tools=[tool]) as there:
        room = await there.room(alice, bob, direct=False)
        mention = {"m.mentions": {"user_ids": [there.user_id]}}
        await call(alice.send, room, "write one", **mention)
        await there.answers(alice, room, 1)
        notice = await of_the_bot(there, alice, room)
        (name,) = re.findall(r"!approve (a[0-9a-f]{6})", notice.content["body"])
        await call(bob.send_event, room, "m.reaction", reaction(notice.event_id, "✅"))
        await call(bob.send, room, f"!approve {name}", **mention)
        seen = await there.answers(alice, room, 2)
        before = list(tool.written)
        approved = f"`{name}` is approved: I use `write_down`."
        for key in ("✅", "❌"):
            await call(alice.send_event, room, "m.reaction", reaction(notice.event_id, key))
        with anyio.fail_after(60):
            while not {"First.", approved} <= set(seen := await there.seen(alice, room)):
                await anyio.sleep(0.05)

    assert notice.content["msgtype"] == "m.text"
    assert "what: one" in notice.content["body"]
    assert seen[1].startswith("Nothing waits for you")
    assert before == []
    # Told of a decision is what was decided first, to the second reaction as well if the tool has not begun.
    assert set(seen[2:]) == {"First.", approved}
    assert tool.written == ["one"]


async def test_a_reaction_that_comes_too_late_does_nothing(house, alice):
    """M27: after the time is over the person is told, the turn goes on, and a late yes hears that it was late."""
    tool = Guarded()
    model = ModelScript(use("write_down", what="two"), "Without.", "Later.")
    async with house(
        model, allow=[alice], tools=[tool], approvals={"approval_timeout_minutes": 0.02}
    ) as there:
        room = await there.room(alice)
        await call(alice.send, room, "write two")
        seen = await there.answers(alice, room, 3)
        notice = next(one for one in await call(alice.history, room) if one.sender == there.user_id)
        await call(alice.send_event, room, "m.reaction", reaction(notice.event_id, "✅"))
        await there.answers(alice, room, 4)
        await call(alice.send, room, "and now?")
        seen = await there.answers(alice, room, 5)

    assert "Nobody answered `" in seen[1]
    assert (seen[2], seen[4]) == ("Without.", "Later.")
    assert "waited too long" in seen[3]
    assert tool.written == []
