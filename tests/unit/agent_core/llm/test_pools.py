"""Who is asked, for how long a failed member is left alone, and what is raised when all fail."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.errors import (
    ContextTooLong,
    CreditSpent,
    ModelAuthFailed,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
    StreamBroken,
)
from agent_core.llm.pools import ModelPool, cool_down_s, most_informative
from agent_core.models import Message, ToolCall, Usage
from tests.clock import LoopClock, ManualClock
from tests.doubles.agent import ModelScript

ASK = [Message(role="user", content="hi")]


class ScriptedModel(ModelScript):
    """Does what it is told, in order; answers with its name when nothing is left."""

    def __init__(self, name, *script):
        super().__init__(*script)
        self.name = name
        self.asked = 0

    async def chat(self, messages, tools, *, stream=True):
        self.asked += 1
        self.answers = self.answers or deque([self.name])
        return await super().chat(messages, tools, stream=stream)


def pool_of(clock, *members):
    return ModelPool("main", [(member.name, member) for member in members], clock)


async def ask(pool):
    return [chunk async for chunk in await pool.chat(ASK, [])]


@pytest.fixture
def clock():
    return ManualClock()


class TestFallback:
    async def test_the_first_one_answers(self, clock):
        """As long as the first works nobody else is asked."""
        first, second = ScriptedModel("a"), ScriptedModel("b")
        pool = pool_of(clock, first, second)

        assert [await ask(pool) for _ in range(3)] == [["a"]] * 3
        assert second.asked == 0

    @pytest.mark.parametrize(
        "error",
        [
            ModelUnavailable("x"),
            ModelRateLimited("x"),
            ModelAuthFailed("x"),
            ModelRefused("x"),
            ContextTooLong("x"),
            StreamBroken("x"),
        ],
    )
    async def test_the_next_one_is_asked_on_any_error(self, clock, error):
        """Whatever went wrong before anything was handed out, the next member is asked."""
        assert await ask(pool_of(clock, ScriptedModel("a", error), ScriptedModel("b"))) == ["b"]

    @pytest.mark.parametrize("piece", ["so far", ToolCall(id="1", name="look")])
    async def test_not_after_something_was_handed_out(self, clock, piece):
        """Once a piece was handed out the error goes up, and nobody else is asked behind the caller's back."""
        second = ScriptedModel("b")
        broken = StreamBroken("cut", partial="so far")
        pool = pool_of(clock, ScriptedModel("a", [piece, broken]), second)
        seen = []
        with pytest.raises(StreamBroken) as caught:
            async for chunk in await pool.chat(ASK, []):
                seen.append(chunk)

        assert seen == [piece]
        assert caught.value.partial == "so far"
        assert second.asked == 0

    async def test_a_defect_is_not_hidden(self, clock):
        """An exception that is no `ModelError` goes up as it is."""
        with pytest.raises(ZeroDivisionError):
            await ask(pool_of(clock, ScriptedModel("a", ZeroDivisionError()), ScriptedModel("b")))

    async def test_leaving_early_closes_the_member(self, clock):
        """Closing the pool's answer closes the member's, and that is no failure."""
        member = ScriptedModel("a", ["x", 100.0])
        pool = pool_of(clock, member)
        chunks = await pool.chat(ASK, [])
        await anext(chunks)
        await chunks.aclose()

        assert member.open == 0
        assert pool.state()[0].failures == 0

    def test_a_pool_has_members(self, clock):
        """An empty pool cannot be made."""
        with pytest.raises(ValueError, match="no members"):
            ModelPool("main", [], clock)


