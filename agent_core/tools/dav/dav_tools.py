"""
The tools ``calendar``, ``tasks`` and ``contacts``. What they read anybody may have written, such as whoever
sends an invitation. What they write is asked about first (``tools.dav.ask``), and happens once: the name of a
new object follows from the step of its turn, and a change is made only to the version that was approved.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from agent_core.errors import ToolError, ToolFailed, ToolRetry
from agent_core.models import Session, ToolResult, tool_parameters
from agent_core.ports import Clock
from agent_core.prompt import fence
from agent_core.provenance import Origins, untrusted_origin
from agent_core.tools.dav.config import DavSettings
from agent_core.tools.dav.dav_client import DavClient, OutcomeUnknown, StoredObject
from agent_core.tools.effects import Effect, Review, approved_state
from agent_core.tools.execution import step_of_call
from agent_core.tools.web.urls import host_of

_MAX_SHOWN = 60
_WHEN_MADE = re.compile(r"^(?:UID|DTSTAMP|LAST-MODIFIED|COMPLETED)[:;].*$", re.MULTILINE)
CHANGED_SINCE = "It has changed since it was approved, so nothing was done. Look at it again."


class _DavTool:
    """Parts of the tools of one run; ``client`` is built on first use."""

    name = ""
    kind = "VEVENT"
    seconds = 120.0
    repeatable = True
    """What is made has the same name when it is made again, and what is changed is so already."""
    writes: frozenset[str] = frozenset()

    def __init__(
        self,
        client: Callable[[], DavClient],
        settings: DavSettings,
        session: Session,
        *,
        clock: Clock,
        zone: str,
    ) -> None:
        self._make_client = client
        self._settings = settings
        self._session = session
        self._clock = clock
        self._zone = ZoneInfo(zone)

    def effect_of(self, arguments: Mapping[str, Any]) -> Effect:
        """The effect of the call: a calendar may have other readers, and invited people."""
        return Effect.NETWORK_SEND if arguments.get("action") in self.writes else Effect.PRIVATE_READ

    def guards(self, arguments: Mapping[str, Any]) -> bool:
        """Return True for what writes, if the owner wants to see it first."""
        return self._settings.ask and arguments.get("action") in self.writes

    async def review(self, **arguments: Any) -> Review | None:
        """Show what is made or changed; its state is the version on the server, and what is stored."""
        action = arguments.get("action")
        if action not in self.writes:
            return None
        if not arguments.get("id"):
            _, place, made = await self._made(arguments)
            text = (
                f"{_place(place, self._settings)}\n{made['after']}{await self._overlap_line(made, arguments)}"
            )
            return Review(text, state_of(place[0], None, made["data"]))
        url, found = await self._found(arguments)
        change = await self._change(found, arguments)
        overlap = await self._overlap_line(change, arguments)
        text = f"{change['before']}\n→\n{change['after'] or '(gone)'}{overlap}"
        state = state_of(url, found, change["data"])
        return Review(text, state, changes_nothing=bool(change["same"]))

    async def _write(self, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            return await (
                self._store_change(arguments) if arguments.get("id") else self._store_new(arguments)
            )
        except OutcomeUnknown as error:
            return ToolResult(content=str(error), is_error=True, is_unknown=True)

    async def _store_new(self, arguments: Mapping[str, Any]) -> ToolResult:
        uid, place, made = await self._made(arguments)
        url, state = f"{place[0]}{uid}.ics", state_of(place[0], None, made["data"])
        if approved_state() not in ("", state) and await self._client.get(url) is None:
            raise ToolFailed(CHANGED_SINCE)
        new = await self._client.create(url, made["data"], uid)
        told = "Done" if new else "That was done before"
        identity = f"{place[0].rstrip('/').rpartition('/')[2]}/{uid}.ics"
        return ToolResult(content=f"{told}; its id is {identity}.", undo=f"delete it in {place[1]}")

    async def _made(self, arguments: Mapping[str, Any]) -> tuple[str, tuple[str, str], dict[str, Any]]:
        """Uid, address and title of the collection, and what would be made (`events.show_object`)."""
        place = await self._client.writable(self.kind, str(arguments.get("calendar") or ""))
        key = json.dumps([self._session.id, self._session.turn, step_of_call(), arguments], sort_keys=True)
        uid = f"squidbot-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
        made = await self._client.read("make", task=self.kind == "VTODO", fields=dict(arguments), uid=uid)
        return uid, (place.url, place.title), dict(made)

    async def _overlap_line(self, made: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
        """A line that names what else is at that time; it is no part of what is approved."""
        if not made.get("span") or not any(arguments.get(name) for name in ("start", "end", "minutes")):
            return ""
        first, last = (datetime.fromisoformat(each).astimezone(self._zone) for each in made["span"])
        try:
            events = await self._events(first, last)
        except ToolError:  # what is asked can be approved without it
            return ""
        others = [each for each in events["events"] if each["id"] != arguments.get("id") and takes_time(each)]
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return f"\nAt the same time: {others[0]['summary']}, {others[0]['when']}{more}" if others else ""

    async def _events(self, first: datetime, last: datetime, words: str = "") -> dict[str, Any]:
        answers = await self._client.query("VEVENT", first=first, last=last)
        span = {"first": first.isoformat(), "last": last.isoformat()}
        return dict(await self._client.read("list", answers=answers, words=words, **span))

    async def _store_change(self, arguments: Mapping[str, Any]) -> ToolResult:
        url = await self._client.url_of(str(arguments["id"]), self.kind)
        found = await self._client.get(url)
        gone = found is None and arguments.get("action") == "cancel"
        if found is None and not gone:
            raise ToolFailed("It is not there any more.")
        change: dict[str, Any] = {"same": True}
        if found is not None:
            change = await self._change(found, arguments)
        if found is None or change["same"]:
            return ToolResult(content="It is so already.")
        if approved_state() not in ("", state_of(url, found, change["data"])):
            raise ToolFailed(CHANGED_SINCE)
        if not found.etag:
            raise ToolFailed("The server does not say which version this is, so it cannot be changed safely.")

        async def is_done(now: StoredObject | None) -> bool:
            if now is None:
                return arguments.get("action") == "cancel"
            return bool(change["data"]) and bool((await self._change(now, arguments))["same"])

        await self._client.replace(url, change["data"], found.etag, is_done)
        return ToolResult(content="Done.", undo="change it back in the calendar")

    async def _found(self, arguments: Mapping[str, Any]) -> tuple[str, StoredObject]:
        url = await self._client.url_of(str(arguments["id"]), self.kind)
        found = await self._client.get(url)
        if found is None:
            raise ToolRetry("There is no such id; list what there is, and give the id of one line.")
        return url, found

    async def _change(self, found: StoredObject, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(
            await self._client.read(
                "change",
                object=b64encode(found.content).decode(),
                task=self.kind == "VTODO",
                fields=dict(arguments),
                cancel=arguments.get("action") == "cancel",
            )
        )

    @property
    def _client(self) -> DavClient:
        return self._make_client()

    @property
    def _origins(self) -> Origins:
        """Anybody's who can write to it or send an invitation."""
        return (untrusted_origin("calendar", host_of(self._settings.url), self._clock.now()),)

    def _shown(self, lines: Sequence[str], unread: int = 0) -> ToolResult:
        more = [f"({len(lines) - _MAX_SHOWN} more)"] if len(lines) > _MAX_SHOWN else []
        more += [f"({unread} could not be read)"] if unread else []
        content = "\n".join([*lines[:_MAX_SHOWN], *more])
        if not content:
            return ToolResult(content="Nothing was found.")
        return ToolResult(content=fence(self.name, content), origins=self._origins)


