"""The circuit breaker on answers by mail by itself, and the patience after refused logins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_core.messages import SessionKey
from channels.base import ChannelAuthFailed
from channels.email.config import CircuitBreakerConfig
from channels.email.loop_guard import LoginBackoff
from channels.email.reply_limits import CircuitBreaker
from tests.clock import ManualClock

THREAD = SessionKey("email", "thread-" + "a" * 24, "alice@mail.test")

OTHER = SessionKey("email", "thread-" + "b" * 24, "bob@mail.test")

NONE = {
    "answers_per_hour": 0,
    "thread_answers_per_hour": 0,
}


def breaker(**limits: Any) -> CircuitBreaker:
    return CircuitBreaker(CircuitBreakerConfig.model_validate(NONE | {"open_minutes": 60} | limits))


def send(it: CircuitBreaker, now: float, *, thread: str = "t") -> bool:
    if it.may_send(thread, now) is not None:
        return False
    it.count_answer(thread, now)
    return True


class TestBrake:
    @pytest.mark.parametrize(("limit", "remembered"), [(0, 0), (50, 20)])
    def test_answers_are_remembered_where_they_are_counted(self, limit: int, remembered: int) -> None:
        """An hour of answers costs no memory where nobody counts them."""
        it = breaker(answers_per_hour=limit)
        assert all(send(it, float(number)) for number in range(20))
        assert len(json.loads(it.dump(20.0, 20.0))["sent"]) == remembered

    def test_nothing_is_stopped_without_limits(self) -> None:
        """The control: a thousand answers a minute."""
        it = breaker()
        assert all(send(it, now=number / 20) for number in range(1000))

    def test_one_thread(self) -> None:
        """Beyond so many answers an hour one thread rests, and the others do not."""
        it = breaker(thread_answers_per_hour=5)
        assert [send(it, float(n)) for n in range(6)] == [True] * 5 + [False]
        assert send(it, 7.0, thread="other")

    def test_all_of_it(self) -> None:
        """Beyond so many in all nobody is answered, for the time that was set and no longer."""
        it = breaker(answers_per_hour=10)
        assert [send(it, float(n), thread=f"t{n}") for n in range(11)] == [True] * 10 + [False]
        assert not send(it, 3000.0, thread="new")
        assert send(it, 3620.0, thread="new")

    def test_slow_is_no_loop(self) -> None:
        """As many answers over many hours are none too many."""
        it = breaker(answers_per_hour=10, thread_answers_per_hour=5)
        assert all(send(it, n * 1300.0) for n in range(100))

    def test_the_owner_is_not_shut_out(self) -> None:
        """Not by what others do; only by more in one thread than a person can ask for. The control is anybody else."""
        it = breaker(answers_per_hour=10, thread_answers_per_hour=3)
        for number in range(11):
            send(it, 0.0, thread=f"t{number}")
        assert it.open_reason("t", 1.0) is not None
        same = [it.may_send("t", 1.0, owner=True) or it.count_answer("t", 1.0, owner=True) for _ in range(11)]
        assert [one is None for one in same] == [True] * 10 + [False]
        assert it.may_send("other", 2.0, owner=True) is None
        it = breaker(answers_per_hour=10)
        for number in range(30):
            it.count_answer(f"o{number}", 0.0, owner=True)
        assert it.may_send("t", 1.0) is None, "what the owner gets is nobody else's loop"

    def test_it_is_told_once(self) -> None:
        """Only the moment at which it opened is new."""
        it = breaker(answers_per_hour=1)
        send(it, 0.0)
        first = it.may_send("t", 1.0)
        again = it.may_send("t", 2.0)
        assert first is not None
        assert again is not None
        assert (it.is_new(first), it.is_new(again)) == (True, False)

    def test_it_outlives_a_restart(self) -> None:
        """What was counted and what is open go on in a process with another clock, as long as they would have."""
        it = breaker(thread_answers_per_hour=5)
        assert [send(it, float(n), thread="loop") for n in range(6)] == [True] * 5 + [False]
        assert all(send(it, float(n)) for n in range(4))
        kept = it.dump(10.0, 1_000_010.0)
        assert not it.changed

        after = breaker(thread_answers_per_hour=5)
        assert after.load(kept, 500.0, 1_000_110.0)
        (tripped,) = after.all_open(500.0)
        assert (tripped.thread, round(tripped.until - 500.0)) == ("loop", 3600 - 105)
        assert not send(after, 501.0, thread="loop")
        assert not after.is_new(tripped), "the owner has heard of it"
        assert [send(after, 502.0) for n in (5, 6)] == [True, False], "the fifth and the sixth of an hour"

    def test_a_forgetful_restart_is_caught(self) -> None:
        """The control: a process that takes nothing over answers into the loop again."""
        it = breaker(thread_answers_per_hour=5)
        assert [send(it, float(n)) for n in range(6)][-1] is False
        assert send(breaker(thread_answers_per_hour=5), 7.0)

    def test_clocks_that_are_set(self) -> None:
        """Forward it ends; back it lasts no longer than it is set to."""
        it = breaker(answers_per_hour=1)
        send(it, 0.0)
        assert it.may_send("t", 1.0) is not None
        kept = it.dump(1.0, 1_000_000.0)
        for wall, tripped in ((1_003_700.0, False), (0.0, True)):
            after = breaker(answers_per_hour=1)
            assert after.load(kept, 0.0, wall)
            assert (after.open_reason("t", 10.0) is not None) == tripped
            assert after.open_reason("t", 3601.0) is None

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"pulled": [[1]], "sent": [], "bounced": []}', "\0"])
    def test_damaged_is_like_none(self, text: str) -> None:
        """Nothing is taken of it, and said so."""
        it = breaker(answers_per_hour=1)
        assert not it.load(text, 0.0, 0.0)
        assert send(it, 0.0)

    def test_letting_go(self) -> None:
        """What was open is told, and answers go out again, as many as after any pause."""
        it = breaker(thread_answers_per_hour=2)
        assert [send(it, float(n)) for n in range(3)] == [True, True, False]
        assert [one.thread for one in it.reset(3.0)] == ["t"]
        assert it.reset(3.0) == []
        assert [send(it, 4.0 + n) for n in range(3)] == [True, True, False]


class TestPatience:
    def test_a_refused_login_is_not_repeated_for_minutes(self) -> None:
        """Five, ten, twenty … at most two hours; an accepted one makes it forget."""
        clock = ManualClock()
        patience = LoginBackoff(clock.monotonic)
        pauses = []
        for _ in range(8):
            patience.check()
            error = ChannelAuthFailed("no")
            assert patience.count_refusal(error) is (not pauses)
            pauses.append(error.retry_after_s)
            with pytest.raises(ChannelAuthFailed) as caught:
                patience.check()
            assert caught.value.retry_after_s == error.retry_after_s
            clock.advance(error.retry_after_s or 0)
        assert pauses == [300, 600, 1200, 2400, 4800, 7200, 7200, 7200]
        patience.check()
        patience.note_success()
        assert patience.count_refusal(again := ChannelAuthFailed("no"))
        assert again.retry_after_s == 300
