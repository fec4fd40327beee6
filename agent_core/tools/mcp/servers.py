"""
The configured servers: their connections, their offers, and the owner's approvals. What a server offers is
kept on disk, so that neither a start nor a turn needs a server: one that was listed before is started when a
tool of it is called.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog

from agent_core.errors import AgentError
from agent_core.models import Session
from agent_core.ports import Clock, ToolPort
from agent_core.provenance import Origins, untrusted_origin
from agent_core.state_folder import StateFolder, StateUnreachable, state_in
from agent_core.tools.effects import Effect
from agent_core.tools.mcp.config import McpServerSettings, McpSettings
from agent_core.tools.mcp.definitions import (
    DefinitionChange,
    Pins,
    model_name,
    parse_definition,
    tools_by_name,
)
from agent_core.tools.mcp.elicitation import Elicitation
from agent_core.tools.mcp.mcp_logins import Bearer, Login, LoginFile, LoginNeeded
from agent_core.tools.mcp.mcp_tool import KeepFile, McpTool
from agent_core.tools.mcp.server_connection import (
    Era,
    Link,
    McpConnection,
    ServerAnswer,
    ServerError,
    ServerLost,
    ServerUnavailable,
    Stderr,
)
from agent_core.tools.person_port import MAX_WAIT_S
from agent_core.tools.policy import is_available

if TYPE_CHECKING:
    from agent_core.tools.files.read_tools import PictureViewer

Connect = Callable[[McpServerSettings, Stderr, Bearer | None, Era], AbstractAsyncContextManager[Link]]
_LISTING_S = 30.0
_LIST_AGAIN_S = 300.0
"""A call first asks for a list that is older than this: what differs by then is off."""
_log = structlog.get_logger(__name__)


@asynccontextmanager
async def _by_sdk(
    settings: McpServerSettings, stderr: Stderr, bearer: Bearer | None, era: Era
) -> AsyncIterator[Link]:
    if find_spec("mcp") is None:
        raise ServerUnavailable("squidbot is installed without its extra 'mcp' (pip install '.[mcp]')")
    sdk = await anyio.to_thread.run_sync(import_module, "agent_core.tools.mcp.sdk_client")  # a second
    async with sdk.connect(settings, stderr, bearer, era) as link:
        yield link


async def _renew_login(login: Login) -> Mapping[str, Any]:
    """Ask a login's provider for new tokens, with the SDK, which `_by_sdk` has loaded."""
    answer: Mapping[str, Any] = await import_module("agent_core.tools.mcp.mcp_oauth").renew_login(login)
    return answer


