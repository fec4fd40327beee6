"""Histories of conversations as commands read them, with what was said just now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent_core.memory_ports import MemoryPort
from agent_core.messages import SessionKey
from agent_core.models import HistoryTail

PAGE, PAGE_CHARS = 5_000, 8_000_000
"""
So much of a history is read at a time. Each page may read the file from its beginning, so small pages of a
long conversation take the processor for many seconds.
"""


@dataclass(frozen=True, slots=True)
class Histories:
    """Reads histories of all sessions; ``flush`` waits until one can be read in full."""

    memory: MemoryPort
    flush: Callable[[SessionKey], Awaitable[None]]

    async def tail(
        self, session: SessionKey, *, max_messages: int | None = None, max_chars: int | None = None
    ) -> HistoryTail:
        """Summary and newest lines, as of one moment. Raises `StoreUnavailable` or `StorageUnavailable`."""
        await self.flush(session)
        return await self.memory.load_history(str(session), max_messages=max_messages, max_chars=max_chars)
