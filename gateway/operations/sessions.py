"""Operations on conversations: list, show, export, reset, and their search index."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from agent_core.memory_ports import MemoryPort
from agent_core.messages import SessionKey
from agent_core.models import HistoryTail, Message
from gateway.errors import NotFound
from gateway.operations.arguments import parse_session, within
from gateway.operations.views import inbox_row, message_line
from gateway.queue.states import InboxState
from gateway.queue.stores import Queue

_PAGE = 200


class SessionMaintenance(Protocol):
    """Facts about sessions outside of their files; `gateway.turns.post_turn` implements both kinds."""

    async def about(self, session: SessionKey) -> Mapping[str, Any]:
        """The content of the next prompt (``prompt``), and what keeps the rest from being consolidated."""
        ...

    async def reindex(self) -> Mapping[str, Any]:
        """Rebuild the search index."""
        ...


class SessionOperations:
    """The part of `gateway.operations.service.Operations` that is about conversations."""

    _store: Queue
    _memory: MemoryPort
    _upkeep: SessionMaintenance | None

    async def sessions_list(self, limit: int = 200) -> dict[str, Any]:
        """Conversations with a history, the most recent first."""
        found = []
        for name in await self._memory.sessions():
            tail = await self._memory.load_history(name, max_messages=1)
            last = await self._last_at(name, tail)
            found.append(
                {
                    "session": name,
                    "messages": tail.total,
                    "unconsolidated": tail.unconsolidated,
                    "damaged_lines": tail.skipped_lines,
                    "last_at": last.isoformat() if last else None,
                }
            )
        found.sort(key=lambda one: (str(one["last_at"] or ""), str(one["session"])), reverse=True)
        return {"sessions": found[: within(limit)], "total": len(found)}

    async def sessions_show(self, session: str, limit: int = 20) -> dict[str, Any]:
        """The newest messages of a conversation, its summary, its next prompt, and pending messages."""
        key = parse_session(session)
        await self._known(key)
        about = await self._upkeep.about(key) if self._upkeep is not None else {}
        tail = await self._memory.load_history(str(key), max_messages=within(limit))
        waiting = await self._store.inbox.rows(
            states=[InboxState.READY, InboxState.RUNNING], session=key, limit=50
        )
        return {
            "session": str(key),
            "messages": tail.total,
            "unconsolidated": tail.unconsolidated,
            "cursor": tail.cursor,
            "damaged_lines": tail.skipped_lines,
            "scope": await self._scope(str(key), tail),
            **about,
            "summary": await self._memory.load_session_summary(str(key)),
            "newest": [message_line(message) for message in tail.messages],
            "waiting": [inbox_row(row, preview=80) for row in waiting],
        }

    async def sessions_page(self, session: str, start: int = 0, limit: int = _PAGE) -> dict[str, Any]:
        """A page of a whole conversation, oldest first; ``next`` is where the next page starts, or None."""
        key = parse_session(session)
        await self._known(key)
        page = await self._memory.load_segment(str(key), start=max(0, start), max_messages=within(limit))
        following = page.positions[-1] + 1 if page.positions else None
        return {
            "session": str(key),
            "messages": [message_line(message) for message in page.messages],
            "next": following if following is not None and following < page.total else None,
        }

    async def sessions_reset(self, session: str) -> dict[str, Any]:
        """
        Reset a conversation: its history leaves the prompt, and pending messages are dropped.

        The file of its history stays as it is: histories are never rewritten.
        """
        key = parse_session(session)
        await self._known(key)
        await self._store.inbox.reset_session(key)
        tail = await self._memory.load_history(str(key), max_messages=1)
        await self._memory.save_consolidation(str(key), summary="", cursor=tail.total)
        return {"session": str(key), "forgotten": tail.unconsolidated}

    async def sessions_reindex(self) -> dict[str, Any]:
        """Rebuild the search index from the histories."""
        if self._upkeep is None:
            raise NotFound("there is no search index here")
        return dict(await self._upkeep.reindex())

    async def _known(self, key: SessionKey) -> None:
        if str(key) not in await self._memory.sessions() and not await self._store.inbox.rows(
            session=key, limit=1
        ):
            raise NotFound(f"there is no session {key}; `squidbot sessions list` lists the sessions")

    async def _last_at(self, name: str, tail: HistoryTail) -> datetime | None:
        """Return the time of the last message, even if the conversation was reset after it."""
        last = await self._last(name, tail)
        return last.timestamp if last else None

    async def _scope(self, name: str, tail: HistoryTail) -> str | None:
        """Return the memory scope of the last turn, even if the conversation was reset after it."""
        last = await self._last(name, tail)
        return last.scope if last else None

    async def _last(self, name: str, tail: HistoryTail) -> Message | None:
        if not tail.messages and tail.total:
            tail = await self._memory.load_segment(name, start=tail.total - 1, max_messages=1)
        return tail.messages[-1] if tail.messages else None
