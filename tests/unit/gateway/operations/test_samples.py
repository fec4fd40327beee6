"""The samples of a day, of which the console draws its charts."""

from __future__ import annotations

import pytest

from gateway.operations.http import samples
from gateway.operations.http.samples import DayHistory, Sample
from gateway.store.stores import StoreStats, StoreUnavailable


async def test_the_day_is_bounded_and_what_a_sample_misses_is_in_the_next_one(monkeypatch):
    """288 samples and no more; while the store cannot be read nothing is taken, and nothing counted is lost."""
    totals, down = [0.0, 0.0, 0.0], [True]

    async def stats():
        if down:
            raise StoreUnavailable("the disk is full")
        return StoreStats({"ready": 2, "running": 1, "settled": 9}, {}, None, None, 0)

    monkeypatch.setattr(samples, "read_counters", lambda: tuple(totals))
    history = DayHistory(stats)
    totals[:] = [5.0, 20.0, 900.0]
    with pytest.raises(StoreUnavailable):
        await history.sample()
    down.clear()
    await history.sample()
    assert history.samples() == (Sample(3, 5.0, 4.0, 900.0),)
    for _ in range(300):
        await history.sample()
    assert len(history.samples()) == 288
    assert history.samples()[-1] == Sample(3, 0.0, 0.0, 0.0)
