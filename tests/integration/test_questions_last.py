"""A question outlives restarts, an update of the database and two days; so does the second one of the same turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_core.messages import OutboundKind
from tests.clock import ManualClock
from tests.doubles.agent import call
from tests.doubles.loopback import LoopbackServer
from tests.integration.test_tool_approval import BOB, Wishful, Writer, answers, asking, question, reaction

DAY_S = 86_400.0
THREE_DAYS = 3 * 24 * 60.0


class Several(Wishful):
    """A model that wants to write down four things, one after the other, and tells what became of all."""

    async def answer(self, messages, tools):
        self.calls += 1
        results = [message.content for message in messages if message.role == "tool"]
        if len(results) < 4:
            what = ("one", "two", "three", "four")[len(results)]
            yield call("write_down", id=f"c{len(results)}", what=what)
        else:
            yield f"so: {'; '.join(results)}"


@pytest.mark.parametrize("restarts", [True, False])
async def test_each_question_of_one_turn_is_asked_after_the_other(tmp_path: Path, restarts: bool) -> None:
    """Four calls of four answers: each has its question and its own answer, also over restarts."""
    tool, server, model = Writer(), LoopbackServer(), Several()
    server.say(BOB, "go")
    decided = {"one": "✅", "two": "❌", "three": "✅", "four": "✅"}
    names: list[str] = []
    one = asking(tmp_path, tool, server=server, model=model)
    world = await one.__aenter__()
    try:
        for number, (what, sign) in enumerate(decided.items(), 1):
            notice, name = await question(world, f"dm-{BOB}", number)
            assert f"\nwhat: {what}\n" in notice.text
            names.append(name)
            if restarts:
                await one.__aexit__(None, None, None)
                one = asking(tmp_path, tool, server=server, model=model)
                world = await one.__aenter__()
            answer = reaction(notice, sign, BOB)
            await world.hand_over(answer.model_copy(update={"native_id": f"$sign-{number}"}))
        found = await answers(world, f"dm-{BOB}", 5)
    finally:
        await one.__aexit__(None, None, None)
    told = next(text for text in found if text.startswith("so:"))
    assert told.count("wrote") == 3
    assert "so: wrote one; Error: The person was asked and said no" in told
    assert tool.written == ["one", "three", "four"]
    assert len(set(names)) == 4
    assert model.calls == 5


@pytest.mark.parametrize(("days", "written"), [(2, ["it"]), (4, [])])
async def test_it_outlives_two_days(tmp_path: Path, days: int, written: list[str]) -> None:
    """
    With three days to answer: after two the yes counts; after four, the control, it is too late, and the person was
    told so.
    """
    tool, server, clock = Writer(), LoopbackServer(), ManualClock()
    async with asking(tmp_path, tool, server=server, minutes=THREE_DAYS, clock=clock) as first:
        server.say(BOB, "write it")
        notice, name = await question(first, f"dm-{BOB}")
    for _ in range(days):  # each day it is started anew
        clock.advance(DAY_S)
        async with asking(tmp_path, tool, server=server, minutes=THREE_DAYS, clock=clock) as later:
            await later.asked("hello", person="@eve:hs.test")
    async with asking(tmp_path, tool, server=server, minutes=THREE_DAYS, clock=clock) as last:
        await last.hand_over(reaction(notice, "✅", BOB))
        found = await answers(last, f"dm-{BOB}", 2 if written else 1)
    notices = [m.text for m in server.seen(f"dm-{BOB}") if m.kind is OutboundKind.NOTICE]
    assert tool.written == written
    if written:
        assert "so: wrote it" in found
        assert len(notices) == 1
    else:
        assert notices[1] == f"Nobody answered `{name}` in time; I go on without `write_down`."