class CalendarTool(_DavTool):
    """The tool ``calendar`` of one run."""

    name = "calendar"
    writes = frozenset({"create", "change", "cancel"})
    description = (
        "The owner's calendar. list and free need from and to; search needs words. create needs summary and "
        "start; change and cancel need the id of a line, and occurrence (its start) for one of a series. "
        "Times such as '2026-12-01 09:30'; days such as '2026-12-01' are all day, end is the last day."
    )
    parameters = tool_parameters(
        "action",
        action={"type": "string", "enum": ["list", "search", "free", "create", "change", "cancel"]},
        **{"from": "string"},
        to="string",
        words="string",
        id="string",
        occurrence="string",
        summary="string",
        start="string",
        end="string",
        minutes={"type": "number", "description": "How long, or how long to be free"},
        location="string",
        notes="string",
        repeat={"type": "string", "description": "Such as FREQ=WEEKLY;BYDAY=MO"},
        calendar={"type": "string", "description": "Its name, if not the usual one"},
    )

    async def execute(self, **arguments: Any) -> ToolResult:
        """Do what ``action`` says."""
        action = str(arguments.get("action"))
        if action in ("change", "cancel") and not arguments.get("id"):
            raise ToolRetry("'id' is missing; list shows it.")
        if action == "create":
            if not arguments.get("summary") or arguments.get("id"):
                raise ToolRetry("'create' needs summary and start, and no id.")
            return await self._write(arguments)
        if action in self.writes:
            return await self._write(arguments)
        return await self._read(action, arguments)

    async def _read(self, action: str, arguments: Mapping[str, Any]) -> ToolResult:
        words = str(arguments.get("words") or "").strip()
        if action == "search" and not words:
            raise ToolRetry("'words' is missing: what is searched for?")
        now = self._clock.now().astimezone(self._zone)
        before, after = (30, 365) if action == "search" else (0, 7)
        first, last = await self._span(arguments, now, before=before, after=after)
        found = await self._events(first, last, words)
        if action == "free":
            gaps = free_times(found["events"], first, last, minutes=float(arguments.get("minutes") or 30))
            shown = [_gap(start, end) for start, end in gaps] or ["There is no free time."]
            if any(each["unexpanded"] for each in found["events"]):
                shown.insert(0, "(without a series that repeats too often to be counted)")
            return self._shown(shown, found["unread"])
        return self._shown([_line(each) for each in found["events"]], found["unread"])

    async def _span(
        self, arguments: Mapping[str, Any], now: datetime, *, before: int, after: int
    ) -> tuple[datetime, datetime]:
        start = str(arguments.get("from") or (now - timedelta(days=before)).date())
        given = str(arguments.get("to") or "")
        if not given:
            begin = (await self._client.read("span", first=start, last=start))["first"]
            given = str((datetime.fromisoformat(begin) + timedelta(days=before + after)).date())
        span = await self._client.read("span", first=start, last=given)
        first, last = (
            datetime.fromisoformat(span[name]).astimezone(self._zone) for name in ("first", "last")
        )
        if len(given.strip()) == 10:
            last += timedelta(days=1)
        if not first < last <= first + timedelta(days=1100):
            raise ToolRetry("'to' must come after 'from', by three years at most.")
        return first, last


