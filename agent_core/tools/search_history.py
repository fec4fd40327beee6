"""
The tool ``search_history``: a model searches what was said earlier, in this and in other conversations. The
caller decides the scope, as for ``memory_write``: no argument chooses whose conversations are searched. Hits
are quoted between tags that they cannot close, with their author, place and time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from agent_core.memory_ports import SearchPort, SearchRequest
from agent_core.models import MemoryScope, Message, SearchAnswer, SearchHit, ToolResult, tool_parameters
from agent_core.ports import Clock
from agent_core.prompt import fence
from agent_core.provenance import join_origins
from agent_core.text import excerpt
from agent_core.tools.effects import Effect

_MAX_RESULTS = 20
_HERE = ("here", "this conversation", "this room")
_STILL_FILLING = "(The index is still being filled: older messages cannot be searched yet. Try again later.)"


class SearchHistoryTool:
    """The tool ``search_history`` of one run; finds nothing said before ``not_before``."""

    name = "search_history"
    effect = Effect.PRIVATE_READ
    repeatable = True
    description = "Search earlier talk: 5-8 words with synonyms. Limits: days, place, person."
    parameters = tool_parameters("query", query="string", days="integer", place="string", person="string")

    def __init__(
        self,
        search: SearchPort,
        session_id: str,
        *,
        scope: MemoryScope,
        clock: Clock,
        not_before: datetime | None = None,
        room_name: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._search = search
        self._session_id = session_id
        self._scope = scope
        self._clock = clock
        self._not_before = not_before
        self._room_name = room_name

    async def execute(self, **arguments: Any) -> ToolResult:
        """Search for ``query``, at most ``days`` back, in a ``place``, for words of a ``person``."""
        query, days = arguments.get("query"), arguments.get("days")
        if not isinstance(query, str) or not any(char.isalnum() for char in query):
            return ToolResult(content="'query' must have at least one word.", is_error=True)
        count = arguments.get("max_results")
        count = 5 if count is None else min(max(1, int(count)), _MAX_RESULTS)
        since = self._not_before
        if days is not None and 0 <= int(days) <= 36_500:
            start = self._clock.now() - timedelta(days=int(days))
            since = start if since is None else max(start, since)
        place = str(arguments.get("place") or "").strip().casefold()
        answer = await self._search.search(
            SearchRequest(
                self._scope,
                query,
                since,
                place=(lambda session: self._is_called(session, place)) if place else None,
                person=str(arguments.get("person") or ""),
                max_results=count,
            )
        )
        shown = [line for hit in answer.hits for line in hit.messages]
        return ToolResult(
            content=self._describe_answer(answer, query),
            origins=join_origins(*(line.sources for line in shown)),
        )

    def _is_called(self, session: str, place: str) -> bool:
        if place in _HERE:
            return session == self._session_id
        return place in f"{session} {self._room_name(session)}".casefold()

    def _describe_answer(self, answer: SearchAnswer, query: str) -> str:
        parts = [fence("found", self._hit(hit, query)) for hit in answer.hits]
        if not answer.complete:
            parts.append(_STILL_FILLING if parts else f"Nothing was found so far. {_STILL_FILLING}")
        elif not parts:
            parts = ["Nothing was found."]
        if answer.more > 0:
            parts.append(f"({answer.more} more with some of the words.)")
        return "\n".join(parts)

    def _hit(self, hit: SearchHit, query: str) -> str:
        found = hit.messages[hit.at]
        when = (
            f"{found.timestamp.astimezone():%Y-%m-%d %H:%M %Z}" if found.timestamp else "at an unknown time"
        )
        where = "this conversation" if hit.session_id == self._session_id else hit.session_id
        lines = [f"{when}, {where}"]
        for number, message in enumerate(hit.messages):
            if number != hit.at and not self._may_be_shown(message):
                continue
            mark, limit = ("> ", 600) if number == hit.at else ("  ", 200)
            lines.append(f"{mark}{_who(message)}: {excerpt(message.content, query, limit, hit.part(number))}")
        return "\n".join(lines)

    def _may_be_shown(self, message: Message) -> bool:
        at, limit = message.timestamp, self._not_before
        return limit is None or (at is not None and at >= limit)


def _who(message: Message) -> str:
    return "you" if message.role == "assistant" else message.sender or "user"
