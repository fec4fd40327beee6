"""Operations on MCP servers: their tools, changed definitions, a call, their last words, the login."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from agent_core.errors import AgentError
from agent_core.operation import Option, operation
from gateway.errors import GatewayError, NotFound, StateUnusable
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import mcp_text
from gateway.system.terminal_text import plain_line, plain_text

if TYPE_CHECKING:
    from agent_core.tools.mcp.config import McpServerSettings
    from agent_core.tools.mcp.servers import McpServer

_NEEDS = ("settings", "mcp")
Server = Annotated[str, Option(help="The server.")]


class ServerRefused(GatewayError):
    """The server refused, or cannot do this at the moment."""

    exit_code = 1


@operation("mcp list", writes=False, needs=_NEEDS, render=mcp_text.servers)
async def list_servers(context: OperationContext) -> dict[str, Any]:
    """List the servers and their problems."""
    servers = context.mcp.by_name if context.mcp is not None else {}
    rows = [
        {"name": name, "kind": _kind(each.settings), "allow": each.settings.allow, **each.state()}
        for name, each in servers.items()
    ]
    return {"servers": rows}


@operation("mcp tools", writes=True, needs=_NEEDS, render=mcp_text.tools)
async def list_tools(context: OperationContext, server: Server, *, refresh: bool = False) -> dict[str, Any]:
    """
    Show the tools of a server, and what it says of those that you have not approved.

    Args:
        refresh: Ask the server again.
    """
    known = _server(context, server)
    if refresh or not known.is_listed:
        try:
            await known.refresh()
        except AgentError as error:
            raise ServerRefused(f"the server {server} cannot list its tools: {error}") from error
    from agent_core.tools.mcp.definitions import model_name

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


def _approved_text(answer: Mapping[str, Any]) -> str:
    approved = ", ".join(answer["approved"])
    told = f"approved: {approved}" if approved else "there was nothing to approve"
    if answer["left"]:
        told += f"; not approved, because you have not seen them: {', '.join(answer['left'])}"
    return plain_line(told)


@operation("mcp approve", writes=True, needs=_NEEDS, render=_approved_text)
async def approve_tools(
    context: OperationContext, server: Server, tools: list[str] | None = None
) -> dict[str, Any]:
    """
    Approve the definitions of a server's tools, as they were shown by: squidbot mcp tools NAME

    Args:
        tools: Only these of its tools (default: all).
    """
    known = _server(context, server)
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


def _called_text(answer: Mapping[str, Any]) -> str:
    files = [f"[a file of {each['bytes']} bytes, {each['type']}]" for each in answer["files"]]
    return "\n".join([answer["text"], *files])


@operation(
    "mcp call", writes=True, needs=_NEEDS, render=_called_text, fails=lambda answer: bool(answer["failed"])
)
async def call_tool(
    context: OperationContext, server: Server, tool: str, arguments: str = "{}"
) -> dict[str, Any]:
    """
    Call a tool of a server.

    Args:
        tool: The tool, as the server calls it.
        arguments: A JSON object.
    """
    from agent_core.tools.mcp.server_connection import ServerLost

    try:
        given = json.loads(arguments)
    except ValueError as error:
        told = """the arguments are not JSON; write an object, such as '{"room": "hall"}'"""
        raise RequestInvalid(told) from error
    if not isinstance(given, dict):
        raise RequestInvalid('the arguments are not a JSON object, such as {"path": "/tmp"}')
    known = _server(context, server)
    try:
        if not known.is_listed:
            await known.refresh()
        answer = await known.call(tool, given)
    except ServerLost as error:
        raise ServerRefused(
            f"{server}: the outcome is unknown ({error}): it may or may not have been done"
        ) from error
    except AgentError as error:
        raise ServerRefused(f"{server}: {error}") from error
    files = [{"type": kind, "bytes": len(content)} for kind, content in answer.files]
    return {"text": answer.text, "failed": answer.failed, "files": files}


@operation(
    "mcp logs",
    writes=False,
    needs=_NEEDS,
    render=lambda answer: plain_text(answer["text"]) or "it has written nothing since squidbot started",
)
async def show_server_log(context: OperationContext, server: Server) -> dict[str, Any]:
    """Show the last lines of a server's standard error."""
    return {"server": server, "text": _server(context, server).stderr.text()}


@operation(
    "mcp logout",
    writes=True,
    needs=_NEEDS,
    render=lambda answer: "the login is deleted" if answer["deleted"] else "there was no login",
    fails=lambda answer: not answer["deleted"],
)
async def delete_login(context: OperationContext, server: Server) -> dict[str, Any]:
    """Delete the login at a server from this machine."""
    import anyio.to_thread

    try:
        deleted = await anyio.to_thread.run_sync(_server(context, server).login.forget)
    except OSError as error:
        raise StateUnusable(f"the login at {server} could not be deleted: {error}") from error
    return {"server": server, "deleted": deleted}


def _server(context: OperationContext, name: str) -> McpServer:
    servers = context.mcp.by_name if context.mcp is not None else {}
    if name not in servers:
        raise NotFound(no_server(name, servers))
    return servers[name]


def no_server(name: str, known: Collection[str]) -> str:
    """The error for a server that is not in the settings."""
    others = f"; the servers are: {', '.join(known)}" if known else ", which name no server (mcp.servers)"
    return f"there is no MCP server {name!r} in the settings{others}"


def _kind(settings: McpServerSettings) -> str:
    return settings.url or settings.command
