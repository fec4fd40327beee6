"""
Decides which sessions run: wake-ups in memory, on top of the `SessionRunner`. The queue keeps the truth.
Wake-ups of a waiting session merge; one during a run causes another. After a crash the queue is asked for
open sessions. A run that raises is repeated after at most `_FAILED.cap_s`, and delayed wake-ups are bounded
by `_DELAYS` per session. Places are shared among people (the waker of a session), the owner's ``first`` with
an extra place; background jobs get the rest (`agent_core.agent.session_runner.Behind`).
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import insort
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
import structlog

from agent_core.agent.session_runner import Behind, RunnerFull, SessionRunner
from agent_core.backoff import BackoffPolicy
from agent_core.messages import SessionKey
from gateway.store.background_job_rows import is_background
from gateway.store.wakeups import RunSession, Work

LoadReadySessions = Callable[[], Awaitable[Sequence[tuple[SessionKey, float]]]]
"""Gives the sessions that have work and in how many seconds: `TurnStore.open_sessions`."""

_FAILED = BackoffPolicy(first_s=1.0, cap_s=300.0, jitter=0.5)
_DELAYS = 4
_log = structlog.get_logger(__name__)
MAX_SESSIONS = 100_000
"""The most waiting sessions."""


@dataclass(eq=False, kw_only=True)
class SessionDispatcher:
    """
    Runs sessions with work: in order per session, in parallel across sessions.

    Args:
        concurrency: Sessions at once, plus one urgent.
        refill: Returns the open sessions after drops: beyond `MAX_SESSIONS`, wake-ups are only counted.
        comes_first: True for urgent work.
        is_owner: True for the owner on a session's channel.
    """

    concurrency: int = 16
    refill: LoadReadySessions | None = None
    comes_first: Callable[[Work], bool] = lambda _: False
    is_owner: Callable[[SessionKey, str], bool] = lambda _session, _person: False

    def __post_init__(self) -> None:
        self._runner = SessionRunner(concurrency=self.concurrency, max_waiting=MAX_SESSIONS)
        self._run_session: RunSession | None = None
        self._failures: dict[SessionKey, int] = {}
        self._delays: dict[SessionKey, list[float]] = {}
        self._first: set[SessionKey] = set()
        self._persons: dict[SessionKey, str] = {}
        self._heap: list[tuple[float, int, SessionKey]] = []
        self._count = 0
        self._rearm = anyio.Event()
        self._overflowed = False
        self._stopped = False
        self.dropped = 0
        """Wake-ups that found no room."""
        self.failed = 0
        """Runs that raised."""

    def wake(
        self, session: SessionKey, *, after_s: float = 0.0, first: bool = False, person: str = ""
    ) -> None:
        """
        There is work, now or after a while. Never blocks; repeated wake-ups of one session are one.

        With ``first`` the session comes before all others, as long as it has work. ``person``: whose work it
        is, as long as it has some; people take turns.
        """
        if self._stopped:
            return
        if person:
            self._persons.setdefault(session, person)
        if first:
            self._first.add(session)
            self._runner.prefer(session)
        if after_s > 0:
            self._wake_at(session, anyio.current_time() + after_s)
        elif not self._runner.has_waiting(session):
            try:
                self._runner.submit(
                    session,
                    partial(self._run_one, session),
                    first=session in self._first,
                    person=self._person_of(session),
                )
            except RunnerFull:
                self._drop()
                self._persons.pop(session, None)

    def _person_of(self, session: SessionKey) -> str | Behind:
        person = self._persons.get(session, "")
        if is_background(session):
            return Behind(f"{session.channel}/{session.conversation}", self.is_owner(session, person))
        return person

    def handle_work(self, work: Work) -> None:
        """Handle the news that there is work (`Wakeups.session`)."""
        self.wake(work.session, after_s=work.after_s, first=self.comes_first(work), person=work.sender)

    def running(self) -> Sequence[SessionKey]:
        """The sessions that run at this moment."""
        return self._runner.running()

    def full(self) -> bool:
        """Return True if every place is taken that a waiting person may have."""
        running = len(self._runner.running())
        return running >= self.concurrency or (running > 0 and self.waiting() > 0)

    def waiting(self) -> int:
        """Return the number of sessions that wait for a place."""
        return self._runner.statistics().waiting

    def count_delayed_sessions(self) -> int:
        """Return the number of sessions that wait for a time."""
        return len(self._delays)

    def stop(self) -> None:
        """Start no more sessions."""
        self._stopped = True
        self._delays.clear()
        self._first.clear()
        self._persons.clear()
        self._heap.clear()
        self._runner.stop()

    async def run(self, run_session: RunSession) -> None:
        """Run sessions until `stop`; then return as soon as nothing runs."""
        self._run_session = run_session
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_time)
            await self._runner.run()
            tasks.cancel_scope.cancel()

    async def _run_one(self, session: SessionKey) -> None:
        assert self._run_session is not None
        try:
            due_s = await self._run_session(session)
        except Exception:  # noqa: BLE001 - the actor outlives its jobs; each is logged and counted
            failures = self._failures[session] = self._failures.get(session, 0) + 1
            self.failed += 1
            delay_s = _FAILED.delay(failures, random=random.random())
            _log.exception(
                "session.failed", session=str(session), failures=failures, retry_in_s=round(delay_s, 1)
            )
            self.wake(session, after_s=delay_s)
        else:
            self._failures.pop(session, None)
            if due_s is not None:
                self.wake(session, after_s=due_s)
        if session not in self._delays and not self._runner.has_waiting(session):
            self._first.discard(session)
            self._persons.pop(session, None)

    def _drop(self) -> None:
        if not self._overflowed:
            _log.warning("dispatch.overflowed", waiting=self.waiting(), delayed=self.count_delayed_sessions())
        self._overflowed = True
        self.dropped += 1
        self._rearm.set()

    def _wake_at(self, session: SessionKey, due_at: float) -> None:
        dues = self._delays.get(session)
        if dues is None:
            if len(self._delays) >= MAX_SESSIONS:
                self._drop()
                self._persons.pop(session, None)
                return
            dues = self._delays[session] = []
        if due_at in dues:
            return
        insort(dues, due_at)
        if len(dues) > _DELAYS:
            # Its work is done with the next later wake-up: late, but not forgotten.
            del dues[-2]
        if due_at in dues:
            self._count += 1
            heapq.heappush(self._heap, (due_at, self._count, session))
            if self._heap[0][1] == self._count:
                self._rearm.set()
        if len(self._heap) > 1024 and len(self._heap) > 2 * _DELAYS * len(self._delays):
            self._sweep()

    def _sweep(self) -> None:
        """Leave out what was joined with other wake-ups."""
        self._heap = [entry for entry in self._heap if entry[0] in self._delays.get(entry[2], ())]
        heapq.heapify(self._heap)

    async def _keep_time(self) -> None:
        while True:
            self._rearm = anyio.Event()
            wait_s = self._wake_due()
            if self._overflowed and self.refill is not None:
                await self._try_refill(self.refill)
                wait_s = min(wait_s, 5.0)
            with anyio.move_on_after(wait_s):
                await self._rearm.wait()

    def _wake_due(self) -> float:
        """Wake whose time has come; returns the seconds to the next one."""
        now = anyio.current_time()
        while self._heap and self._heap[0][0] <= now:
            due_at, _, session = heapq.heappop(self._heap)
            dues = self._delays.get(session, [])
            if due_at in dues:
                dues.remove(due_at)
                if not dues:
                    del self._delays[session]
                self.wake(session)
        return self._heap[0][0] - now if self._heap else math.inf

    async def _try_refill(self, refill: LoadReadySessions) -> None:
        if self.waiting() * 2 > MAX_SESSIONS or self.count_delayed_sessions() * 2 > MAX_SESSIONS:
            return
        self._overflowed = False
        try:
            sessions = await refill()
        except Exception as error:  # noqa: BLE001 - whatever it was, it is tried again
            self._overflowed = True
            _log.warning("dispatch.refill_failed", error=str(error))
            return
        for session, due_s in sessions:
            self.wake(session, after_s=due_s)
