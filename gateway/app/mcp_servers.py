"""Composition root: the MCP servers of the settings, for a gateway and for commands that talk to them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from agent_core.errors import ToolError
from agent_core.language import _, for_owner, ngettext
from agent_core.models import ScopeKind, Session
from agent_core.ports import Clock
from agent_core.provenance import Origins
from agent_core.state_folder import StateUnreachable
from agent_core.tools.policy import is_available
from gateway.app.state_folders import AccountFolders, account_folders
from gateway.operations.home_files import LazyHomeFiles
from gateway.settings import Settings
from gateway.store.stores import StoreUnavailable
from gateway.store.wakeups import Alert, Wakeups
from gateway.system.home import Home

if TYPE_CHECKING:
    from agent_core.tools.mcp.definitions import DefinitionChange
    from agent_core.tools.mcp.mcp_tool import KeepFile
    from agent_core.tools.mcp.servers import McpServers

_log = structlog.get_logger(__name__)


def mcp_servers(
    settings: Settings, folders: AccountFolders, clock: Clock, wakeups: Wakeups | None = None
) -> McpServers | None:
    """The servers, none of them started; None if the settings have none."""
    if not settings.mcp.servers:
        return None
    from agent_core.tools.mcp.servers import McpServers  # noqa: PLC0415 - rarely wanted

    def notify_changes(name: str, changes: list[DefinitionChange]) -> None:
        if wakeups is not None:
            wakeups.alert.fire(definitions_alert(name, changes))

    def notify_login(name: str, need: str) -> None:
        if wakeups is not None:
            wakeups.alert.fire(login_alert(name, need))

    try:
        return McpServers(
            settings.mcp, folders("mcp"), clock, on_changes=notify_changes, on_login=notify_login
        )
    except StateUnreachable as error:
        raise StoreUnavailable(str(error), path="mcp", operation="open") from error


@asynccontextmanager
async def offline_servers(settings: Settings, home: Home, clock: Clock) -> AsyncIterator[McpServers | None]:
    """The servers while no daemon runs; each is started when it is first called."""
    if not settings.mcp.servers:
        yield None
        return
    raised: Exception | None = None
    async with account_folders(settings, home, clock) as folders, anyio.create_task_group() as tasks:
        servers = mcp_servers(settings, folders, clock)
        assert servers is not None, "the settings have some"
        tasks.start_soon(partial(servers.run, ask_first=False))
        try:
            yield servers
        except Exception as error:  # noqa: BLE001 - it goes on outside of the group, which would wrap it
            raised = error
        tasks.cancel_scope.cancel()
    if raised is not None:
        raise raised


@for_owner
def definitions_alert(name: str, changes: list[DefinitionChange]) -> Alert:
    """Alert to tool descriptions without approval; their words are not repeated, being untrusted."""
    digest = hashlib.sha256("\n".join(change.diff for change in changes).encode()).hexdigest()[:12]
    count = ngettext("1 tool", "{n} tools", len(changes))
    is_new = all(change.kind == "new" for change in changes)
    what = (
        _("offers {count}", count=count)
        if is_new
        else _("describes {count} differently than when you approved it", count=count)
    )
    return Alert(
        f"mcp {name}",
        _(
            "The MCP server `{name}` {what}. I use nothing of that before you have read it. At the machine, "
            "`squidbot mcp tools {name}` shows what the server says, and `squidbot mcp approve {name}` "
            "approves it.",
            name=name,
            what=what,
        ),
        once=digest,
    )


@for_owner
def login_alert(name: str, need: str) -> Alert:
    """Alert: a server needs a login that only a person can do; ``need`` changes with each login."""
    return Alert(
        f"mcp {name} login",
        _(
            "The MCP server `{name}` needs a login before I can use it. At the machine: "
            "`squidbot mcp login {name}`.",
            name=name,
        ),
        once=need,
    )


def file_keeper(session: Session, files: LazyHomeFiles, settings: Settings) -> KeepFile:
    """Store what does not fit into a result in the workspace, where this conversation may read files."""
    own = session.scope.kind is ScopeKind.OWNER
    allowed = is_available(settings.tools.files.allow, session, in_rooms=False)

    async def keep(name: str, content: bytes, origins: Origins) -> str | None:
        if not allowed:
            return None
        try:
            return await anyio.to_thread.run_sync(_put, files, session, name, content, origins)
        except (ToolError, OSError) as error:
            _log.warning("mcp.file_not_kept", error=str(error))
            return None

    def _put(files: LazyHomeFiles, session: Session, name: str, content: bytes, origins: Origins) -> str:
        from agent_core.tools.files.journaled_files import ChangeAuthor  # noqa: PLC0415 - not before it is used

        wanted = PurePosixPath(name)
        digest = hashlib.sha256(content).hexdigest()[:10]
        journaled = files()
        place = journaled.roots.place(f"mcp/{wanted.stem}-{digest}{wanted.suffix}", own=own, write=True)
        by = ChangeAuthor(session.turn, session.id, "", origins)
        journaled.replace(place, lambda _: content, kind="write", by=by)
        return place.label

    return keep