class TestCoolDown:
    async def test_a_failed_member_is_left_alone_and_comes_back(self, clock):
        """For two seconds only the second is asked, then the first again."""
        first, second = ScriptedModel("a", ModelUnavailable("x")), ScriptedModel("b")
        pool = pool_of(clock, first, second)

        assert await ask(pool) == ["b"]
        clock.advance(1.9)
        assert await ask(pool) == ["b"]
        assert first.asked == 1
        clock.advance(0.2)
        assert await ask(pool) == ["a"]

    async def test_retry_after_is_kept(self, clock):
        """A member that said when to come again is not asked earlier, though it is the only one."""
        member = ScriptedModel("a", ModelRateLimited("x", retry_after_s=30))
        pool = pool_of(clock, member)
        with pytest.raises(ModelRateLimited):
            await ask(pool)
        clock.advance(10)
        with pytest.raises(ModelRateLimited) as caught:
            await ask(pool)

        assert member.asked == 1
        assert caught.value.retry_after_s == pytest.approx(20)
        clock.advance(20.1)
        assert await ask(pool) == ["a"]

    async def test_the_only_member_is_asked_although_it_failed(self, clock):
        """Nobody else is left, and it did not say when to come again: it gets another chance."""
        member = ScriptedModel("a", ModelUnavailable("x"))
        pool = pool_of(clock, member)
        with pytest.raises(ModelUnavailable):
            await ask(pool)

        assert await ask(pool) == ["a"]

    async def test_only_one_is_asked_when_all_are_cooling(self, clock):
        """In an outage a question costs one attempt, at the member that is back first."""
        first = ScriptedModel("a", ModelUnavailable("x"))
        second = ScriptedModel("b", ModelUnavailable("x"), ModelUnavailable("x"))
        pool = pool_of(clock, first, second)
        with pytest.raises(ModelUnavailable):
            await ask(pool)
        assert await ask(pool) == ["a"]
        assert (first.asked, second.asked) == (2, 1)

    async def test_a_wrong_key_is_asked_about_with_each_question(self, clock):
        """Nobody says when it was mended: each question costs one cheap try, and the first one after is answered."""
        refusals = [
            ModelAuthFailed("401"),
            ModelRefused("404", operator=True),
            CreditSpent("402", operator=True),
        ]
        first, second = (ScriptedModel(name, *refusals) for name in "ab")
        pool = pool_of(clock, first, second)
        for number in range(3):
            with pytest.raises(ModelError):
                await ask(pool)
            assert (first.asked, second.asked) == (number + 1, number + 1)

        assert await ask(pool) == ["a"]

    async def test_a_wrong_key_is_left_alone_while_another_answers(self, clock):
        """For five minutes, so that no answer pays for it."""
        first, second = ScriptedModel("a", ModelAuthFailed("401")), ScriptedModel("b")
        pool = pool_of(clock, first, second)

        assert [await ask(pool) for _ in range(3)] == [["b"]] * 3
        assert first.asked == 1
        clock.advance(301)
        assert await ask(pool) == ["a"]

    async def test_a_refused_key_is_reported_where_another_answers(self, clock):
        """Else nobody hears that the dearer one answers. The controls: nobody else answers, or it only failed."""
        error, told = ModelAuthFailed("401", operator=True), []
        for members, reported in (
            ([ScriptedModel("a", error), ScriptedModel("b")], [error]),
            ([ScriptedModel("a", error)], []),
            ([ScriptedModel("a", ModelUnavailable("503")), ScriptedModel("b")], []),
            ([ScriptedModel("a", CreditSpent("402", operator=True)), ScriptedModel("b")], []),
        ):
            told.clear()
            pool = pool_of(clock, *members)
            pool.on_substitute = told.append
            with suppress(ModelAuthFailed):
                await ask(pool)
            assert told == reported

    async def test_a_spent_credit_is_reported_and_the_next_one_asked(self, clock):
        """Also where another answers, the operator wants to know."""
        error = CreditSpent("402", operator=True)
        first, second = ScriptedModel("a", error), ScriptedModel("b")
        pool, told = pool_of(clock, first, second), []
        pool.on_credit_spent = told.append
        pool.on_recovery = told.append

        assert [await ask(pool) for _ in range(2)] == [["b"]] * 2
        assert told == [error]
        clock.advance(301)
        assert [await ask(pool) for _ in range(2)] == [["a"]] * 2
        assert told == [error, error]

    async def test_a_recovery_is_reported_once(self, clock):
        """An error that is not the model's fault is none that it recovers from."""
        error = ModelUnavailable("503")
        pool, told = pool_of(clock, ScriptedModel("a", ContextTooLong("x"), error)), []
        pool.on_recovery = told.append
        for _ in range(2):
            with pytest.raises((ContextTooLong, ModelUnavailable)):
                await ask(pool)
        assert told == []
        clock.advance(301)
        assert [await ask(pool) for _ in range(2)] == [["a"]] * 2
        assert told == [error]

    @pytest.mark.parametrize("error", [ContextTooLong("x"), ModelRefused("x"), ModelRefused("x", empty=True)])
    async def test_what_is_not_its_fault_cools_nothing(self, clock, error):
        """The next question goes to the first again."""
        first, second = ScriptedModel("a", error), ScriptedModel("b")
        pool = pool_of(clock, first, second)

        assert await ask(pool) == ["b"]
        assert await ask(pool) == ["a"]

    async def test_one_outage_is_one_step(self, clock):
        """Ten questions that fail together double nothing."""
        member = ScriptedModel("a", *[[0.01, ModelUnavailable("x")]] * 10)
        pool = pool_of(clock, member)

        async def fail():
            with pytest.raises(ModelUnavailable):
                await ask(pool)

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(fail)
        (state,) = pool.state()

        assert state.calls == 10
        assert state.failures == 1
        assert state.cooling_s == 2.0

    async def test_one_answer_forgives_everything(self, clock):
        """After an answer the next failure is a first one."""
        member = ScriptedModel("a", *[ModelUnavailable("x")] * 4)
        pool = pool_of(clock, member)
        for expected in (2, 4, 8, 16):
            clock.advance(1000)
            with pytest.raises(ModelUnavailable):
                await ask(pool)
            assert pool.state()[0].cooling_s == expected
        clock.advance(1000)
        await ask(pool)
        member.answers.append(ModelUnavailable("x"))
        with pytest.raises(ModelUnavailable):
            await ask(pool)

        assert pool.state()[0].cooling_s == 2

    @given(st.integers(1, 10_000))
    def test_it_never_cools_for_ever(self, failures):
        """However often it failed: two minutes at the most, and it never shrinks with failures."""
        now, before = (cool_down_s(ModelUnavailable("x"), count) for count in (failures, failures - 1 or 1))

        assert 2 <= before <= now <= 120

    def test_a_stream_that_broke_once(self):
        """It may be asked again at once; from the second time on it cools."""
        assert [cool_down_s(StreamBroken("x"), count) for count in (1, 2, 3)] == [0, 2, 4]

    async def test_it_comes_back_by_itself(self):
        """With a clock that runs, a member that failed answers again after its time."""
        pool = pool_of(LoopClock(), ScriptedModel("a", ModelRateLimited("x", retry_after_s=0.05)))
        with pytest.raises(ModelRateLimited):
            await ask(pool)
        await anyio.sleep(0.1)

        assert await ask(pool) == ["a"]


