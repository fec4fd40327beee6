"""
The embedded `Dispatcher`: wake-ups in memory, on top of the `SessionRunner`.

A wake-up says that a session may have work; what the work is stands in the store. So wake-ups of one session
are one as long as it has not started, a wake-up during a run means one run more, and losing all of them in a
crash loses nothing, because the store is asked for its open sessions at the start.

A run that raises is counted and comes again after a back-off that grows up to `_FAILED.cap_s`; a session is
never given up, since its messages are not. Delayed wake-ups are kept in a heap, per session at most `_DELAYS`
different ones: beyond that one in the middle is joined with the next later one.

Fairness: whoever is woken stands at the end of one line. A ``run_session`` that does one turn and wakes its
session again shares its place with all others.
"""

from __future__ import annotations

import heapq
import random
from bisect import insort
from collections.abc import Awaitable, Callable, Sequence

import anyio
import structlog

from agent_core.messages import SessionKey
from agent_core.runner import RunnerFull, SessionRunner
from gateway.backoff import BackoffPolicy
from gateway.work.port import RunSession

__all__ = ["LaneDispatcher", "Refill"]

Refill = Callable[[], Awaitable[Sequence[tuple[SessionKey, float]]]]
"""Gives the sessions that have work and in how many seconds: `WorkStore.open_sessions`."""

_FAILED = BackoffPolicy(first_s=1.0, cap_s=300.0, jitter=0.5)
_DELAYS = 4
_REFILL_EVERY_S = 5.0
_log = structlog.get_logger(__name__)


class LaneDispatcher:
    """
    Implements `gateway.work.port.Dispatcher` in one process.

    Args:
        concurrency: How many sessions run at once.
        max_sessions: How many sessions may wait for their run, and how many for a time. Beyond that a wake-up
            is dropped, counted, and made good by ``refill`` when there is room again.
        refill: Asked for the open sessions after wake-ups had to be dropped.
    """

    def __init__(
        self, *, concurrency: int = 16, max_sessions: int = 100_000, refill: Refill | None = None
    ) -> None:
        self._runner = SessionRunner(concurrency=concurrency, max_waiting=max_sessions)
        self._max_sessions = max_sessions
        self._refill = refill
        self._run_session: RunSession | None = None
        self._again: set[SessionKey] = set()
        self._failures: dict[SessionKey, int] = {}
        self._delays: dict[SessionKey, list[float]] = {}
        self._heap: list[tuple[float, int, SessionKey]] = []
        self._count = 0
        self._rearm = anyio.Event()
        self._overflowed = False
        self._stopped = False
        self.dropped = 0
        """Wake-ups that found no room."""
        self.failed = 0
        """Runs that raised."""

    def wake(self, session: SessionKey, *, after_s: float = 0.0) -> None:
        """There is work, now or after a while. Never blocks; repeated wake-ups of one session are one."""
        if self._stopped:
            return
        if after_s > 0:
            self._wake_later(session, anyio.current_time() + after_s)
        elif session in self._runner:
            self._wake_again(session)
        else:
            self._start(session)

    def running(self) -> Sequence[SessionKey]:
        """The sessions that run at this moment."""
        return self._runner.running()

    def waiting(self) -> int:
        """How many sessions wait for a place."""
        return self._runner.statistics().waiting

    def stop(self) -> None:
        """Start no session any more."""
        self._stopped = True
        self._again.clear()
        self._delays.clear()
        self._heap.clear()
        self._runner.stop()

    async def run(self, run_session: RunSession) -> None:
        """Run sessions until `stop`; then return as soon as nothing runs."""
        self._run_session = run_session
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_time)
            await self._runner.run()
            tasks.cancel_scope.cancel()
