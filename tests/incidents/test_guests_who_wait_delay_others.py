"""
Two guests who had their hundred mails waiting kept every other guest waiting for 26 hours, three for 49: places in later
hours counted against this one. Each sender has a bucket of their own now.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from channels.email.config import CircuitBreakerConfig, MailAnswerLimits
from channels.email.reply_limits import AnswerLimiter, CircuitBreaker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def place(it: AnswerLimiter, name: str, sender: str, *, minute: float = 0) -> float | None:
    """How many hours a mail waits."""
    found = it.reserve(name, sender=sender, at=NOON + timedelta(minutes=minute))
    return found and found.wait_s / 3600


@pytest.mark.parametrize("guests", [1, 2, 3, 9])
def test_who_waits_takes_no_place_of_anybody_else(guests: int) -> None:
    """With the default limits; each has taken ten places of this hour, and a hundred later ones."""
    it = AnswerLimiter(MailAnswerLimits())
    for guest in range(guests):
        waits = [place(it, f"{guest} {number}", f"g{guest}@x.test") for number in range(150)]
        assert [wait for wait in waits if wait is not None][-1] > 24
    assert place(it, "friend", "friend@y.test", minute=31) == 0


def test_a_domain_of_many_addresses_never_stops_the_owner() -> None:
    """It may open the breaker of all, and the owner's answers go out; the control is anybody else."""
    brake = CircuitBreaker(CircuitBreakerConfig())
    for number in range(100):
        if brake.may_send(f"thread {number}", number) is None:
            brake.count_answer(f"thread {number}", number)
    assert brake.may_send("theirs", 101) is not None
    assert brake.may_send("the owner's", 101, owner=True) is None


def test_in_no_hour_more_than_the_limits() -> None:
    """Many people, in any order: each rule holds in every window, also where gaps were filled."""
    chance = random.Random(13)
    it = AnswerLimiter(MailAnswerLimits(sender_per_hour=3, sender_per_day=9))
    due: list[tuple[float, str]] = []
    minute = 0.0
    for number in range(400):
        minute += chance.random() * 12
        sender = f"s{chance.randrange(8)}"
        found = it.reserve(str(number), sender=sender, at=NOON + timedelta(minutes=minute))
        if found is not None:
            due.append((NOON.timestamp() + minute * 60 + found.wait_s, sender))
    assert len(due) > 200
    for at, sender in due:
        hour = [who for then, who in due if at - 3599.9 < then <= at]
        assert hour.count(sender) <= 3
        assert sum(who == sender for then, who in due if at - 86399.9 < then <= at) <= 9
