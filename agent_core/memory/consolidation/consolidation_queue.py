"""
Consolidates conversations in the background, after an answer is on its way. `mark_due` marks a session; `run`
works on marked ones, a few at a time, with the session tasks first. Marks in quick succession are one. A
failure waits a minute, doubled up to six hours, with a limited number of retries until somebody speaks in the
session again, so that an absent model costs a few calls a day; `ConsolidationResult.wait_s` is no failure.
Cancelled work leaves no trace.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.memory.consolidation.consolidation_run import ConsolidationResult
from agent_core.ports import Clock

_CONCURRENCY = 2
_PAUSE_S = 0.25
_MAX_DUE = 10_000
RETRY = BackoffPolicy(first_s=60.0, cap_s=6 * 3600.0, jitter=0.25)
_TRIES = 8
_IDLE_S = 3600.0

log = structlog.get_logger(__name__)

SessionTask = Callable[[str], Awaitable[None]]
"""Something to do for a session whose turn has ended."""


class Consolidates(Protocol):
    """Something that consolidates sessions."""

    async def consolidate_if_due(self, session_id: str) -> ConsolidationResult:
        """Consolidate a session if it has grown too long. Raises nothing but cancellation."""
        ...


@dataclass(slots=True)
class _Trouble:
    """A session that could not be consolidated."""

    failures: int
    retry_at: float
    reason: str


class ConsolidationQueue:
    """Consolidates sessions after their turns; ``session_tasks`` run before."""

    def __init__(
        self, manager: Consolidates, clock: Clock, *, session_tasks: Sequence[SessionTask] = ()
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._session_tasks = session_tasks
        self._due_sessions: OrderedDict[str, None] = OrderedDict()
        self._running: set[str] = set()
        self._trouble: dict[str, _Trouble] = {}
        self._changed = anyio.Event()
        self._segments = 0
        self._failures = 0

    def mark_due(self, session_id: str) -> None:
        """Note that a turn of this session was completed. Never blocks, never fails."""
        self._due_sessions[session_id] = None
        self._due_sessions.move_to_end(session_id)
        if len(self._due_sessions) > _MAX_DUE:
            # The next turn of that session marks it again.
            self._due_sessions.popitem(last=False)
        self._changed.set()

    def state(self) -> dict[str, Any]:
        """The counts for the status and the metrics, without names of sessions or texts."""
        now = self._clock.monotonic()
        waits = [max(0.0, trouble.retry_at - now) for trouble in self._trouble.values()]
        worst = max(self._trouble.values(), key=lambda trouble: trouble.failures, default=None)
        return {
            "running": len(self._running),
            "waiting": len(self._due_sessions),
            "segments": self._segments,
            "failures": self._failures,
            "failing_sessions": sum(trouble.failures > 0 for trouble in self._trouble.values()),
            "postponed_sessions": sum(trouble.failures == 0 for trouble in self._trouble.values()),
            "failures_in_a_row": worst.failures if worst else 0,
            "last_error": worst.reason if worst and worst.failures else None,
            "next_try_in_s": round(min(waits), 1) if waits else None,
        }

    def trouble(self, session_id: str) -> dict[str, Any] | None:
        """Return failures, last error and the time of the next try of a session, or None if it works."""
        found = self._trouble.get(session_id)
        if found is None:
            return None
        return {
            "failures": found.failures,
            "error": found.reason,
            "next_try_in_s": round(max(0.0, found.retry_at - self._clock.monotonic()), 1),
        }

    async def run(self) -> None:
        """Work until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(_PAUSE_S)
                self._changed = anyio.Event()
                for session_id in self._ready():
                    self._running.add(session_id)
                    self._due_sessions.pop(session_id, None)
                    tasks.start_soon(self._process, session_id)
                with anyio.move_on_after(self._next_try_s()):
                    await self._changed.wait()

    # ── inside ──

    def _ready(self) -> list[str]:
        """Return the sessions to start now."""
        now = self._clock.monotonic()
        again = [
            session_id
            for session_id, trouble in self._trouble.items()
            if trouble.retry_at <= now and trouble.failures < _TRIES and session_id not in self._due_sessions
        ]
        free = _CONCURRENCY - len(self._running)
        return [each for each in [*self._due_sessions, *again] if each not in self._running][: max(0, free)]

    def _next_try_s(self) -> float:
        if len(self._running) >= _CONCURRENCY:
            return _IDLE_S
        now = self._clock.monotonic()
        waits = [
            trouble.retry_at - now
            for session_id, trouble in self._trouble.items()
            if trouble.failures < _TRIES and session_id not in self._running
        ]
        return max(0.0, min([*waits, _IDLE_S]))

    async def _process(self, session_id: str) -> None:
        try:
            if await self._do_session_tasks(session_id) and self._may_try(session_id):
                await self._consolidate(session_id)
        finally:
            self._running.discard(session_id)
            self._changed.set()

    async def _do_session_tasks(self, session_id: str) -> bool:
        for task in self._session_tasks:
            try:
                await task(session_id)
            except Exception as error:  # noqa: BLE001 - in the background one session must not stop the others
                self._failed(session_id, f"{type(error).__name__}: {error}")
                return False
        return True

    def _may_try(self, session_id: str) -> bool:
        trouble = self._trouble.get(session_id)
        return trouble is None or trouble.retry_at <= self._clock.monotonic()

    async def _consolidate(self, session_id: str) -> None:
        try:
            done = await self._manager.consolidate_if_due(session_id)
        except Exception as error:
            log.exception("consolidation.crashed", session=session_id)
            self._failed(session_id, f"{type(error).__name__}: {error}")
            return
        self._segments += done.segments
        if done.wait_s > 0:
            self._postponed(session_id, done.failure, done.wait_s)
        elif done.failure:
            self._failed(session_id, done.failure)
        else:
            self._trouble.pop(session_id, None)

    def _postponed(self, session_id: str, reason: str, wait_s: float) -> None:
        """Note that it may not be done now; that is no failure, and is tried again by itself."""
        before = self._trouble.get(session_id)
        failures = before.failures if before else 0
        self._trouble[session_id] = _Trouble(failures, self._clock.monotonic() + wait_s, reason)
        log.info("consolidation.deferred", session=session_id, retry_in_s=round(wait_s, 1), reason=reason)

    def _failed(self, session_id: str, reason: str) -> None:
        before = self._trouble.pop(session_id, None)
        failures = before.failures + 1 if before else 1
        delay_s = RETRY.delay(failures, random=random.random())
        self._trouble[session_id] = _Trouble(failures, self._clock.monotonic() + delay_s, reason)
        if len(self._trouble) > _MAX_DUE:
            del self._trouble[next(iter(self._trouble))]
        self._failures += 1
        log.warning(
            "consolidation.failed",
            session=session_id,
            failures=failures,
            retry_in_s=round(delay_s, 1),
            reason=reason,
        )
