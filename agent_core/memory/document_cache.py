"""
Caches memory documents for prompts: an unreadable one costs the memory, not the answer. A disk that is full
or away comes back, so it is worth waiting for. A folder instead of a document stays until a person moves it;
until then, prompts are built without the document, and that is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from agent_core.errors import DocumentUnusable
from agent_core.memory_ports import MemoryPort
from agent_core.models import MemoryDocument, MemoryScope, Message

log = structlog.get_logger(__name__)


class DocumentCache:
    """Reads documents. ``on_unusable`` is called once when a document becomes unreadable, with the reason."""

    def __init__(self, storage: MemoryPort, on_unusable: Callable[[str], None] = lambda _: None) -> None:
        self._on_unusable = on_unusable
        self._storage = storage
        self._unusable: set[MemoryScope] = set()

    async def document(self, scope: MemoryScope) -> MemoryDocument:
        """The memory document; empty if something else is in its place. Raises `StorageUnavailable`."""
        try:
            document = await self._storage.load_global_memory(scope)
        except DocumentUnusable as error:
            if scope not in self._unusable:
                self._unusable.add(scope)
                log.error("memory.unusable", error=str(error), **error.fields)
                self._on_unusable(str(error))
            return MemoryDocument()
        self._unusable.discard(scope)
        return document

    async def document_for(self, messages: Sequence[Message]) -> MemoryDocument:
        """The memory document to show with these messages; an empty one if they name none."""
        told = next((each.scope for each in reversed(messages) if each.scope), None)
        try:
            scope = MemoryScope.parse(told) if told is not None else None
        except ValueError:
            scope = None
        return await self.document(scope) if scope is not None else MemoryDocument()
