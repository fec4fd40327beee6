"""Operations on conversations: list, show, search, export, reset, and their search index."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Protocol

from pydantic import Field

from agent_core.memory.scopes import OWNER
from agent_core.memory_ports import MemoryPort, SearchPort, SearchRequest
from agent_core.messages import SessionKey
from agent_core.models import HistoryTail, MemoryScope, Message
from agent_core.text import excerpt
from channels.base import Channel
from gateway.errors import NotFound
from gateway.operations.arguments import parse_session, within
from gateway.operations.views import inbox_row, message_line, with_room_names
from gateway.queue.states import InboxState
from gateway.queue.stores import Queue
from gateway.turns.commands.text import for_people

_PAGE = 200
_FOUND_CHARS = 400


class SessionMaintenance(Protocol):
    """Facts about sessions outside of their files; `gateway.turns.post_turn` implements both kinds."""

    async def about(self, session: SessionKey) -> Mapping[str, Any]:
        """The content of the next prompt (``prompt``), and what keeps the rest from being consolidated."""
        ...

    async def reindex(self) -> Mapping[str, Any]:
        """Rebuild the search index."""
        ...

    @property
    def search(self) -> SearchPort:
        """The search in the histories."""
        ...


class SessionOperations:
    """The part of `gateway.operations.service.Operations` that is about conversations."""

    _store: Queue
    _memory: MemoryPort
    _upkeep: SessionMaintenance | None
    _channels: Mapping[str, Channel]

    async def sessions_list(self, limit: int = 200, start: int = 0) -> dict[str, Any]:
        """Conversations with a history, the most recent first; reads no more than those it returns."""
        found, names = [], await self._memory.sessions()
        for name in names[max(0, start) :][: within(limit)]:
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
        return {"sessions": found, "total": len(names)}

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

    async def sessions_search(
        self,
        query: str,
        *,
        session: str = "",
        place: str = "",
        person: str = "",
        days: Annotated[int, Field(ge=0, le=36_500)] = 0,
        limit: int = 20,
    ) -> dict[str, Any]:
        """
        Messages with words of ``query``, the best first, of the owner's conversations or of ``session``.

        ``place`` is part of the name of a conversation or its room, ``person`` of a sender's address; 0 days
        is no limit. ``position`` is where `sessions_page` begins with the message.
        """
        if self._upkeep is None:
            raise NotFound("there is no search index here")
        scope, wanted = OWNER, place.strip().casefold()
        if session:
            scope = MemoryScope.parse(await self._scope_of(parse_session(session)) or str(OWNER))
        answer = await self._upkeep.search.search(
            SearchRequest(
                scope,
                query,
                since=datetime.now(UTC) - timedelta(days=days) if days else None,
                place=partial(self._is_called, session=session, place=wanted) if session or wanted else None,
                person=person.strip(),
                max_results=within(limit),
            )
        )
        rows = [
            {
                "session": hit.session_id,
                "position": hit.position,
                "at": said.timestamp.isoformat() if said.timestamp else None,
                "who": "squidbot" if said.role == "assistant" else said.sender or "",
                "text": excerpt(for_people(said), query, _FOUND_CHARS),
            }
            for hit in answer.hits
            for said in (hit.messages[hit.at],)
        ]
        return {"rows": rows, "more": answer.more, "complete": answer.complete}

    def _is_called(self, name: str, *, session: str, place: str) -> bool:
        row = with_room_names({"session": name}, self._channels)
        return name == session if session else place in f"{name} {row.get('room', '')}".casefold()

    async def _scope_of(self, key: SessionKey) -> str | None:
        await self._known(key)
        return await self._scope(str(key), await self._memory.load_history(str(key), max_messages=1))

    async def sessions_page(
        self, session: str, start: int | None = None, limit: int = _PAGE
    ) -> dict[str, Any]:
        """
        A page of a whole conversation, oldest first; without ``start`` the newest one.

        ``start`` and ``total`` are positions in the history, ``next`` is where the next page starts, or None.
        """
        key = parse_session(session)
        await self._known(key)
        if start is None:
            total = (await self._memory.load_history(str(key), max_messages=1)).total
            start = total - within(limit)
        start = max(0, start)
        page = await self._memory.load_segment(str(key), start=start, max_messages=within(limit))
        following = page.positions[-1] + 1 if page.positions else None
        return {
            "session": str(key),
            "start": start,
            "total": page.total,
            "positions": list(page.positions),
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
        tail = await self._memory.load_history(str(key), max_messages=1)
        if not tail.total and not await self._store.inbox.rows(session=key, limit=1):
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
