"""Delays grow, are capped, are spread, and start anew only when the link was stable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.backoff import AUTH_RETRY, Backoff, BackoffPolicy

random_numbers = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 2000), random_numbers)
def test_a_delay_is_never_below_the_floor_nor_above_the_cap(failures, random):
    """However often it failed, the wait is bounded on both sides."""
    policy = BackoffPolicy(first_s=2, cap_s=300, floor_s=0.25)
    assert 0.25 <= policy.delay(failures, random=random) <= 300


def test_the_ceiling_doubles_up_to_the_cap():
    """The series of ceilings is exponential and then flat."""
    policy = BackoffPolicy(first_s=2, cap_s=20)
    assert [policy.ceiling(n) for n in range(1, 7)] == [2, 4, 8, 16, 20, 20]


@given(st.lists(random_numbers, min_size=2, max_size=2, unique=True))
def test_full_jitter_separates_clients(draws):
    """Two clients with different draws come back at different times."""
    policy = BackoffPolicy(first_s=100, cap_s=100, floor_s=0)
    first, second = (policy.delay(1, random=draw) for draw in draws)
    assert first != second or abs(draws[0] - draws[1]) < 1e-12


def test_refused_credentials_are_tried_every_five_minutes_at_first_and_every_two_hours_later():
    """Even the luckiest draw does not knock faster than the account's lock-out."""
    backoff = Backoff(AUTH_RETRY)
    delays = [backoff.note_failure(up_s=0, random=0.0) for _ in range(8)]
    assert delays[0] >= 240
    assert 0.8 * 7200 <= delays[-1] <= 7200
    assert delays == sorted(delays)


class NaiveBackoff(Backoff):
    """Starts anew on every connect; what the check below must catch."""

    def note_failure(self, *, random, up_s=0.0, at_least_s=None):
        return super().note_failure(up_s=1e9 if up_s > 0 else 0, random=random, at_least_s=at_least_s)


def calls_in_an_hour(backoff):
    """How often a server is called that accepts, and drops after a second."""
    now, calls = 0.0, 0
    while now < 3600:
        calls += 1
        now += 1 + backoff.note_failure(up_s=1.0, random=0.5)
    return calls


def test_a_server_that_accepts_and_drops_is_not_called_every_second():
    """A mere connect does not reset the back-off; the naive rule calls hundreds of times more."""
    policy = BackoffPolicy(first_s=2, cap_s=300)
    assert calls_in_an_hour(Backoff(policy, stable_after_s=60)) < 40
    assert calls_in_an_hour(NaiveBackoff(policy, stable_after_s=60)) > 1000


def test_a_stable_link_starts_anew():
    """After a minute of being up, the next failure is the first again."""
    backoff = Backoff(BackoffPolicy(first_s=2, cap_s=300, jitter=0), stable_after_s=60)
    assert [backoff.note_failure(up_s=0, random=0) for _ in range(3)] == [2, 4, 8]
    assert backoff.note_failure(up_s=60, random=0) == 2


def test_what_the_server_asked_for_outranks_the_cap():
    """Retry-After is obeyed."""
    assert Backoff(BackoffPolicy()).note_failure(up_s=0, random=0, at_least_s=900) == 900


@pytest.mark.parametrize("wrong", [{"first_s": 0.1}, {"cap_s": 0.5}, {"factor": 0.5}, {"jitter": 2}])
def test_a_policy_that_cannot_work_is_refused(wrong):
    """A slip in a constant is an error where it stands."""
    with pytest.raises(ValueError, match="cannot work"):
        BackoffPolicy(**wrong)
