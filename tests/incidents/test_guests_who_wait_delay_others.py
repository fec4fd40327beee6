"""
Two guests who had their hundred mails waiting kept every other guest waiting for 26 hours, three for 49: places in later
hours counted against this one. A domain of many addresses took the whole of each hour.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from channels.email.config import AnswerLimits, CircuitBreakerConfig
from channels.email.limits.circuit_breaker import CircuitBreaker
from channels.email.limits.rate_limit import AnswerLimiter

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def place(it: AnswerLimiter, name: str, sender: str, *, minute: float = 0, crowd: str = "") -> float | None:
    """How many hours a mail waits."""
    found = it.place(
        name,
        sender=sender,
        thread=name,
        listed=True,
        at=NOON + timedelta(minutes=minute),
        crowd=crowd,
    )
    return found and found.wait_s / 3600


@pytest.mark.parametrize("guests", [1, 2, 3, 9])
def test_who_waits_takes_no_place_of_this_hour(guests: int) -> None:
    """With the default limits; each has taken ten places of this hour, and a hundred later ones."""
    it = AnswerLimiter(AnswerLimits())
    for guest in range(guests):
        waits = [place(it, f"{guest} {number}", f"g{guest}@x.test") for number in range(150)]
        assert [wait for wait in waits if wait is not None][-1] > 24
    assert place(it, "friend", "friend@y.test", minute=31) == 0


def test_a_full_hour_is_full() -> None:
    """The control: ten guests may use up an hour, and no more than that one is lost."""
    it = AnswerLimiter(AnswerLimits())
    for guest in range(10):
        for number in range(150):
            place(it, f"{guest} {number}", f"g{guest}@x.test")
    assert place(it, "friend", "friend@y.test", minute=30) not in (0, None)


def test_half_of_each_hour_is_for_people_let_in_by_name() -> None:
    """However many addresses write, hour after hour."""
    it = AnswerLimiter(AnswerLimits())
    for hour in range(6):
        for number in range(150):
            place(it, f"{hour} {number}", f"{hour}.{number}@evil.test", minute=60 * hour, crowd="*@evil.test")
        friends = [place(it, f"f {hour} {n}", f"f{n}@y.test", minute=60 * hour + 1) for n in range(50)]
        assert friends == [0] * 50


def test_a_domain_of_many_addresses_does_not_pull_the_brake() -> None:
    """
    Half of what the circuit breaker lets pass is left for others, hour after hour: fifty answers an hour to one domain and eleven
    to friends pulled it, and then nobody but the owner was answered for an hour.
    """
    limits, settings = AnswerLimits(), CircuitBreakerConfig()
    for hundred in (limits, limits.model_copy(update={"total_per_hour": 0})):
        limiter = AnswerLimiter(hundred, breaker_per_hour=settings.answers_per_hour)
        brake = CircuitBreaker(settings)
        due: list[float] = []
        for hour in range(4):
            for number in range(100):
                minute = 60 * hour + number / 2
                guest = f"{hour}.{number}@evil.test"
                wait = place(limiter, guest, guest, minute=minute, crowd="*@evil.test")
                due += [] if wait is None else [minute * 60 + wait * 3600]
        friends = [hour * 3600 + number * 110 for hour in range(4) for number in range(30)]
        for number, second in enumerate(sorted([*due, *friends])):
            thread = f"thread {number}"
            assert brake.may_send(thread, "hello", second, recipient="x@y.test") is None
            brake.sent(thread, "hello", second)
        assert len(due) > 100


def test_in_no_hour_more_than_the_limits() -> None:
    """Many people, in any order: each rule holds in every window, also where gaps were filled."""
    chance = random.Random(13)
    it = AnswerLimiter(AnswerLimits(sender_per_hour=3, sender_per_day=9, thread_per_hour=2, total_per_hour=7))
    due: list[tuple[float, str]] = []
    minute = 0.0
    for number in range(400):
        minute += chance.random() * 12
        sender = f"s{chance.randrange(8)}"
        found = it.place(
            str(number),
            sender=sender,
            thread=f"{sender} {chance.randrange(2)}",
            listed=True,
            at=NOON + timedelta(minutes=minute),
        )
        if found is not None:
            due.append((NOON.timestamp() + minute * 60 + found.wait_s, sender))
    assert len(due) > 200
    for at, sender in due:
        hour = [who for then, who in due if at - 3599.9 < then <= at]
        assert len(hour) <= 7
        assert hour.count(sender) <= 3
        assert sum(who == sender for then, who in due if at - 86399.9 < then <= at) <= 9
