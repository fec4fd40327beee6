"""
Work for a conversation after its turn, while nobody waits: its lines go into their file, the search index
follows, and what has become too long is consolidated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio

from agent_core.memory.consolidation.consolidation_queue import ConsolidationQueue
from agent_core.memory.consolidation.consolidation_run import ConsolidationResult
from agent_core.memory.manager import MemoryManager
from agent_core.memory.scopes import OWNER
from agent_core.memory_ports import SearchIndexPort
from agent_core.messages import SessionKey
from agent_core.models import Purpose
from agent_core.ports import Clock
from gateway.budget.budget_policy import wait_s
from gateway.budget.metering import Metering
from gateway.observability import metrics
from gateway.store.wakeups import Wakeups
from gateway.turns.history_writer import HistoryWriter


class PostTurn:
    """Does the work after turns in the background; ``history`` may have unwritten lines."""

    def __init__(
        self,
        *,
        manager: MemoryManager,
        history: HistoryWriter,
        search: SearchIndexPort,
        spending: Metering,
        clock: Clock,
        wakeups: Wakeups,
    ) -> None:
        self._manager = manager
        self._history = history
        self.search = search
        self._consolidator = ConsolidationQueue(
            MeteredConsolidation(manager, spending, clock),
            clock,
            session_tasks=(self._file, self.search.update),
        )
        metrics.watch_consolidation(self._consolidator.state)
        wakeups.history.connect(self._grown)

    def _grown(self, session: SessionKey) -> None:
        """Note that the history of a session has grown. Returns at once."""
        self._consolidator.mark_due(str(session))

    async def run(self) -> None:
        """Work until cancelled; nothing that fails comes out of here."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._consolidator.run)
            await anyio.sleep(5.0)  # the start has enough to do
            await self.search.update_all()

    def state(self) -> dict[str, Any]:
        """The state of consolidation, in counts."""
        return {"consolidation": self._consolidator.state(), "search": self.search.state()}

    async def about(self, session: SessionKey) -> dict[str, Any]:
        """The content of the next prompt of a session, and what keeps the rest from being consolidated."""
        preview = await self._manager.preview(str(session))
        return {"prompt": preview, "trouble": self._consolidator.trouble(str(session))}

    async def reindex(self) -> dict[str, Any]:
        """Rebuild the search index from the histories."""
        return await self.search.rebuild()

    async def _file(self, session_id: str) -> None:
        await self._history.settle(SessionKey.parse(session_id))


class MeteredConsolidation:
    """
    Consolidates, with a meter per visit.

    Conversations not of the owner alone count as others' share, so that the owner's reserve is kept.
    """

    def __init__(self, manager: MemoryManager, spending: Metering, clock: Clock) -> None:
        self._manager = manager
        self._spending = spending
        self._clock = clock

    async def consolidate_if_due(self, session_id: str) -> ConsolidationResult:
        """Consolidate as `MemoryManager` does; what the budget refuses is deferred, and nothing is lost."""
        owner = await self._manager.last_scope(session_id) == str(OWNER)
        meter = self._spending.meter(SessionKey.parse(session_id), Purpose.CONSOLIDATION, owner=owner)
        try:
            with self._spending.use_meter(meter):
                done = await self._manager.consolidate_if_due(session_id)
        except Exception:
            metrics.CONSOLIDATIONS.labels("failed").inc()
            raise
        finally:
            await meter.end()
        metrics.CONSOLIDATIONS.labels("done").inc(done.segments)
        if not done.failure:
            return done
        metrics.CONSOLIDATIONS.labels("failed" if meter.refused is None else "deferred").inc()
        if meter.refused is None:
            return done
        wait = wait_s(self._clock.now(), self._spending.limits)
        return replace(done, failure=str(meter.refused), wait_s=wait)


class OfflinePostTurn:
    """The same knowledge while no daemon runs, for commands on the home folder."""

    def __init__(self, manager: MemoryManager, search: SearchIndexPort) -> None:
        self._manager = manager
        self.search = search

    async def about(self, session: SessionKey) -> dict[str, Any]:
        """The content of the next prompt of a session."""
        return {"prompt": await self._manager.preview(str(session)), "trouble": None}

    async def reindex(self) -> dict[str, Any]:
        """Rebuild the search index from the histories."""
        try:
            return await self.search.rebuild()
        finally:
            await self.search.aclose()
