"""Questions of tools to the person of a turn, in virtual time."""

from __future__ import annotations

import anyio
import pytest

from agent_core.tools.forms import Form
from agent_core.tools.person_port import MAX_WAIT_S, FormReply, asker, limit_time, person_of_turn

pytestmark = pytest.mark.virtual_time


class Nobody:
    """Answers nothing, or after some time."""

    def __init__(self, after_s=float("inf")):
        self.after_s = after_s
        self.asked = []

    async def fill_in(self, form, *, seconds):
        self.asked.append(seconds)
        await anyio.sleep(min(seconds, self.after_s))
        return FormReply("accept" if seconds > self.after_s else "cancel")


async def call(times=3, seconds=5):
    """A call that asks; what became of its last question, and whether its own limit has ended it."""
    reply = None
    with limit_time(seconds) as limit:
        one = asker()
        for _ in range(times):
            reply = await one.ask(Form("far", "Which one?"))
    return reply, limit.cancelled_caught


async def test_the_questions_of_a_turn_have_one_limit():
    """However many calls ask: the watch over the turns adds this time once."""
    person = Nobody()
    began = anyio.current_time()
    with person_of_turn(person):
        for _ in range(4):
            reply, ended = await call()
            assert (reply.action, ended) == ("cancel", False)
    assert anyio.current_time() - began == pytest.approx(MAX_WAIT_S)
    assert person.asked == pytest.approx([MAX_WAIT_S])
    with person_of_turn(person):  # and the next turn has its own
        await call()
    assert person.asked == pytest.approx([MAX_WAIT_S] * 2)


async def test_calls_that_ask_at_the_same_time_spend_it_once():
    """Each second counts once; whoever asks later has what is left."""
    person = Nobody(after_s=100)
    began = anyio.current_time()
    with person_of_turn(person):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, 1)
            tasks.start_soon(call, 1)
            await anyio.sleep(40)
            tasks.start_soon(call, 1)
        assert person.asked == pytest.approx([600, 600, 560])
        person.after_s = float("inf")
        await call()
    assert person.asked[3:] == pytest.approx([460])
    assert anyio.current_time() - began == pytest.approx(MAX_WAIT_S)


@pytest.mark.parametrize("first", [40, 60])
async def test_the_limit_of_a_turn_is_kept_when_two_of_its_calls_ask_at_the_same_time(first):
    """Its time stands still until both have their answers, and goes on after that."""
    began = anyio.current_time()

    async def ask(after_s, pause_s):
        await anyio.sleep(pause_s)
        with person_of_turn(Nobody(after_s)):
            await call(1)

    with limit_time(30) as turn:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, first, 0)
            tasks.start_soon(ask, 40, 10)
        await anyio.sleep(3600)
    assert turn.cancelled_caught
    assert anyio.current_time() - began == max(first, 10 + 40) + 30
