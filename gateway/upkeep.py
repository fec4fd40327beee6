"""
What is done for a conversation after its turn, while nobody waits: its lines go into their file, the search
index follows, and what has become too long is condensed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import structlog

from agent_core.errors import StorageUnavailable
from agent_core.memory.consolidator import Consolidator
from agent_core.memory.manager import DEFAULT_CONTEXT_TOKENS, MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from agent_core.ports import Clock, MemoryPort, SkillsPort
from agent_core.storage.search_index import SearchIndex
from gateway import metrics
from gateway.history import HistoryWriter
from gateway.work.port import StoreUnavailable, WorkStore

if TYPE_CHECKING:
    from agent_core.llm.build import Models
    from gateway.settings import Settings

__all__ = ["Upkeep", "UpkeepAtRest", "memory_manager"]

_SETTLED_AFTER_S = 5.0

_log = structlog.get_logger(__name__)


def memory_manager(
    settings: Settings, memory: MemoryPort, skills: SkillsPort, models: Models
) -> MemoryManager:
    """The memory manager of these settings."""
    agents = settings.agents
    return MemoryManager(
        memory,
        skills=skills,
        llm=models.pool(agents.consolidation_pool),
        consolidation_threshold=agents.consolidation_threshold,
        consolidation_tokens=agents.consolidation_tokens,
        keep_recent_ratio=agents.keep_recent_ratio,
        context_tokens=min(DEFAULT_CONTEXT_TOKENS, models.context_tokens[models.default_pool] * 3 // 4),
        always_skills=settings.skills.always,
    )


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
            tasks.start_soon(self._consolidator.run)
            await anyio.sleep(_SETTLED_AFTER_S)  # the start has enough to do
            await self._search.update_all()

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


class UpkeepAtRest:
    """
    The same knowledge while no daemon runs: for commands on the home folder.

    Args:
        manager: Builds prompts.
        search: The index.
    """

    def __init__(self, manager: MemoryManager, search: SearchIndex) -> None:
        self._manager = manager
        self._search = search

    async def about(self, session: SessionKey) -> dict[str, Any]:
        """What the next prompt of a session would hold."""
        return {"prompt": await self._manager.preview(str(session)), "trouble": None}

    async def reindex(self) -> dict[str, Any]:
        """Make the search index anew from the histories."""
        try:
            return await self._search.rebuild()
        finally:
            await self._search.aclose()
