"""`!stop` through the whole gateway: wherever the question is, it is answered or stopped, never both."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent_core.messages import Amendment
from gateway.store.states import InboxState
from tests.doubles.loopback import LoopbackServer
from tests.doubles.queue import wrapping
from tests.integration.command_world import (
    ANN,
    BOB,
    DM,
    Hanging,
    Held,
    Mind,
    asked,
    settled,
    talking,
    texts,
)


class TestStop:
    async def test_stop_during_the_model_call(self, tmp_path):
        """The call is cut off, what waits is not answered, `!stop` says how many, and the tokens count."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            one.server.say(ANN, "two")
            one.server.say(ANN, "three")
            stopped = await asked(one, "!stop")
            after = await asked(one, "four")
            await settled(one, settled=2, ignored=3)
            usage = await one.built.store.usage.rows()
        assert stopped.text == "Stopped: I do not answer 3 messages."
        assert after.text == "answer 2"
        assert mind.cut_off == 1
        assert sum(row.usage.calls for row in usage) == 2
        assert sum(row.usage.prompt_tokens for row in usage) > 100

    async def test_stop_without_anything(self, tmp_path):
        """`!stop` says so if there is nothing, also twice in a row."""
        async with talking(tmp_path, Mind()) as one:
            first = await asked(one, "!stop")
            second = await asked(one, "!stop please")
        assert first.text == second.text == "Nothing was waiting or in progress here."

    async def test_stop_twice(self, tmp_path):
        """Two stops at once: the first tells of the message, the second of nothing; one cut."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            one.server.say(ANN, "!stop")
            one.server.say(ANN, "!stop")
            with anyio.fail_after(60):
                while not texts(one):
                    await anyio.sleep(0.02)
            await settled(one)
        assert mind.cut_off == 1
        assert len(texts(one)) in (1, 2)
        assert not any("answer" in text for text in texts(one) if "I do not answer" not in text)

    async def test_stop_during_a_tool(self, tmp_path):
        """A tool that hangs is left; the call before it is counted."""
        mind, hanging = Mind(), Hanging()
        mind.tool = "hang"
        async with talking(tmp_path, mind, tools=[hanging]) as one:
            one.server.say(ANN, "use the tool")
            await hanging.started.wait()
            stopped = await asked(one, "!stop")
            usage = await one.built.store.usage.rows()
        assert stopped.text == "Stopped: I do not answer 1 message."
        assert hanging.left == 1
        assert [row.usage.prompt_tokens for row in usage] == [100]

    async def test_stop_after_the_answer_is_committed(self, tmp_path):
        """What is committed and on its way arrives: too late, and said so."""
        server = LoopbackServer()
        server.delay_s = 0.3
        async with talking(tmp_path, Mind(), server=server) as one:
            server.say(ANN, "hello")
            with anyio.fail_after(60):
                while not (await one.inbox()).get("answered"):
                    await anyio.sleep(0.01)
            server.say(ANN, "!stop")
            answers = await server.answers(2, conversation=DM)
        assert [answer.text for answer in answers] == [
            "answer 1",
            "Nothing was waiting or in progress here.",
        ]

    async def test_another_conversation_goes_on(self, tmp_path):
        """`!stop` of one person leaves the turn of another alone."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(BOB, "slow question")
            await mind.thinking.wait()
            await asked(one, "!stop")
            assert mind.cut_off == 0
            mind.gate.set()
            answers = await one.server.answers(1, conversation=f"dm-{BOB}")
        assert answers[0].text == "answer 1"

    async def test_stop_in_the_same_batch(self, tmp_path):
        """A question and its `!stop` that come together: no model is asked."""
        mind, server = Mind(), LoopbackServer()
        server.say(ANN, "one")
        server.say(ANN, "two")
        server.say(ANN, "!stop")
        async with talking(tmp_path, mind, server=server) as one:
            (only,) = await server.answers(1, conversation=DM)
            await settled(one, settled=1, ignored=2)
        assert only.text == "Stopped: I do not answer 2 messages."
        assert mind.asked == []

    @pytest.mark.parametrize(
        ("part", "call", "after", "said"),
        [
            ("turns", "claim", True, ["Stopped: I do not answer 1 message."]),
            ("state", "read_all", False, ["Stopped: I do not answer 1 message."]),
            ("turns", "complete", False, ["Stopped: I do not answer 1 message."]),
            ("turns", "complete", True, ["answer 1", "Nothing was waiting or in progress here."]),
        ],
    )
    async def test_stop_at_each_border(self, tmp_path, part, call, after, said):
        """Between claim and model, and on either side of the commit: stopped before it, too late after it."""
        stores: list[Held] = []

        def wrap(store: Any) -> Any:
            about = "trusted:" if part == "state" else ""  # read between the claim and the model
            stores.append(Held(store, call, after=after, about=about))
            return stores[0]

        async with talking(tmp_path, Mind(), wrap_queue=wrapping(**{part: wrap})) as one:
            one.server.say(ANN, "one")
            await stores[0].reached.wait()
            one.server.say(ANN, "!stop")
            with anyio.fail_after(60):
                while len(await one.built.store.inbox.rows(states=list(InboxState))) < 2:
                    await anyio.sleep(0.01)
            await anyio.sleep(0.05)
            stores[0].go.set()
            answers = await one.server.answers(len(said), conversation=DM)
            await settled(one)
            usage = await one.built.store.usage.rows()
        assert [answer.text for answer in answers] == said
        assert texts(one) == said
        assert sum(row.usage.calls for row in usage) == (1 if call == "complete" else 0)

    async def test_a_message_that_is_taken_back_is_left(self, tmp_path):
        """What its sender withdraws while it is answered is left off; nothing is said to it."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            taken_back = one.server.say(ANN, "slow one")
            await mind.thinking.wait()
            await one.hand_over(amendments=[Amendment(kind="withdraw", native_id=taken_back, sender=ANN)])
            await settled(one, ignored=1)
            after = await asked(one, "two")
        assert mind.cut_off == 1
        assert texts(one) == [after.text]
