"""
Samples of the queue and the turns over the last day, every few minutes. They are in memory, bounded, and end
with the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import anyio
import structlog

from agent_core.ports import Clock
from gateway.observability import metrics
from gateway.store.stores import StoreStats, StoreUnavailable

DAY_S = 86_400.0
EVERY_S = 300.0
_WAITING = ("ready", "running")
_UNSENT = ("pending", "sending", "uncertain")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters: answered turns, the seconds that they took, tokens."""

    turns: float = 0.0
    turn_seconds: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One span of `EVERY_S`, recorded at its end; ``latency_s`` is a turn's average, None without turns."""

    at: datetime
    waiting: int
    unsent: int
    turns: float
    latency_s: float | None
    prompt_tokens: float
    completion_tokens: float


def read_counters() -> Counters:
    """Return the sums of the metrics since the start."""
    sums = {"sum": 0.0, "count": 0.0, "prompt": 0.0, "completion": 0.0}
    for metric in (metrics.TURN_SECONDS, metrics.TOKENS):
        for family in metric.collect():
            for sample in family.samples:
                kind = sample.labels.get("kind") or sample.name.rpartition("_")[2]
                if kind in sums and not sample.name.endswith("_created"):
                    sums[kind] += sample.value
    return Counters(sums["count"], sums["sum"], sums["prompt"], sums["completion"])


class DayHistory:
    """Keeps the samples of a day."""

    def __init__(self, stats: Callable[[], Awaitable[StoreStats]], clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self._before = read_counters()
        self._samples: deque[Sample] = deque(maxlen=int(DAY_S / EVERY_S))

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
        now, before = read_counters(), self._before
        self._before = now
        turns = now.turns - before.turns
        self._samples.append(
            Sample(
                at=self._clock.now(),
                waiting=sum(stats.inbox.get(state, 0) for state in _WAITING),
                unsent=sum(stats.outbox.get(state, 0) for state in _UNSENT),
                turns=turns,
                latency_s=(now.turn_seconds - before.turn_seconds) / turns if turns else None,
                prompt_tokens=now.prompt_tokens - before.prompt_tokens,
                completion_tokens=now.completion_tokens - before.completion_tokens,
            )
        )
