"""Samples of the queue and the turns over the last day, in memory, for the charts of the console."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import structlog

from gateway.observability import metrics
from gateway.store.stores import StoreStats, StoreUnavailable

EVERY_S = 300.0
KEPT = 288
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One span of `EVERY_S`; ``wait_s`` is an answer's average, 0.0 without answers."""

    unanswered: int
    answers: float
    wait_s: float
    tokens: float


def read_counters() -> tuple[float, float, float]:
    """Return the answered turns since the start, the seconds that they took, and their tokens."""
    sums = {"_count": 0.0, "_sum": 0.0, "_total": 0.0}
    for metric in (metrics.TURN_SECONDS, metrics.TOKENS):
        for sample in (each for family in metric.collect() for each in family.samples):
            kind = sample.name[sample.name.rindex("_") :]
            if kind in sums:
                sums[kind] += sample.value
    return sums["_count"], sums["_sum"], sums["_total"]


class DayHistory:
    """Keeps the samples of a day."""

    def __init__(self, stats: Callable[[], Awaitable[StoreStats]]) -> None:
        self._stats = stats
        self._before = read_counters()
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    def samples(self) -> Sequence[Sample]:
        """Oldest first; never more than a day."""
        return tuple(self._samples)

    async def run(self) -> None:
        """Sample until cancelled. Raises nothing but cancellation."""
        while True:
            await anyio.sleep(EVERY_S)
            try:
                await self.sample()
            except StoreUnavailable as error:
                _log.warning("web.sample_missed", error=str(error))

    async def sample(self) -> None:
        """Take one sample. Raises StoreUnavailable; the counts go into the next one."""
        stats = await self._stats()
        now = read_counters()
        answers, seconds, tokens = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        unanswered = sum(stats.inbox.get(state, 0) for state in ("ready", "running"))
        self._samples.append(Sample(unanswered, answers, seconds / answers if answers else 0.0, tokens))
