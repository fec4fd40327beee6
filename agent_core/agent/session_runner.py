"""
Runs the jobs of sessions: in order within one session, concurrently across sessions. A session's FIFO queue
exists only while it has work. At most ``concurrency`` jobs run; places go round robin over people, who have
at most half of them, so that much work of one does not delay others. Urgent sessions (``first``) get the next
place or one extra. Background work (`Behind`) runs only when nobody else waits, at most three jobs per
conversation, never in the last of several places, and the last of the rest is reserved for the owner. One
event loop, no locks; `SessionRunner.submit` never waits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import TaskGroup

from agent_core.messages import SessionKey

Job = Callable[[], Awaitable[None]]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Behind:
    """
    The key of background work, which runs after the work of all people; ``conversation`` is where it was
    requested.
    """

    conversation: str
    is_owners: bool = False


_Person = str | SessionKey | Behind
"""Whose work it is; a session of which nobody says it stands for itself."""


class RunnerFull(Exception):
    """The maximum number of jobs already waits."""


class RunnerStopped(Exception):
    """The runner accepts no more jobs."""


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """The numbers of queues, waiting and running jobs now, and of jobs that have ended and failed so far."""

    sessions: int
    waiting: int
    running: int
    finished: int
    failed: int


@dataclass(slots=True)
class _SessionQueue:
    jobs: deque[Job]
    person: _Person
    running: bool = False
    first: bool = False


class SessionRunner:
    """
    Runs jobs by session.

    ``concurrency`` counts all sessions, plus one for urgent jobs; a person has at most half of it. Above
    ``max_waiting`` jobs are refused with `RunnerFull`.
    """

    def __init__(self, *, concurrency: int = 16, max_waiting: int = 100_000) -> None:
        if concurrency < 1 or max_waiting < 1:
            raise ValueError("a runner has room for one job at least")
        self._concurrency = concurrency
        self._max_waiting = max_waiting
        self._queues: dict[SessionKey, _SessionQueue] = {}
        self._each = max(1, concurrency // 2)
        self._line: deque[_Person] = deque()
        self._of_person: dict[_Person, deque[SessionKey]] = {}
        self._busy: Counter[_Person] = Counter()
        self._front: deque[SessionKey] = deque()
        self._waiting = 0
        self._running = 0
        self._behind = self._of_owner = 0
        self._finished = 0
        self._failed = 0
        self._tasks: TaskGroup | None = None
        self._closed = False
        self._quiet = anyio.Event()

    def submit(
        self, session: SessionKey, job: Job, *, first: bool = False, person: str | Behind = ""
    ) -> None:
        """Queue a job of ``person`` behind the session's others. Raises RunnerFull or RunnerStopped."""
        if self._closed:
            raise RunnerStopped
        if self._waiting >= self._max_waiting:
            raise RunnerFull
        queue = self._queues.get(session)
        if queue is None:
            queue = self._queues[session] = _SessionQueue(deque(), person or session)
        queue.jobs.append(job)
        self._waiting += 1
        queue.first = queue.first or first
        if len(queue.jobs) == 1 and not queue.running:
            self._enqueue(session, queue)
        self._fill()

    def prefer(self, session: SessionKey) -> None:
        """Prefer a session until none of its jobs waits or runs."""
        queue = self._queues.get(session)
        if queue is None or queue.first:
            return
        queue.first = True
        if queue.jobs and not queue.running:
            self._left(session, queue.person)
            self._front.append(session)
            self._fill()

    async def run(self) -> None:
        """Run jobs until stopped or drained. A job that raises is logged and disturbs no other."""
        if self._tasks is not None:
            raise RuntimeError("this runner is already running")
        try:
            async with anyio.create_task_group() as self._tasks:
                self._fill()
                self._look_if_quiet()
                await self._quiet.wait()
        finally:
            self._tasks = None

    def stop(self) -> None:
        """Start no more jobs: running ones may finish, waiting ones are dropped."""
        self._closed = True
        for session in [
            session for session, queue in self._queues.items() if queue.jobs and not queue.running
        ]:
            del self._queues[session]
        self._front.clear()
        self._line.clear()
        self._of_person.clear()
        for queue in self._queues.values():
            queue.jobs.clear()
        self._waiting = 0
        self._look_if_quiet()

    def drain(self) -> None:
        """Accept no more jobs, but run those that wait."""
        self._closed = True
        self._look_if_quiet()

    def running(self) -> tuple[SessionKey, ...]:
        """The sessions with a running job."""
        return tuple(session for session, queue in self._queues.items() if queue.running)

    def has_waiting(self, session: SessionKey) -> bool:
        """Return True if a job of this session is queued."""
        queue = self._queues.get(session)
        return queue is not None and bool(queue.jobs)

    def statistics(self) -> RunnerStatistics:
        """The counts for metrics."""
        return RunnerStatistics(
            sessions=len(self._queues),
            waiting=self._waiting,
            running=self._running,
            finished=self._finished,
            failed=self._failed,
        )

    def _fill(self) -> None:
        while self._tasks is not None:
            if self._front and self._running <= self._concurrency:
                session = self._front.popleft()
            elif self._running < self._concurrency and (person := self._next()) is not None:
                session = self._taken_from(person)
            else:
                return
            queue = self._queues[session]
            queue.running = True
            self._busy[queue.person] += 1
            self._count_behind(queue.person, 1)
            self._waiting -= 1
            self._running += 1
            self._tasks.start_soon(self._run_one, session, queue, queue.jobs.popleft())

    def _count_behind(self, person: _Person, more: int) -> None:
        if isinstance(person, Behind):
            self._behind += more
            self._of_owner += more * person.is_owners

    def _next(self) -> _Person | None:
        """Return the first in line who has not used up their share of the places."""
        behind: Behind | None = None
        left = max(1, self._concurrency - 1) - self._behind
        for person in self._line:
            if not isinstance(person, Behind):
                if self._busy[person] < self._each:
                    return person
            elif behind is None and self._busy[person] < 3:
                reserved = self._concurrency > 2 and not person.is_owners and not self._of_owner
                behind = person if left > reserved else None
        return behind

    def _taken_from(self, person: _Person) -> SessionKey:
        """The session of theirs that waits longest; with others they stand at the end of the line again."""
        session = person if isinstance(person, SessionKey) else self._of_person[person][0]
        self._left(session, person)
        if person in self._of_person:
            self._line.remove(person)
            self._line.append(person)
        return session

    def _left(self, session: SessionKey, person: _Person) -> None:
        """Note that a session does not wait any more; nor does its person, if it was the last one."""
        waiting = self._of_person.get(person)
        if waiting is not None:
            waiting.remove(session)
            if waiting:
                return
            del self._of_person[person]
        self._line.remove(person)

    async def _run_one(self, session: SessionKey, queue: _SessionQueue, job: Job) -> None:
        try:
            await job()
        except Exception:  # noqa: BLE001 - the actor outlives its jobs; each is logged and counted
            self._failed += 1
            _log.exception("session.failed", session=str(session))
        except BaseException:
            self.stop()  # `run` is being cancelled: whatever waits must not begin now
            raise
        finally:
            self._finished += 1
            self._running -= 1
            queue.running = False
            self._busy[queue.person] -= 1
            self._count_behind(queue.person, -1)
            if not self._busy[queue.person]:
                del self._busy[queue.person]
            if queue.jobs:
                self._enqueue(session, queue)
            else:
                del self._queues[session]
            self._fill()
            self._look_if_quiet()

    def _look_if_quiet(self) -> None:
        if self._closed and not self._running and not self._line and not self._front:
            self._quiet.set()

    def _enqueue(self, session: SessionKey, queue: _SessionQueue) -> None:
        if queue.first:
            self._front.append(session)
            return
        waiting = self._of_person.get(queue.person)
        if waiting is None:
            self._line.append(queue.person)
            if queue.person == session:
                return
            waiting = self._of_person[queue.person] = deque()
        waiting.append(session)