class TasksTool(_DavTool):
    """The tool ``tasks`` of one run."""

    name = "tasks"
    kind = "VTODO"
    deferred = True
    writes = frozenset({"add", "done"})
    description = "The owner's tasks (to-do list): list the open ones, add one, mark one as done by its id."
    parameters = tool_parameters(
        "action",
        action={"type": "string", "enum": ["list", "add", "done"]},
        id="string",
        summary="string",
        due={"type": "string", "description": "'2026-12-01' or '2026-12-01 09:30'"},
        notes="string",
        calendar={"type": "string", "description": "The list, if not the usual one"},
    )

    async def execute(self, **arguments: Any) -> ToolResult:
        """Do what ``action`` says."""
        action = arguments.get("action")
        if action == "list":
            found = await self._client.read("tasks", answers=await self._client.query("VTODO"))
            lines = [
                " ".join(
                    filter(None, (f"[{each['id']}]", each["summary"], each["due"] and f"(due {each['due']})"))
                )
                + (f"\n  {each['notes']}" if each["notes"] else "")
                for each in found["tasks"]
            ]
            return self._shown(lines, found["unread"])
        needed = "summary" if action == "add" else "id"
        if not arguments.get(needed) or (action == "add" and arguments.get("id")):
            raise ToolRetry(f"{action!r} needs {needed}.")
        return await self._write(arguments)


class ContactsTool(_DavTool):
    """The tool ``contacts`` of one run."""

    name = "contacts"
    kind = "VCARD"
    deferred = True
    description = "Find mail addresses and phone numbers of people in the owner's address book by name."
    parameters = tool_parameters("name", name="string")

    async def execute(self, **arguments: Any) -> ToolResult:
        """The contacts with that name."""
        words = str(arguments.get("name") or "").strip()
        if not words:
            raise ToolRetry("'name' is missing.")
        found = await self._client.read(
            "contacts", answers=await self._client.query_cards(words), words=words
        )
        lines = [
            f"{each['name']}: {', '.join([*each['mail'], *each['phone']]) or '(no address)'}"
            for each in found["contacts"]
        ]
        lines += [f"({found['more']} more; give more of the name)"] if found["more"] else []
        return self._shown(lines, found["unread"])


def free_times(
    events: Sequence[Mapping[str, Any]], first: datetime, last: datetime, *, minutes: float
) -> list[tuple[datetime, datetime]]:
    """The gaps of at least ``minutes`` between what takes time."""
    gaps, at = [], first
    for each in events:
        if not takes_time(each):
            continue
        start, end = (
            datetime.fromisoformat(each[name]).astimezone(first.tzinfo) for name in ("start", "end")
        )
        if start - at >= timedelta(minutes=minutes):
            gaps.append((at, min(start, last)))
        at = max(at, end)
    if last - at >= timedelta(minutes=minutes):
        gaps.append((at, last))
    return gaps


def takes_time(each: Mapping[str, Any]) -> bool:
    """Return True unless an appointment is marked as free, or cancelled."""
    return not each["free"] and each["status"] != "CANCELLED"


def _gap(start: datetime, end: datetime) -> str:
    return f"free from {start:%a %Y-%m-%d %H:%M} to {end:%a %Y-%m-%d %H:%M}"


def _line(each: Mapping[str, Any]) -> str:
    notes = [
        "cancelled" if each["status"] == "CANCELLED" else "",
        "repeats too often to be listed" if each["unexpanded"] else "repeats" if each["repeats"] else "",
        f"with {', '.join(each['people'])}" if each["people"] else "",
        f"calendar {each['calendar']}",
    ]
    place = f" at {each['location']}" if each["location"] else ""
    told = f"[{each['id']}] {each['when']}: {each['summary']}{place} ({'; '.join(filter(None, notes))})"
    return f"{told}\n  {each['notes']}" if each["notes"] else told


def _place(place: tuple[str, str], settings: DavSettings) -> str:
    return f"New in {place[1]!r} ({host_of(settings.url)}):"


def state_of(url: str, found: StoredObject | None, *made: str) -> str:
    """A version of an object and what is made of it, whenever that happens, as `Review.state`."""
    there = b"" if found is None else found.etag.encode() + found.content
    told = _WHEN_MADE.sub("", "\n".join(made))
    return hashlib.sha256(f"{url}\n{told}\n".encode() + there).hexdigest()