class TestTheError:
    def raised(self, *errors: ModelError, back=None):
        return most_informative(
            [(f"m{n}", error) for n, error in enumerate(errors)], pool="main", back_in_s=back
        )

    @pytest.mark.parametrize(
        ("errors", "expected"),
        [
            ((ModelAuthFailed("x"), ModelUnavailable("x")), ModelUnavailable),
            ((ModelRefused("x"), ModelUnavailable("x")), ModelUnavailable),
            ((ModelUnavailable("x"), ModelRateLimited("x")), ModelRateLimited),
            ((ModelUnavailable("x"), ContextTooLong("x")), ContextTooLong),
            ((ModelAuthFailed("x"), ModelRefused("x")), ModelRefused),
            ((CreditSpent("x"), ModelRefused("x")), ModelRefused),
            ((ModelAuthFailed("x"), CreditSpent("x")), CreditSpent),
            ((ModelUnavailable("x"), CreditSpent("x")), ModelUnavailable),
            ((ModelAuthFailed("x"), ModelAuthFailed("x")), ModelAuthFailed),
        ],
    )
    def test_what_can_be_done_something_about_comes_first(self, errors, expected):
        """Too long, then what passes by itself, then refusals, then the operator's business; in any order."""
        assert type(self.raised(*errors)) is expected
        assert type(self.raised(*reversed(errors))) is expected

    def test_the_soonest_time(self):
        """The caller learns when the first member is back, not when the one that complained is."""
        error = self.raised(ModelRateLimited("x", retry_after_s=60), ModelUnavailable("x"), back=2.0)

        assert isinstance(error, ModelRateLimited)
        assert error.retry_after_s == 2.0

    def test_the_log_has_all_of_them(self):
        """What happened to each member is in the fields, the public text is that of the chosen one."""
        chosen = ModelAuthFailed("401: no", public="My operator must look.", operator=True)
        error = self.raised(chosen, ModelAuthFailed("402: no"))

        assert error.fields["members"] == {"m0": "401: no", "m1": "402: no"}
        assert error.public == "My operator must look."
        assert error.__cause__ is chosen
        assert error.fields["operator"] is True

    async def test_an_old_error_of_a_member_does_not_speak(self, clock):
        """A long question of somebody else is no reason to shorten this one."""
        first = ScriptedModel("a", ModelUnavailable("x"), ModelUnavailable("x"))
        second = ScriptedModel("b", ContextTooLong("long"), ModelUnavailable("x"))
        pool = pool_of(clock, first, second)
        with pytest.raises(ContextTooLong):
            await ask(pool)
        with pytest.raises(ModelUnavailable):
            await ask(pool)

    async def test_state_for_status(self, clock):
        """Who cools for how long and why can be seen; the usage of a member is passed on."""
        usage = Usage(prompt_tokens=1, calls=1)
        pool = pool_of(clock, ScriptedModel("a", ModelUnavailable("boom")), ScriptedModel("b", ["x", usage]))

        assert await ask(pool) == ["x", usage]
        first, second = pool.state()
        assert (first.name, first.cooling_s, first.failures, first.error) == (
            "a",
            2.0,
            1,
            "boom",
        )
        assert (second.cooling_s, second.answers, second.error) == (0.0, 1, "")
