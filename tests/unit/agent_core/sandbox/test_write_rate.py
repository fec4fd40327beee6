"""How fast a program may write: a burst, then so much each second."""

from __future__ import annotations

from agent_core.sandbox.write_rate import Pace


def test_a_burst_is_free_and_what_is_beyond_has_to_wait():
    pace = Pace(rate=10, burst=100, now=0)
    assert not pace.is_ahead(100, 0)
    assert pace.is_ahead(121, 0.1)
    assert pace.is_ahead(121, 2.0)
    assert not pace.is_ahead(121, 2.2)


def test_whoever_has_waited_long_has_one_burst_and_no_more():
    pace = Pace(rate=10, burst=100, now=0)
    assert not pace.is_ahead(100, 1000)
    assert pace.is_ahead(201, 1000)


def test_what_is_missing_from_the_sum_is_not_given_back():
    pace = Pace(rate=10, burst=100, now=0)
    assert pace.is_ahead(150, 0)
    assert pace.is_ahead(0, 1.0)
    assert pace.is_ahead(70, 5.0)


def test_without_a_rate_nobody_waits():
    assert not Pace(rate=0, burst=0, now=0).is_ahead(10**12, 0)
