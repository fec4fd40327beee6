"""The pages of the console: which operations each of them reads, and which of them its buttons may call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_core.text import read_number
from gateway.errors import ConfigInvalid
from gateway.operations.operation_registry import all_operations

Call = Callable[..., Awaitable[dict[str, Any]]]
"""Calls an operation by its name, with its arguments."""
Query = Mapping[str, str]
_PAGE = 100
_LISTED = 50

ACTIONS: Mapping[str, str] = {key: each.done for key, each in all_operations().items() if each.done}
"""The operations that a form may call, and what the next page says of it."""

RESULT_PAGES: Mapping[str, str] = {"settings_write": "settings", "check_run": "check"}
"""The actions whose outcome is a page of its own, instead of a sentence above another one."""


@dataclass(frozen=True, slots=True)
class View:
    """
    A page.

    Args:
        title: Its heading.
        load: Reads what its template shows.
        in_menu: It stands in the menu; the others are reached from a row of another page.
        live: It is fetched again every few seconds.
        shows_words: It shows what others may have said, so opening it is logged.
    """

    title: str
    load: Callable[[Call, Query], Awaitable[dict[str, Any]]]
    in_menu: bool = True
    live: bool = False
    shows_words: bool = False


async def _now(call: Call, _query: Query) -> dict[str, Any]:
    held = await call("drafts_list")
    refused = (await call("inbox_list", refused=True))["rows"]
    return {
        "report": await call("status", reasons=True),
        "waiting": len(held["calls"]) + len(held["rows"]) + len(refused),
        "budget": (await call("usage", by="day", days=1))["budget"],
        "turns": (await call("turns_list"))["rows"],
        "jobs": (await call("jobs_list", open_only=True))["jobs"],
    }


async def _waiting(call: Call, _query: Query) -> dict[str, Any]:
    held = await call("drafts_list")
    return {
        "calls": held["calls"],
        "drafts": held["rows"],
        "refused": (await call("inbox_list", refused=True))["rows"],
        "grants": (await call("grants_list"))["rows"],
    }


async def _people(call: Call, _query: Query) -> dict[str, Any]:
    try:
        programs = (await call("tokens_list"))["rows"]
    except ConfigInvalid:  # there is no endpoint for programs
        programs = None
    return {"people": (await call("people_list"))["rows"], "programs": programs}


async def _settings(call: Call, _query: Query) -> dict[str, Any]:
    return {"config": await call("settings_show"), "result": None}


async def _log(call: Call, query: Query) -> dict[str, Any]:
    return await call("log_lines", level=query.get("level", "info"))


async def _check(_call: Call, _query: Query) -> dict[str, Any]:
    return {"result": None}


async def _messages(call: Call, query: Query) -> dict[str, Any]:
    state = query.get("state", "dead")
    rows = await call("inbox_list", states=None if state == "all" else [state], limit=_PAGE)
    return {"state": state, "rows": rows["rows"]}


async def _message(call: Call, query: Query) -> dict[str, Any]:
    return await call("inbox_show", id=query.get("id", ""))


async def _draft(call: Call, query: Query) -> dict[str, Any]:
    return {"draft": await call("drafts_show", id=query.get("id", ""))}


async def _conversations(call: Call, query: Query) -> dict[str, Any]:
    start = _number(query, "start") or 0
    return {**await call("sessions_list", start=start, limit=_LISTED), "start": start, "size": _LISTED}


async def _chat(call: Call, _query: Query) -> dict[str, Any]:
    try:
        return {"chat": await call("chat_conversation")}
    except ConfigInvalid:  # there is no endpoint
        return {"chat": None}


async def _search(call: Call, query: Query) -> dict[str, Any]:
    asked = {name: query.get(name, "") for name in ("q", "session", "place", "person", "days")}
    found = None
    if asked["q"].strip():
        where = {name: asked[name] for name in ("session", "place", "person")}
        found = await call("sessions_search", query=asked["q"], days=_number(query, "days") or 0, **where)
    return {"asked": asked, "found": found}


async def _conversation(call: Call, query: Query) -> dict[str, Any]:
    session, start = query.get("session", ""), _number(query, "start")
    limit = min(_number(query, "limit") or _PAGE, _PAGE)
    page = await call("sessions_page", session=session, start=start, limit=limit)
    about = await call("sessions_show", session=session, limit=1) if start is None else {}
    first = page["start"]
    return {
        "page": page,
        "summary": about.get("summary", ""),
        "lines": list(zip(page["positions"], page["messages"], strict=True)),
        "before": max(0, first - _PAGE) if first else None,
    }


def _number(query: Query, name: str) -> int | None:
    return read_number(query.get(name, ""))


async def _memory(call: Call, query: Query) -> dict[str, Any]:
    scope = query.get("scope", "owner")
    return {
        "scopes": (await call("memory_list"))["scopes"],
        "document": await call("memory_show", scope=scope),
        "versions": (await call("memory_history", scope=scope))["versions"],
        "change": await call("memory_diff", scope=scope, newer=_number(query, "version")),
    }


async def _schedule(call: Call, _query: Query) -> dict[str, Any]:
    log = await call("heartbeat_log", jobs=True)
    last = next((one for one in log["entries"] if not one["name"].startswith("job:")), None)
    return {**log, "jobs": (await call("cron_list"))["jobs"], "last": last}


async def _effects(call: Call, query: Query) -> dict[str, Any]:
    change = query.get("change")
    return {
        "receipts": (await call("receipts", since="90d"))["rows"],
        "changes": (await call("files_history"))["changes"],
        "shown": await call("files_diff", id=change) if change else None,
    }


async def _cost(call: Call, query: Query) -> dict[str, Any]:
    by = query.get("by", "day")
    return await call("usage", by=by, days=30)


VIEWS: Mapping[str, View] = {
    "now": View("Now", _now, live=True),
    "waiting": View("Waiting for you", _waiting, live=True),
    "chat": View("Chat", _chat, live=True, shows_words=True),
    "conversations": View("Conversations", _conversations),
    "search": View("Search", _search, shows_words=True),
    "memory": View("Memory", _memory, shows_words=True),
    "people": View("People", _people),
    "schedule": View("Schedule", _schedule),
    "effects": View("Files and effects", _effects),
    "cost": View("Cost", _cost),
    "messages": View("Messages", _messages),
    "settings": View("Settings", _settings),
    "log": View("Log", _log),
    "check": View("Check", _check),
    "message": View("Message", _message, in_menu=False, shows_words=True),
    "draft": View("Draft", _draft, in_menu=False, shows_words=True),
    "conversation": View("Conversation", _conversation, in_menu=False, shows_words=True),
}
