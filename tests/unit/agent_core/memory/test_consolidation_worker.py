"""Consolidation in the background: once per session at a time, without anybody waiting, with patience after failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

import anyio
import pytest

from agent_core.memory.consolidation.consolidation_queue import RETRY, ConsolidationQueue
from agent_core.memory.consolidation.consolidation_run import ConsolidationResult
from tests.clock import LoopClock

pytestmark = pytest.mark.virtual_time


class Manager:
    """Consolidates in its way, and notes who was worked on when."""

    def __init__(self, *answers: ConsolidationResult | Exception, takes_s: float = 1.0) -> None:
        self.answers = list(answers) or [ConsolidationResult()]
        self.visits: list[tuple[str, float]] = []
        self.running: list[str] = []
        self.most = 0
        self.twice = False
        self._takes_s = takes_s

    async def consolidate_if_due(self, session_id: str) -> ConsolidationResult:
        self.visits.append((session_id, round(anyio.current_time())))
        self.twice = self.twice or session_id in self.running
        self.running.append(session_id)
        self.most = max(self.most, len(self.running))
        try:
            await anyio.sleep(self._takes_s)
        finally:
            self.running.remove(session_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def while_running(consolidator: ConsolidationQueue, work: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consolidator.run)
        await work()
        tasks.cancel_scope.cancel()


async def test_one_task_per_session_and_few_at_once() -> None:
    """Marked again and again, a session is worked on by one task; of many sessions two at a time."""
    manager = Manager()
    consolidator = ConsolidationQueue(manager, LoopClock())

    async def work() -> None:
        for _ in range(5):
            for number in range(6):
                consolidator.mark_due(f"test/{number}")
            await anyio.sleep(1.7)
        await anyio.sleep(60)

    await while_running(consolidator, work)
    assert not manager.twice
    assert manager.most == 2
    assert {session for session, _ in manager.visits} == {f"test/{number}" for number in range(6)}
    assert consolidator.state()["waiting"] == consolidator.state()["running"] == 0


async def test_marked_while_it_is_worked_on_it_is_worked_on_again() -> None:
    """What was said meanwhile is not forgotten."""
    manager = Manager(takes_s=10)
    consolidator = ConsolidationQueue(manager, LoopClock())

    async def work() -> None:
        consolidator.mark_due("test/a")
        await anyio.sleep(5)
        consolidator.mark_due("test/a")
        await anyio.sleep(60)

    await while_running(consolidator, work)
    assert len(manager.visits) == 2


@pytest.mark.parametrize("answer", [ConsolidationResult(failure="away"), RuntimeError("defect")])
async def test_failures_are_tried_more_and_more_rarely_and_end(
    answer: ConsolidationResult | Exception,
) -> None:
    """A session that fails for a month costs a few calls, is told in the state, and stops no other."""
    manager = Manager(answer)
    consolidator = ConsolidationQueue(manager, LoopClock())

    async def work() -> None:
        consolidator.mark_due("test/a")
        await anyio.sleep(30 * 86_400)
        state = consolidator.state()
        assert (state["failing_sessions"], state["failures"]) == (1, len(manager.visits))
        assert "test/a" not in str(state)
        trouble = consolidator.trouble("test/a")
        assert trouble is not None and trouble["failures"] == len(manager.visits)
        before = len(manager.visits)
        consolidator.mark_due("test/a")  # somebody speaks there again, and its time has come
        await anyio.sleep(86_400)
        assert len(manager.visits) == before + 1
        manager.answers = [ConsolidationResult(segments=2)]
        consolidator.mark_due("test/b")
        await anyio.sleep(10)
        assert consolidator.state()["segments"] == 2
        consolidator.mark_due("test/a")
        await anyio.sleep(86_400)
        assert consolidator.trouble("test/a") is None
        assert consolidator.state()["failing_sessions"] == 0

    await while_running(consolidator, work)
    times = [at for session, at in manager.visits if session == "test/a"]
    gaps = [after - before for before, after in pairwise(times)]
    assert 8 <= len(times) <= 11
    assert gaps[:6] == sorted(gaps[:6])
    assert gaps[0] >= 45


async def test_talk_does_not_shorten_the_wait() -> None:
    """A busy session with a failing model is not tried at every message, but its tasks are done."""
    manager = Manager(ConsolidationResult(failure="away"))
    session_tasks: list[str] = []

    async def task(session_id: str) -> None:
        session_tasks.append(session_id)

    consolidator = ConsolidationQueue(manager, LoopClock(), session_tasks=[task])

    async def work() -> None:
        for _ in range(400):
            consolidator.mark_due("test/a")
            await anyio.sleep(10)

    await while_running(consolidator, work)
    assert len(manager.visits) <= 8
    assert len(session_tasks) >= 400


async def test_a_task_that_fails_is_done_later() -> None:
    """If the history could not be written, nothing is consolidated before it can."""
    manager = Manager()
    fail = True

    async def task(session_id: str) -> None:
        if fail:
            raise OSError("no space")

    consolidator = ConsolidationQueue(manager, LoopClock(), session_tasks=[task])

    async def work() -> None:
        nonlocal fail
        consolidator.mark_due("test/a")
        await anyio.sleep(30)
        assert manager.visits == []
        fail = False
        await anyio.sleep(120)

    await while_running(consolidator, work)
    assert len(manager.visits) == 1


async def test_cancelling_leaves_nothing_behind() -> None:
    """A stop in the middle of a call ends at once."""
    manager = Manager(takes_s=1e6)
    consolidator = ConsolidationQueue(manager, LoopClock())

    async def work() -> None:
        consolidator.mark_due("test/a")
        await anyio.sleep(5)
        assert manager.running == ["test/a"]

    await while_running(consolidator, work)
    assert manager.running == []
    assert consolidator.state()["running"] == 0


def test_the_delays() -> None:
    """From a minute to six hours, never shorter than three quarters of that."""
    assert [RETRY.delay(failures, random=1.0) for failures in (1, 2, 3, 20, 10_000)] == [
        60,
        120,
        240,
        21600,
        21600,
    ]
    assert RETRY.delay(1, random=0.0) == 45