class McpServer:
    """
    One server, with its definitions in ``folder``.

    ``on_changes`` is called once per set of unapproved definitions and start, ``on_login`` once per needed
    login and start.
    """

    def __init__(
        self,
        name: str,
        settings: McpServerSettings,
        *,
        folder: Path | StateFolder,
        clock: Clock,
        on_changes: Callable[[str, list[DefinitionChange]], None],
        on_login: Callable[[str, str], None],
        connect: Connect = _by_sdk,
    ) -> None:
        self.name = name
        self.settings = settings
        self.stderr = Stderr()
        self._era = Era()
        self._state = state_in(folder)
        self.login = LoginFile(self._state.local / f"{name}.login", str(settings.url), self._state)
        self._on_login = on_login
        bearer = Bearer(name, self.login, clock, _renew_login) if settings.auth == "oauth" else None
        self.connection = McpConnection(
            name,
            lambda: self._connected(connect, bearer),
            on_connected=self._greet,
            start_s=settings.start_s,
            idle_s=math.inf if settings.eager else settings.idle_minutes * 60,
        )
        self._file = f"{name}.json"
        self._on_changes = on_changes
        self._told = self._need = ""
        self._is_unsaved = False
        self._one_change = anyio.Lock()
        """Held while `pins` are changed and kept."""
        self._just_listed: Link | None = None
        self._listed_at = -math.inf
        self.pins = self._loaded()

    @property
    def is_listed(self) -> bool:
        """Return True if the server has ever listed its offers."""
        return self.pins.seen is not None

    def effect_of(self, tool: str) -> Effect | None:
        """Return the effect that the owner has configured for a tool."""
        said = self.settings.effects.get(tool) or self.settings.effects.get("*")
        return None if said is None else Effect(said)

    def state(self) -> dict[str, Any]:
        """Return the server's state for people and the status."""
        changes = self.pins.changes(self.settings.tools)
        word = "running" if self.connection.is_up else "not needed now"
        if self.connection.trouble:
            word = self.connection.trouble
        elif not self.is_listed:
            word = "running" if self.connection.is_up else "not asked yet"
        return {
            "running": self.connection.is_up,
            "trouble": self.connection.trouble,
            "state": word,
            "tools": len(self.pins.usable(self.settings.tools)),
            "changed": [change.name for change in changes],
            "left_out": list(self.pins.left_out),
        }

    async def refresh(self) -> None:
        """Ask it what it offers. Raises `AgentError`: it cannot be asked; the text says why."""

        async def work(link: Link) -> None:
            if self._just_listed is link:
                self._just_listed = None
            else:
                await self._list(link)

        await self.connection.ask(work, seconds=_LISTING_S)

    async def call(
        self, tool: str, arguments: Mapping[str, Any], asking: Elicitation | None = None
    ) -> ServerAnswer:
        """Call an approved tool. Raises ServerUnavailable (not done), ServerLost or ServerError."""

        async def work(link: Link) -> ServerAnswer:
            if anyio.current_time() - self._listed_at > _LIST_AGAIN_S:
                try:
                    await self._list(link)
                except (ServerError, ServerLost) as error:  # the call itself was not made
                    raise ServerUnavailable(f"it does not list its tools: {error}") from error
            if tool not in self.pins.approved and tool not in (self.pins.seen or {}):
                raise ServerUnavailable(f"it has no tool {tool!r} (squidbot mcp tools {self.name})")
            if not self.pins.is_approved(tool):
                what = "describes it differently now, or no longer has it"
                raise ServerUnavailable(
                    f"{tool!r} is off until the owner has reviewed it (squidbot mcp tools {self.name}): the "
                    f"server {what if tool in self.pins.approved else 'was not approved'}"
                )
            with anyio.move_on_after(seconds) as limit:
                if asker is not None:
                    asker.exclude_from(limit)
                kind = self.pins.approved[tool].kind
                return await link.call(tool, arguments, None if asking is None else asking.ask, kind)
            raise ServerLost(f"there was no answer within {seconds:g} seconds")

        seconds, asker = self.settings.timeout_s, None if asking is None else asking.asker
        longest_s = seconds + (MAX_WAIT_S if asker is not None else 0.0) + _LISTING_S
        return await self.connection.ask(work, seconds=longest_s)

    async def show_changes(self) -> list[DefinitionChange]:
        """The changes for the owner, who may approve them from then on."""
        async with self._one_change:
            changes = self.pins.changes(self.settings.tools)
            before, self.pins = self.pins, self.pins.mark_shown(changes)
            if self.pins != before:
                await self._saved()
            return changes

    async def approve(self, names: list[str]) -> list[str]:
        """Approve definitions as shown; return their names. Raises OSError: nothing is approved then."""
        async with self._one_change:
            changes = self.pins.changes(self.settings.tools)
            wanted = [each.name for each in changes if not names or each.name in names]
            pins = self.pins.with_approval(wanted) if wanted else self.pins
            chosen = [name for name in wanted if pins.is_approved(name)]
            if chosen:
                await anyio.to_thread.run_sync(self._save, pins)
                self.pins = pins
            return chosen

    @asynccontextmanager
    async def _connected(self, connect: Connect, bearer: Bearer | None) -> AsyncIterator[Link]:
        try:
            async with connect(self.settings, self.stderr, bearer, self._era) as link:
                yield link
        except LoginNeeded:
            await self._notify_login()
            raise

    async def _notify_login(self) -> None:
        try:
            need = await anyio.to_thread.run_sync(self.login.login_notice_key)
        except (OSError, ValueError) as error:  # told after the next try
            _log.error("mcp.login_need_not_kept", server=self.name, error=type(error).__name__)
            return
        if need != self._need:
            self._need = need
            _log.warning("mcp.login_needed", server=self.name)
            self._on_login(self.name, need)

    async def _greet(self, link: Link) -> None:
        await self._list(link, self.settings.start_s)
        self._just_listed = link

    async def _list(self, link: Link, seconds: float = _LISTING_S) -> None:
        with anyio.move_on_after(seconds):
            found = await link.definitions(allowed=frozenset(self.settings.tools))
            self._listed_at = anyio.current_time()
            async with self._one_change:
                before = self.pins
                self.pins = before.update(found.definitions, found.left_out)
                self.notify_unapproved_definitions()
                if self.pins != before or self._is_unsaved:
                    await self._saved()
            return
        raise ServerUnavailable("it does not list its tools")

    def notify_unapproved_definitions(self) -> None:
        """Tell of definitions that the owner has not approved."""
        changes = self.pins.changes(self.settings.tools)
        digest = (
            hashlib.sha256("\n".join(each.diff for each in changes).encode()).hexdigest() if changes else ""
        )
        if changes and digest != self._told:
            self._told = digest
            _log.warning(
                "mcp.definitions_changed", server=self.name, tools=[each.name for each in changes][:20]
            )
            self._on_changes(self.name, changes)

    # ── on disk ──

    @property
    def _server(self) -> str:
        settings = self.settings
        what = json.dumps([settings.command, *settings.args, settings.url])
        return hashlib.sha256(what.encode()).hexdigest()

    def _loaded(self) -> Pins:
        nothing = Pins(self._server)
        try:
            raw = self._state.read(self._file)
            kept = None if raw is None else json.loads(raw)
            if kept is None or kept["server"] != self._server:
                return nothing
            approved, seen = (
                {each["name"]: parse_definition(each) for each in kept[part]} for part in ("approved", "seen")
            )
        except StateUnreachable:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            # Nothing of it may be used: what was approved is not known any more.
            _log.warning("mcp.pins_unreadable", server=self.name, error=type(error).__name__)
            return nothing
        shown, left_out = frozenset(kept.get("shown", ())), tuple(kept.get("left_out", ()))
        return Pins(self._server, approved, seen, shown, left_out)

    async def _saved(self) -> None:
        """Keep what is known. What the disk does not take now is kept after the next look."""
        try:
            await anyio.to_thread.run_sync(self._save, self.pins)
        except OSError as error:
            self._is_unsaved = True
            _log.error("mcp.pins_not_saved", server=self.name, error=error.strerror)
        else:
            self._is_unsaved = False

    def _save(self, pins: Pins) -> None:
        kept = {
            "server": pins.server,
            "approved": [each.as_json() for each in pins.approved.values()],
            "seen": [each.as_json() for each in (pins.seen or {}).values()],
            "shown": sorted(pins.shown),
            "left_out": pins.left_out,
        }
        text = json.dumps(kept, ensure_ascii=False, indent=1)
        self._state.write(self._file, text.encode("utf-8", "replace"))


