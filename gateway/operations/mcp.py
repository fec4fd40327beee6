"""Operations on MCP servers: their tools, changed definitions, a call, their last words, the login."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from agent_core.errors import AgentError
from agent_core.tools.mcp.config import McpServerSettings
from gateway.errors import GatewayError, NotFound, StateUnusable

if TYPE_CHECKING:
    from agent_core.tools.mcp.servers import McpServer, McpServers

MCP_OPERATIONS = ("mcp_list", "mcp_tools", "mcp_approve", "mcp_call", "mcp_logs", "mcp_logout")


class ServerRefused(GatewayError):
    """The server refused, or cannot do this at the moment."""

    exit_code = 1


class McpOperations:
    """The part of `gateway.operations.service.Operations` that is about MCP servers."""

    _mcp: McpServers | None

    async def mcp_list(self) -> dict[str, Any]:
        """All servers."""
        servers = self._mcp.by_name if self._mcp is not None else {}
        rows = [
            {"name": name, "kind": _kind(each.settings), "allow": each.settings.allow, **each.state()}
            for name, each in servers.items()
        ]
        return {"servers": rows}

    async def mcp_tools(self, server: str, refresh: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """The tools of a server, and which wait for approval; ``refresh`` asks the server again."""
        known = self._server(server)
        if refresh or not known.is_listed:
            try:
                await known.refresh()
            except AgentError as error:
                raise ServerRefused(f"the server {server} cannot list its tools: {error}") from error
        from agent_core.tools.mcp.names import model_name  # noqa: PLC0415 - not before it is used

        tools = [
            {
                "name": each.name,
                "model_name": model_name(server, each.name),
                "effect": effect.value if (effect := known.effect_of(each.name)) else "",
                "description": each.description,
            }
            for each in known.pins.usable(known.settings.tools)
        ]
        changes = [
            {"name": each.name, "kind": each.kind, "diff": each.diff} for each in await known.show_changes()
        ]
        return {"server": server, "tools": tools, "changes": changes}

    async def mcp_approve(self, server: str, tools: list[str] | None = None) -> dict[str, Any]:
        """Approve the definitions of a server as `mcp_tools` has shown them last."""
        known = self._server(server)
        try:
            approved = await known.approve(tools or [])
        except OSError as error:
            raise StateUnusable(
                f"nothing is approved, because the approval could not be saved: {error}"
            ) from error
        off = [each.name for each in known.pins.changes(known.settings.tools)]
        left = [name for name in off if not tools or name in tools]
        if left and not approved:
            raise ServerRefused(
                f"nothing is approved: first read what {server} says now (squidbot mcp tools {server})"
            )
        return {"server": server, "approved": approved, "left": left}

    async def mcp_call(
        self, server: str, tool: str, arguments: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Call a tool, as a person at the terminal."""
        from agent_core.tools.mcp.link import ServerLost  # noqa: PLC0415 - not before it is used

        known = self._server(server)
        try:
            if not known.is_listed:
                await known.refresh()
            answer = await known.call(tool, arguments or {})
        except ServerLost as error:
            raise ServerRefused(
                f"{server}: the outcome is unknown ({error}): it may or may not have been done"
            ) from error
        except AgentError as error:
            raise ServerRefused(f"{server}: {error}") from error
        files = [{"type": kind, "bytes": len(content)} for kind, content in answer.files]
        return {"text": answer.text, "failed": answer.failed, "files": files}

    async def mcp_logs(self, server: str) -> dict[str, Any]:
        """The last lines of a server's standard error, since the daemon has started it."""
        return {"server": server, "text": self._server(server).stderr.text()}

    async def mcp_logout(self, server: str) -> dict[str, Any]:
        """Delete the login at a server."""
        try:
            deleted = await anyio.to_thread.run_sync(self._server(server).login.forget)
        except OSError as error:
            raise StateUnusable(f"the login at {server} could not be deleted: {error}") from error
        return {"server": server, "deleted": deleted}

    def _server(self, name: str) -> McpServer:
        servers = self._mcp.by_name if self._mcp is not None else {}
        if name not in servers:
            raise NotFound(no_server(name, servers))
        return servers[name]


def no_server(name: str, known: Collection[str]) -> str:
    """The error for a server that is not in the settings."""
    others = f"; the servers are: {', '.join(known)}" if known else ", which name no server (mcp.servers)"
    return f"there is no MCP server {name!r} in the settings{others}"


def _kind(settings: McpServerSettings) -> str:
    return settings.url or settings.command
