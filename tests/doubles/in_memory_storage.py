"""
Memory that is gone with the process: the twin of `JsonlMemory` for tests and for trying things out.

It keeps the same contract (``tests/contract/memory.py``) and chooses from a history by the same function.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from agent_core.errors import CursorMoved, MemoryConflict
from agent_core.messages import SessionKey
from agent_core.models import HistoryTail, MemoryDocument, MemoryScope, Message
from agent_core.ports import Clock
from agent_core.prompt_budget import message_chars
from agent_core.provenance import Origins
from agent_core.storage.history_lines import stamp, storable
from agent_core.storage.history_paging import Entry, newest, oldest
from agent_core.storage.layout import folder_name
from agent_core.storage.memory_files import Version

_RECENT_IDS = 1000


@dataclass(slots=True)
class _Conversation:
    messages: list[Message] = field(default_factory=list)
    cursor: int = 0
    summary: str = ""
    private: frozenset[str] = frozenset()
    origins: Origins = ()

    def entry(self, position: int) -> Entry:
        message = self.messages[position]
        return Entry(position, position, message, message_chars(message))


class InMemoryMemory:
    """
    The `MemoryPort` without a disk.

    Args:
        clock: Dates what has no date yet; without one, the clock on the wall.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock
        self._conversations: dict[str, _Conversation] = {}
        self._versions: dict[MemoryScope, list[Version]] = {}

    async def load_history(
        self, session_id: str, *, max_messages: int | None = None, max_chars: int | None = None
    ) -> HistoryTail:
        """See `MemoryPort`."""
        talk = self._talk(session_id)
        total = len(talk.messages)
        tail = newest(
            (talk.entry(position) for position in range(total - 1, -1, -1)),
            cursor=talk.cursor,
            total=total,
            max_messages=max_messages,
            max_chars=max_chars,
        )
        return replace(tail, summary=talk.summary, private=talk.private, origins=talk.origins)

    async def load_segment(
        self, session_id: str, *, start: int, max_messages: int, max_chars: int | None = None
    ) -> HistoryTail:
        """See `MemoryPort`."""
        talk = self._talk(session_id)
        total = len(talk.messages)
        entries = (talk.entry(position) for position in range(max(0, start), total))
        tail = oldest(
            entries, cursor=talk.cursor, total=total, max_messages=max_messages, max_chars=max_chars
        )
        return replace(tail, summary=talk.summary, private=talk.private, origins=talk.origins)

    async def last_messages(self, session_ids: Sequence[str]) -> list[HistoryTail]:
        """See `MemoryPort`."""
        tails = [await self.load_history(each, max_messages=1) for each in session_ids]
        return [
            tail
            if tail.messages or not tail.total
            else await self.load_segment(each, start=tail.total - 1, max_messages=1)
            for each, tail in zip(session_ids, tails, strict=True)
        ]

    async def append_message(self, session_id: str, *messages: Message, durable: bool = False) -> None:
        """See `MemoryPort`."""
        talk = self._talk(session_id)
        known = {message.id for message in talk.messages[-_RECENT_IDS:]} - {None}
        for message in messages:
            if message.id is None or message.id not in known:
                talk.messages.append(stamp(message, self._now()))
                known.add(message.id)

    async def sync_history(self, session_id: str) -> None:
        """See `MemoryPort`."""
        self._talk(session_id)

    async def load_global_memory(self, scope: MemoryScope) -> MemoryDocument:
        """See `MemoryPort`."""
        versions = self._document(scope)
        return versions[-1].document if versions else MemoryDocument()

    async def save_global_memory(
        self,
        scope: MemoryScope,
        text: str,
        *,
        base_version: int | None = None,
        session_id: str = "",
        turn: str = "",
        origins: Origins = (),
    ) -> MemoryDocument:
        """See `MemoryPort`."""
        current = await self.load_global_memory(scope)
        if current.version and current.text == storable(text):
            return current
        if base_version is not None and base_version != current.version:
            raise MemoryConflict(current_text=current.text, current_version=current.version)
        document = MemoryDocument(storable(text), current.version + 1, origins)
        self._document(scope).append(Version(document, self._now(), session_id, turn))
        return document

    async def memory_versions(self, scope: MemoryScope) -> list[tuple[MemoryDocument, datetime, str, str]]:
        """See `MemoryPort`."""
        return [
            (each.document, each.written_at, each.session_id, each.turn) for each in self._document(scope)
        ]

    async def memory_scopes(self) -> list[MemoryScope]:
        """See `MemoryPort`."""
        return [scope for scope, versions in self._versions.items() if versions]

    async def load_session_summary(self, session_id: str) -> str:
        """See `MemoryPort`."""
        return self._talk(session_id).summary

    async def save_session_summary(self, session_id: str, summary: str) -> None:
        """See `MemoryPort`."""
        self._talk(session_id).summary = storable(summary)

    async def load_consolidated_cursor(self, session_id: str) -> int:
        """See `MemoryPort`."""
        return self._talk(session_id).cursor

    async def save_consolidated_cursor(self, session_id: str, cursor: int) -> None:
        """See `MemoryPort`."""
        talk = self._talk(session_id)
        talk.cursor = min(max(0, cursor), len(talk.messages))

    async def save_consolidation(
        self,
        session_id: str,
        *,
        summary: str,
        cursor: int,
        base_cursor: int | None = None,
        private: Collection[str] = (),
        origins: Origins = (),
    ) -> None:
        """See `MemoryPort`."""
        if base_cursor is not None and base_cursor != self._talk(session_id).cursor:
            raise CursorMoved(f"the cursor is not at {base_cursor} any more")
        await self.save_session_summary(session_id, summary)
        await self.save_consolidated_cursor(session_id, cursor)
        self._talk(session_id).private = frozenset(private)
        self._talk(session_id).origins = tuple(origins)

    async def sessions(self) -> list[str]:
        """See `MemoryPort`."""
        found = [(name, talk) for name, talk in self._conversations.items() if talk.messages]
        found.sort(key=lambda each: str(each[1].messages[-1].timestamp or ""), reverse=True)
        return [name for name, _ in found]

    # ── inside ──

    def _talk(self, session_id: str) -> _Conversation:
        SessionKey.parse(session_id)
        return self._conversations.setdefault(session_id, _Conversation())

    def _document(self, scope: MemoryScope) -> list[Version]:
        if scope.kind != "owner":
            folder_name(scope.name)
        return self._versions.setdefault(scope, [])

    def _now(self) -> datetime:
        return self._clock.now() if self._clock is not None else datetime.now(UTC)