class McpServers:
    """All servers of the settings. Without any, nothing is done and nothing loaded."""

    def __init__(
        self,
        settings: McpSettings,
        folder: Path | StateFolder,
        clock: Clock,
        *,
        on_changes: Callable[[str, list[DefinitionChange]], None] = lambda _name, _changes: None,
        on_login: Callable[[str, str], None] = lambda _name, _need: None,
    ) -> None:
        self._clock = clock
        self.by_name = {
            name: McpServer(name, each, folder=folder, clock=clock, on_changes=on_changes, on_login=on_login)
            for name, each in settings.servers.items()
        }

    async def run(self, *, ask_first: bool = True) -> None:
        """Own the connections until cancelled; ``ask_first`` lists new servers and starts eager ones."""
        if not self.by_name:
            return
        async with anyio.create_task_group() as tasks:
            for server in self.by_name.values():
                if ask_first:
                    server.notify_unapproved_definitions()  # who was told before may have died
                tasks.start_soon(partial(server.connection.run, eager=ask_first and server.settings.eager))
                if ask_first and not server.is_listed and server.settings.allow != "none":
                    tasks.start_soon(self._first, server)

    async def _first(self, server: McpServer) -> None:
        while not server.is_listed:
            try:
                await server.refresh()
            except AgentError:  # was logged; the back-off of the connection says when it makes sense again
                await anyio.sleep(max(1.0, server.connection.wait_s))

    def tools(self, session: Session, keep: KeepFile, look: PictureViewer | None = None) -> list[ToolPort]:
        """The tools of one run; ``look`` is for a model that looks at pictures. Each name is there once."""
        found: dict[str, ToolPort] = {}
        for server in self.by_name.values():
            if not is_available(server.settings.allow, session):
                continue
            # Also of those that are off: a grant for one must not be for another that is called like it.
            named = tools_by_name(server.name, server.pins.approved)
            for definition in server.pins.usable(server.settings.tools):
                if named[model_name(server.name, definition.name)] != definition.name:
                    continue
                tool = McpTool(
                    server.name,
                    definition,
                    server.call,
                    effect=server.effect_of(definition.name),
                    origins=partial(self._origins_of, server),
                    seconds=server.settings.timeout_s + server.settings.start_s + 10.0,
                    keep=keep,
                    look=look,
                )
                found[tool.name] = tool
        return list(found.values())

    def _origins_of(self, server: McpServer) -> Origins:
        own = server.settings.trust == "own"  # the owner answers for it
        return () if own else (untrusted_origin("mcp", server.name, self._clock.now()),)

    def state(self) -> dict[str, Any]:
        """Return the state of all servers; nothing without servers."""
        return (
            {"mcp": {name: server.state() for name, server in self.by_name.items()}} if self.by_name else {}
        )
