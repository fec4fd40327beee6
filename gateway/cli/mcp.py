"""The commands ``squidbot mcp …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: D417 - what all commands share is told in one place

from __future__ import annotations

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask, tell

__all__ = ["mcp"]

mcp = App(
    name="mcp",
    help="Servers whose tools the assistant uses (Model Context Protocol).",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@mcp.command(name="list")
def mcp_list(*, where: Where = HERE, as_json: Json = False) -> int:
    """List the servers, with what is wrong with them."""
    from gateway.cli.render import mcp as render

    answer = ask(where, "mcp_list")
    tell(as_json, answer, render.servers(answer))
    return 0


@mcp.command(name="tools")
def mcp_tools(name: str, /, *, refresh: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show the tools of a server, and what of it has changed since you approved it.

    Args:
        name: The server.
        refresh: Ask the server again.
    """
    from gateway.cli.render import mcp as render

    answer = ask(where, "mcp_tools", server=name, refresh=refresh or None)
    tell(as_json, answer, render.tools(answer))
    return 0


@mcp.command(name="approve")
def mcp_approve(name: str, /, *tools: str, where: Where = HERE, as_json: Json = False) -> int:
    """
    Approve what a server says of its tools now. Look at it first with: squidbot mcp tools NAME

    Args:
        name: The server.
        tools: Only these of its tools (default: all).
    """
    from gateway.system.terminal_text import plain_line

    answer = ask(where, "mcp_approve", server=name, tools=list(tools))
    approved = ", ".join(answer["approved"])
    tell(as_json, answer, plain_line(f"approved: {approved}" if approved else "there was nothing to approve"))
    return 0


@mcp.command(name="call")
def mcp_call(
    name: str, tool: str, arguments: str = "{}", /, *, where: Where = HERE, as_json: Json = False
) -> int:
    """
    Call a tool of a server.

    Args:
        name: The server.
        tool: The tool, as the server calls it.
        arguments: A JSON object.
    """
    import json

    from gateway.operations.arguments import RequestInvalid
    from gateway.system.terminal_text import plain_text

    try:
        given = json.loads(arguments)
    except ValueError as error:
        raise RequestInvalid(f"the arguments are no JSON: {error}") from error
    if not isinstance(given, dict):
        raise RequestInvalid('the arguments are no JSON object, such as {"path": "/tmp"}')
    answer = ask(where, "mcp_call", server=name, tool=tool, arguments=given)
    files = [f"[a file of {each['bytes']} bytes, {each['type']}]" for each in answer["files"]]
    tell(as_json, answer, plain_text("\n".join([answer["text"], *files])))
    return 1 if answer["failed"] else 0


@mcp.command(name="logs")
def mcp_logs(name: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show the last words of a server on its standard error.

    Args:
        name: The server.
    """
    from gateway.system.terminal_text import plain_text

    answer = ask(where, "mcp_logs", server=name)
    tell(as_json, answer, plain_text(answer["text"]) or "it has said nothing since squidbot was started")
    return 0
