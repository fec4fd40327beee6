"""The machine's clock, and how it follows that of a server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from gateway.system.clock import SystemClock


def ahead_s(clock: SystemClock) -> float:
    """By how much it differs from the machine's."""
    return (clock.now() - datetime.now(UTC)).total_seconds()


def told(clock: SystemClock, by_s: float, *, took_s: float = 0.0) -> None:
    """The server says that it is so much later, after this long."""
    asked_at = clock.now().timestamp()
    clock.follow(asked_at + took_s / 2 + by_s, asked_at=asked_at, answered_at=asked_at + took_s)


@pytest.mark.parametrize("by_s", [-600.0, 600.0, 0.6])
def test_it_follows_a_clock_that_says_another_time(by_s: float):
    clock = SystemClock()
    told(clock, by_s)
    assert ahead_s(clock) == pytest.approx(by_s, abs=0.2)
    told(clock, -by_s)
    assert ahead_s(clock) == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize(
    ("by_s", "took_s"), [(0.4, 0.0), (-0.4, 0.0), (0.7, 0.9), (600.0, 1.5), (600.0, -5.0)]
)
def test_what_is_no_difference_or_may_be_none_changes_nothing(by_s: float, took_s: float):
    """Also what was answered long after it was asked, and what a step of the machine's own clock has spoilt."""
    clock = SystemClock()
    told(clock, by_s, took_s=took_s)
    assert ahead_s(clock) == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize(("by_s", "told_of"), [(-4.5, 0), (4.5, 0), (-5.5, 1), (5.5, 1)])
def test_a_machine_whose_clock_is_wrong_by_seconds_is_told_so(by_s: float, told_of: int):
    """A smaller difference is followed in silence."""
    clock = SystemClock()
    with capture_logs() as logs:
        told(clock, by_s)
    assert ahead_s(clock) == pytest.approx(by_s, abs=0.2)
    assert [(each["event"], each["log_level"]) for each in logs] == [("clock.corrected", "warning")] * told_of


def test_two_clocks_follow_by_themselves():
    one, other = SystemClock(), SystemClock()
    told(one, 600)
    assert ahead_s(other) == pytest.approx(0.0, abs=0.2)
