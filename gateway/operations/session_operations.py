"""Operations on conversations: list, show, search, export, reset, and their search index."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_core.operation import operation
from gateway.errors import NotFound
from gateway.operations import render
from gateway.operations.operation_arguments import RequestInvalid, capped_limit, parse_session
from gateway.operations.operation_context import OperationContext
from gateway.store.states import InboxState

if TYPE_CHECKING:
    from agent_core.messages import SessionKey

_NEEDS = ("home", "search")
_MAX_DAYS = 36_500
_PAGE = 200


@operation("sessions list", writes=False, render=render.sessions)
async def list_sessions(context: OperationContext, *, limit: int = 200, start: int = 0) -> dict[str, Any]:
    """
    List conversations, the most recent first.

    Args:
        limit: Maximum number of lines.
        start: Leave out this many.
    """
    names = await context.memory.sessions()
    page = names[max(0, start) :][: capped_limit(limit)]
    found = []
    for name, tail in zip(page, await context.memory.last_messages(page), strict=True):
        last = tail.messages[-1].timestamp if tail.messages else None
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


@operation("sessions show", writes=False, needs=_NEEDS, render=render.session)
async def show_session(context: OperationContext, session: str, *, limit: int = 20) -> dict[str, Any]:
    """
    Show a conversation: its newest messages, its summary, the size of its next prompt, and pending messages.

    Args:
        session: Its name, as shown by the list.
        limit: Maximum number of messages.
    """
    from gateway.operations.operation_views import inbox_row, message_line

    key = parse_session(session)
    await _known(context, key)
    about = await context.upkeep.about(key) if context.upkeep is not None else {}
    tail = await context.memory.load_history(str(key), max_messages=capped_limit(limit))
    waiting = await context.store.inbox.rows(
        states=[InboxState.READY, InboxState.RUNNING], session=key, limit=50
    )
    return {
        "session": str(key),
        "messages": tail.total,
        "unconsolidated": tail.unconsolidated,
        "cursor": tail.cursor,
        "damaged_lines": tail.skipped_lines,
        "scope": await _scope(context, key),
        **about,
        "summary": await context.memory.load_session_summary(str(key)),
        "newest": [message_line(message) for message in tail.messages],
        "waiting": [inbox_row(row, preview=80) for row in waiting],
    }


@operation("sessions search", writes=False, needs=_NEEDS, render=render.found_messages)
async def search_sessions(
    context: OperationContext,
    query: str,
    *,
    session: str = "",
    place: str = "",
    person: str = "",
    days: int = 0,
    limit: int = 20,
) -> dict[str, Any]:
    """
    Search your conversations, the best first.

    Args:
        query: What to look for; words between double quotes must occur as they stand.
        session: Search in this conversation instead, also if it is somebody else's.
        place: Only where the name of the conversation or its room has this.
        person: Only what people with this in their address have said.
        days: Only of so many days (default: all).
        limit: Maximum number of messages.
    """
    from agent_core.memory.scopes import OWNER
    from agent_core.memory_ports import SearchRequest
    from agent_core.models import MemoryScope
    from gateway.turns.commands.command_text import excerpt_for_people

    if context.upkeep is None:
        raise NotFound("there is no search index here")
    if not 0 <= days <= _MAX_DAYS:
        raise RequestInvalid(f"the days must be 0 to {_MAX_DAYS}, not {days}")
    scope, wanted = OWNER, place.strip().casefold()
    if session:
        key = parse_session(session)
        await _known(context, key)
        scope = MemoryScope.parse(await _scope(context, key) or str(OWNER))
    answer = await context.upkeep.search.search(
        SearchRequest(
            scope,
            query,
            since=datetime.now(UTC) - timedelta(days=days) if days else None,
            place=partial(_is_called, context, session=session, place=wanted) if session or wanted else None,
            person=person.strip(),
            max_results=capped_limit(limit),
        )
    )
    rows = [
        {
            "session": hit.session_id,
            "position": hit.position,  # where a page begins with it
            "at": said.timestamp.isoformat() if said.timestamp else None,
            "who": "squidbot" if said.role == "assistant" else said.sender or "",
            "text": excerpt_for_people(said, query, 400, hit.part(hit.at)),
        }
        for hit in answer.hits
        for said in (hit.messages[hit.at],)
    ]
    return {"rows": rows, "more": answer.more, "complete": answer.complete}


def _is_called(context: OperationContext, name: str, *, session: str, place: str) -> bool:
    from gateway.operations.operation_views import room_name, session_key_of

    key = session_key_of(name)
    room = room_name(key, context.channels) if key else ""
    return name == session if session else place in f"{name} {room}".casefold()


@operation("sessions page", writes=False)
async def read_page(
    context: OperationContext, session: str, *, start: int | None = None, limit: int = _PAGE
) -> dict[str, Any]:
    """
    A page of a whole conversation, oldest first; without ``start`` the newest one.

    ``start`` and ``total`` are positions in the history, ``next`` is where the next page starts, or None.
    """
    from gateway.operations.operation_views import message_line

    key = parse_session(session)
    await _known(context, key)
    if start is None:
        total = (await context.memory.load_history(str(key), max_messages=1)).total
        start = total - capped_limit(limit)
    start = max(0, start)
    page = await context.memory.load_segment(str(key), start=start, max_messages=capped_limit(limit))
    following = page.positions[-1] + 1 if page.positions else None
    return {
        "session": str(key),
        "start": start,
        "total": page.total,
        "positions": list(page.positions),
        "messages": [message_line(message) for message in page.messages],
        "next": following if following is not None and following < page.total else None,
    }


@operation("sessions reset", writes=True)
async def reset_session(context: OperationContext, session: str) -> dict[str, Any]:
    """
    Reset a conversation: its history leaves the prompt, and pending messages are dropped.

    The file of its history stays as it is: histories are never rewritten.
    """
    key = parse_session(session)
    await _known(context, key)
    await context.store.inbox.reset_session(key)
    tail = await context.memory.load_history(str(key), max_messages=1)
    await context.memory.save_consolidation(str(key), summary="", cursor=tail.total)
    return {"session": str(key), "forgotten": tail.unconsolidated}


@operation("sessions reindex", writes=True, needs=_NEEDS, render=render.render_reindex)
async def rebuild_index(context: OperationContext) -> dict[str, Any]:
    """Rebuild the search index from the histories."""
    if context.upkeep is None:
        raise NotFound("there is no search index here")
    return dict(await context.upkeep.reindex())


async def _known(context: OperationContext, key: SessionKey) -> None:
    tail = await context.memory.load_history(str(key), max_messages=1)
    if not tail.total and not await context.store.inbox.rows(session=key, limit=1):
        raise NotFound(f"there is no session {key}; `squidbot sessions list` lists the sessions")


async def _scope(context: OperationContext, key: SessionKey) -> str | None:
    """Return the memory scope of the last turn, even if the conversation was reset after it."""
    (tail,) = await context.memory.last_messages([str(key)])
    return tail.messages[-1].scope if tail.messages else None
