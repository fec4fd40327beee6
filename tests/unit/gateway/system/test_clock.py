"""The machine's clock, and how it follows that of a server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from gateway.system.clock import SystemClock


def ahead_s(clock: SystemClock) -> float:
    """By how much it differs from the machine's."""
    return (clock.now() - datetime.now(UTC)).total_seconds()


class Machine(SystemClock):
    """A clock of which a test says how much time has passed while it asked."""

    passed = timedelta()

    def now(self) -> datetime:
        return super().now() + self.passed


def told(clock: Machine, by_s: float, *, took_s: float = 0.0) -> None:
    """The server says that it is so much later, after this long."""

    def ask() -> float:
        theirs = clock.now().timestamp() + took_s / 2 + by_s
        clock.passed += timedelta(seconds=took_s)
        return theirs

    clock.follow(ask)
    clock.passed = timedelta()


@pytest.mark.parametrize("by_s", [-600.0, 600.0, 0.6])
def test_it_follows_a_clock_that_says_another_time(by_s: float):
    clock = Machine()
    told(clock, by_s)
    assert ahead_s(clock) == pytest.approx(by_s, abs=0.2)
    told(clock, -by_s)
    assert ahead_s(clock) == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize(
    ("by_s", "took_s"), [(0.4, 0.0), (-0.4, 0.0), (0.7, 0.9), (600.0, 1.5), (600.0, -5.0)]
)
def test_what_is_no_difference_or_may_be_none_changes_nothing(by_s: float, took_s: float):
    """Also what was answered long after it was asked, and what a step of the machine's own clock has spoilt."""
    clock = Machine()
    told(clock, by_s, took_s=took_s)
    assert ahead_s(clock) == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize(("by_s", "told_of"), [(-4.5, 0), (4.5, 0), (-5.5, 1), (5.5, 1)])
def test_a_machine_whose_clock_is_wrong_by_seconds_is_told_so(by_s: float, told_of: int):
    """A smaller difference is followed in silence."""
    clock = Machine()
    with capture_logs() as logs:
        told(clock, by_s)
    assert ahead_s(clock) == pytest.approx(by_s, abs=0.2)
    assert [(each["event"], each["log_level"]) for each in logs] == [("clock.corrected", "warning")] * told_of


def test_two_clocks_follow_by_themselves():
    one, other = Machine(), Machine()
    told(one, 600)
    assert ahead_s(other) == pytest.approx(0.0, abs=0.2)


def test_a_difference_that_several_threads_find_at_once_is_corrected_once():
    """All of them have found it before the first one corrects it."""
    answered, all_answered = threading.local(), threading.Barrier(4, timeout=120)

    class Met(SystemClock):
        def now(self) -> datetime:
            found = super().now()
            if vars(answered).pop("here", False):
                all_answered.wait()
            return found

    def ask() -> float:
        theirs = clock.now().timestamp() + 600
        answered.here = True
        return theirs

    clock = Met()
    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(clock.follow, ask) for _ in range(4)]:
            each.result()
    assert ahead_s(clock) == pytest.approx(600.0, abs=0.5)
