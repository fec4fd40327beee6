"""The slope of `make soak`: growth is told from noise, and noise from growth."""

from __future__ import annotations

import random

import pytest

from tests.soak.slope import fit


def walk(chance, *, count=300, each=0.0, pull=0.9, step=20.0):
    """A figure that wanders about a line, each time near to where it was."""
    off, points = 0.0, []
    for number in range(count):
        off = pull * off + chance.gauss(0, step)
        points.append((number / 100, 90_000 + each * number / 100 + off))
    return points


def test_wandering_is_noise_and_a_leak_is_not():
    """Of 200 series without growth few are called growth; of as many with a leak nearly all are."""
    chance = random.Random(3)
    alarms = sum(not fit(walk(chance)).is_noise for _ in range(200))
    found = sum(not fit(walk(chance, each=120.0)).is_noise for _ in range(200))
    assert alarms < 24
    assert found > 180


def test_the_slope_is_that_of_the_line():
    """Without noise it is exact."""
    slope = fit([(x / 10, 5 + 3 * x / 10) for x in range(20)])
    assert slope.each == pytest.approx(3)
    assert slope.band == pytest.approx(0, abs=1e-6)
    assert not slope.is_noise


@pytest.mark.parametrize("points", [[(1.0, 2.0)] * 5, [(1.0, 2.0)] * 20])
def test_too_little_is_refused(points):
    """A few samples, or samples of one moment, have no slope."""
    with pytest.raises(ValueError, match="samples"):
        fit(points)
