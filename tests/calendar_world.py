"""A calendar server, and the tools of one conversation that use it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from agent_core.messages import SessionKey
from agent_core.models import (
    MemoryScope,
    ScopeKind,
    Session,
    ToolCall,
    ToolResult,
)
from agent_core.tools.dav.config import DavSettings
from agent_core.tools.dav.plugin import DavTools
from agent_core.tools.effects import approving, review_of
from agent_core.tools.execution import ToolRunner
from devservers.calendars import CalendarServer, Kind
from tests.servers import skipped_without_tools

NOW = datetime(2026, 12, 1, 7, 0, tzinfo=UTC)
ZONE = "Europe/Berlin"


class FixedClock:
    """Always the morning of 1 December 2026."""

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


def settings_for(url: str, password: str = "pw", **more: Any) -> DavSettings:
    return DavSettings.model_validate({"url": url, "username": "you", "password": password, **more})


def session_of(turn: str = "t1", kind: ScopeKind = ScopeKind.OWNER, name: str = "") -> Session:
    return Session(SessionKey("matrix", "!room"), MemoryScope(kind, name), turn=turn)


class Calendars:
    """The tools of one turn. Steps are numbered as a turn numbers them."""

    def __init__(self, family: DavTools, turn: str = "t1") -> None:
        self.family = family
        tools = {tool.name: tool for tool in family.tools_for(session_of(turn))}
        self.tools = tools
        self._runner = ToolRunner(tools, seconds=60, result_chars=16_000)
        self.step = 0

    async def use(
        self, tool: str, /, *, step: int | None = None, state: str = "", **arguments: Any
    ) -> ToolResult:
        """Call a tool as a run does; a new step each time, unless one is named."""
        if step is None:
            self.step += 1
            step = self.step
        call = ToolCall(id="c", name=tool, arguments=arguments)
        refusal = self._runner.refusal(call)
        if refusal is not None:
            return refusal
        with approving(state):
            return await self._runner.run(call, step=step)

    async def approve(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Look at a call as the owner does, and make it."""
        shown = await review_of(self.tools[tool], arguments)
        assert shown is not None
        return await self.use(tool, state=shown.state, **arguments)


@asynccontextmanager
async def calendars_at(
    url: str, password: str = "pw", *, turn: str = "t1", zone: str = ZONE, **more: Any
) -> AsyncIterator[Calendars]:
    family = DavTools(settings_for(url, password, **more), FixedClock(), zone)
    try:
        yield Calendars(family, turn)
    finally:
        with anyio.CancelScope(shield=True):
            await family.process.aclose()


def started(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalendarServer]:
    with skipped_without_tools():
        server = CalendarServer.start(kind, tmp_path_factory.mktemp(kind), say=print)
    with server:
        yield server


def ids_in(text: str) -> list[str]:
    """The ids of the lines."""
    return re.findall(r"^\[(.+?)\]", text, re.MULTILINE)


def event(uid: str, *lines: str, summary: str = "Meeting") -> str:
    """An object as another program stores it."""
    return _object("VEVENT", uid, f"SUMMARY:{summary}", *lines)


def _object(kind: str, uid: str, *lines: str) -> str:
    inner = [f"BEGIN:{kind}", f"UID:{uid}", "DTSTAMP:20261101T000000Z", *lines, f"END:{kind}"]
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//test", *inner, "END:VCALENDAR", ""])


def task(uid: str, summary: str, *lines: str) -> str:
    return _object("VTODO", uid, f"SUMMARY:{summary}", *lines)


def card(name: str, mail: str) -> str:
    return f"BEGIN:VCARD\r\nVERSION:3.0\r\nUID:{name}\r\nFN:{name}\r\nN:{name};;;;\r\nEMAIL;TYPE=home:{mail}\r\nEND:VCARD\r\n"
