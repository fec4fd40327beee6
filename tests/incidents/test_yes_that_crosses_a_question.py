"""
The owner was asked something in a chat and wrote "yes". A moment before, a question arrived there to which a guest had
led: the yes counted for that, and what the guest wanted was done.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.doubles.loopback import LoopbackServer
from tests.integration.test_answers_in_words import Machine, reply, said
from tests.integration.test_tool_approval import ANN, BOB, answers, asking, question


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
        told = await said(one, f"dm-{ANN}", f"`{name}`" if counts else "I cannot tell which")
        assert name in told
        if not counts:
            assert tool.written == []
            await one.hand_over(reply(notice, "yes", ANN))
        await answers(one, f"dm-{BOB}", 1)
    assert tool.written == ["it"]
