"""
What is done for a conversation after its turn, while nobody waits: its lines go into their file, the search
index follows, and what has become too long is condensed.
"""

from __future__ import annotations

from typing import Any

import anyio
import structlog

from agent_core.errors import StorageUnavailable
from agent_core.memory.consolidator import Consolidator
from agent_core.memory.manager import MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from agent_core.ports import Clock
from agent_core.storage.search_index import SearchIndex
from gateway import metrics
from gateway.history import HistoryWriter
from gateway.work.port import StoreUnavailable, WorkStore

__all__ = ["Upkeep"]

_log = structlog.get_logger(__name__)


class Upkeep:
    """
    Looks after sessions in the background.

    Args:
        manager: Condenses.
        history: Has lines that may not be in their files yet.
        search: The index.
        store: Where usage is noted.
        clock: For back-off.
    """

    def __init__(
        self,
        *,
        manager: MemoryManager,
        history: HistoryWriter,
        search: SearchIndex,
        store: WorkStore,
        clock: Clock,
    ) -> None:
        self._manager = manager
        self._history = history
        self._search = search
        self._store = store
        self._consolidator = Consolidator(
            manager, clock, chores=(self._file, self._search.update), spent=self._spent
        )
        metrics.watch_consolidation(self._consolidator.state)

    def turn_completed(self, session: SessionKey) -> None:
        """There is something new in this session. Returns at once."""
        self._consolidator.due(str(session))

    async def run(self) -> None:
        """Work until cancelled; nothing that fails comes out of here."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._search.update_all)
            tasks.start_soon(self._consolidator.run)

    def state(self) -> dict[str, Any]:
        """How it goes, in counts."""
        return {"consolidation": self._consolidator.state(), "search": self._search.state()}

    async def about(self, session: SessionKey) -> dict[str, Any]:
        """What the next prompt of a session would hold, and what keeps it from being condensed."""
        preview = await self._manager.preview(str(session))
        return {"prompt": preview, "trouble": self._consolidator.trouble(str(session))}

    async def reindex(self) -> dict[str, Any]:
        """Make the search index anew from the histories."""
        return await self._search.rebuild()

    async def _file(self, session_id: str) -> None:
        await self._history.flush(SessionKey.parse(session_id))

    async def _spent(self, session_id: str, usage: Usage) -> None:
        metrics.TOKENS.labels(Purpose.CONSOLIDATION, "prompt").inc(usage.prompt_tokens)
        metrics.TOKENS.labels(Purpose.CONSOLIDATION, "completion").inc(usage.completion_tokens)
        try:
            await self._store.add_usage(SessionKey.parse(session_id), usage, Purpose.CONSOLIDATION)
        except (StoreUnavailable, StorageUnavailable) as error:
            _log.warning("usage.not_noted", session=session_id, error=str(error))
