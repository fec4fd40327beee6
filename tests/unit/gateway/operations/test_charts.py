"""The charts of the console: the samples of a day, and how they are drawn."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from datetime import timedelta

import pytest

from gateway.operations.http import samples
from gateway.operations.http.charts import ChartLine, ceiling, chart, day_charts
from gateway.operations.http.samples import Counters, DayHistory
from gateway.store.stores import StoreStats, StoreUnavailable
from tests.clock import EPOCH, ManualClock

DAY = timedelta(days=1)


def _wave(number, height):
    """A whole number from 0 to ``height`` that goes up and down."""
    return round(height * (0.5 + 0.3 * math.sin(number / 23) + 0.2 * math.sin(number / 5)))


async def day(patch, hours=24):
    """A history of so many hours with something to see."""
    clock = ManualClock(EPOCH)
    totals = [0.0, 0.0, 0.0, 0.0]

    async def stats():
        number = int((clock.now() - EPOCH).total_seconds() // 300)
        return StoreStats(
            {"ready": _wave(number, 5), "settled": 9}, {"pending": _wave(number + 9, 2)}, None, None, 0
        )

    patch.setattr(samples, "read_counters", lambda: Counters(*totals))
    history = DayHistory(stats, clock)
    for number in range(hours * 12):
        clock.advance(300)
        turns = 0 if 60 < number < 120 else _wave(number, 8)
        for place, more in enumerate((turns, turns * (2 + _wave(3 * number, 6)), turns * 1800, turns * 410)):
            totals[place] += more
        await history.sample()
    return history, clock


async def test_the_day_is_bounded_and_gaps_stay_gaps(monkeypatch):
    """288 samples and no more; a span without turns has no latency, which breaks the line."""
    history, _ = await day(monkeypatch, hours=30)
    found = history.samples()
    assert len(found) == 288
    assert found[-1].at - found[0].at < DAY
    assert [one for one in found if one.latency_s is None]
    assert all(one.turns == 0 for one in found if one.latency_s is None)


async def test_each_chart_is_drawn(monkeypatch):
    """Four, each a tree of SVG with its lines."""
    history, clock = await day(monkeypatch)
    page = day_charts(history.samples(), clock.now())
    assert page.count("<polyline") >= 6
    assert len([ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]) == 4


async def test_a_sample_that_is_missed_is_in_the_next_one(monkeypatch):
    """While the store cannot be read nothing is taken, and nothing counted is lost."""
    clock, total, down = ManualClock(EPOCH), [0.0], [True]

    async def stats():
        if down:
            raise StoreUnavailable("the disk is full")
        return StoreStats({}, {}, None, None, 0)

    monkeypatch.setattr(samples, "read_counters", lambda: Counters(total[0], 0, 0, 0))
    history = DayHistory(stats, clock)
    total[0] = 5
    with pytest.raises(StoreUnavailable):
        await history.sample()
    down.clear()
    await history.sample()
    assert [one.turns for one in history.samples()] == [5]


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (10, 10), (11, 20), (4_321, 5_000), (float("nan"), 1)])  # fmt: skip
def test_the_axis_ends_at_a_round_number(value, top):
    """The smallest of 1, 2 and 5 times a power of ten that has room."""
    assert ceiling(value) == top


def test_what_is_too_old_is_not_drawn():
    """A value from before the span is left out instead of being drawn outside."""
    old, new = EPOCH - 2 * DAY, EPOCH
    assert "<polyline" not in chart("x", [ChartLine("a", [(old, 5.0)])], until=new, span=DAY)
    assert "<polyline" in chart("x", [ChartLine("a", [(new, 5.0)])], until=new, span=DAY)
