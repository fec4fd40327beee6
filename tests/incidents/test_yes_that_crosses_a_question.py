"""
The owner was asked something in a chat and wrote "yes". A moment before, a question arrived there to which a guest had
led: the yes counted for that, and what the guest wanted was done. In the same way a second yes to a question counted
for the next one of the same turn.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.doubles.agent import call
from tests.doubles.loopback import LoopbackServer
from tests.integration.test_answers_in_words import Machine, reply, said
from tests.integration.test_tool_approval import (
    ANN,
    BOB,
    Wishful,
    Writer,
    answers,
    asking,
    question,
    reaction,
)


@pytest.mark.parametrize(("after_s", "counts"), [(1, False), (4, False), (6, True)])
async def test_a_yes_that_may_have_crossed_a_guests_question_decides_nothing(tmp_path, after_s, counts):
    """It is said which questions wait, and how to answer them. Later, and in reply, a yes counts (the control)."""
    tool, ahead = Machine(), timedelta()
    server = LoopbackServer(now=lambda: datetime.now(UTC) + ahead)
    async with asking(tmp_path, tool, tools=(), server=server, minutes=60) as one:
        assert (await one.asked("shall I?", person=ANN)).text == "so: shall I?"
        server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{ANN}")
        ahead = timedelta(seconds=after_s)
        server.say(ANN, "yes")
        told = await said(one, f"dm-{ANN}", f"`{name}`" if counts else "Is that a yes or a no")
        assert name in told
        if not counts:
            assert tool.written == []
            await one.hand_over(reply(notice, "yes", ANN))
        await answers(one, f"dm-{BOB}", 1)
    assert tool.written == ["it"]


class Two(Wishful):
    """A model that wants to write down two things, one after the other."""

    async def answer(self, messages, tools):
        results = [message.content for message in messages if message.role == "tool"]
        if len(results) < 2:
            yield call("write_down", id=f"c{len(results)}", what=["one", "two"][len(results)])
        else:
            yield f"so: {'; '.join(results)}"


@pytest.mark.parametrize("first", ["yes", "a sign"])
@pytest.mark.parametrize(("after_s", "counts"), [(1, False), (6, True)])
async def test_a_second_yes_is_none_to_the_next_question_of_the_turn(tmp_path, first, after_s, counts):
    """
    Somebody says yes twice, or by a sign and a word, and in between the next question has come, which nobody has
    read. Later, and in reply, a yes counts (the control).
    """
    tool, ahead = Writer(), timedelta()
    server = LoopbackServer(now=lambda: datetime.now(UTC) + ahead)
    async with asking(tmp_path, tool, server=server, minutes=60, model=Two()) as one:
        server.say(BOB, "write")
        notice, _ = await question(one, f"dm-{BOB}")
        if first == "yes":
            server.say(BOB, "yes")
        else:
            await one.hand_over(reaction(notice, "✅", BOB))
        notice, name = await question(one, f"dm-{BOB}", 2)
        assert tool.written == ["one"]
        ahead = timedelta(seconds=after_s)
        server.say(BOB, "yes")
        told = await said(one, f"dm-{BOB}", f"`{name}` is" if counts else "Is that a yes or a no")
        assert name in told
        if not counts:
            assert tool.written == ["one"]
            await one.hand_over(reply(notice, "yes", BOB))
        await said(one, f"dm-{BOB}", "so: ")
    assert tool.written == ["one", "two"]
