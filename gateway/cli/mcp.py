"""The commands ``squidbot mcp …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: T201 - a conversation with a person

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.login import log_in
from gateway.cli.output import print_result

if TYPE_CHECKING:
    from gateway.settings import Settings
    from gateway.system.home import Home

mcp = App(
    name="mcp",
    help="Servers whose tools the assistant uses (Model Context Protocol).",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@mcp.command(name="list")
def mcp_list(*, where: Where = HERE, as_json: Json = False) -> int:
    """List the servers and their problems."""
    from gateway.cli.render import mcp as render

    answer = ask(where, "mcp_list")
    print_result(as_json, answer, render.servers(answer))
    return 0


@mcp.command(name="tools")
def mcp_tools(name: str, /, *, refresh: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show the tools of a server, and what it says of those that you have not approved.

    Args:
        name: The server.
        refresh: Ask the server again.
    """
    from gateway.cli.render import mcp as render

    answer = ask(where, "mcp_tools", server=name, refresh=refresh or None)
    print_result(as_json, answer, render.tools(answer))
    return 0


@mcp.command(name="approve")
def mcp_approve(name: str, /, *tools: str, where: Where = HERE, as_json: Json = False) -> int:
    """
    Approve the definitions of a server's tools, as they were shown by: squidbot mcp tools NAME

    Args:
        name: The server.
        tools: Only these of its tools (default: all).
    """
    from gateway.system.terminal_text import plain_line

    answer = ask(where, "mcp_approve", server=name, tools=list(tools))
    approved = ", ".join(answer["approved"])
    told = f"approved: {approved}" if approved else "there was nothing to approve"
    if answer["left"]:
        told += f"; not approved, because you have not seen them: {', '.join(answer['left'])}"
    print_result(as_json, answer, plain_line(told))
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
        raise RequestInvalid(f"the arguments are not JSON: {error}") from error
    if not isinstance(given, dict):
        raise RequestInvalid('the arguments are not a JSON object, such as {"path": "/tmp"}')
    answer = ask(where, "mcp_call", server=name, tool=tool, arguments=given)
    files = [f"[a file of {each['bytes']} bytes, {each['type']}]" for each in answer["files"]]
    print_result(as_json, answer, plain_text("\n".join([answer["text"], *files])))
    return 1 if answer["failed"] else 0


@mcp.command(name="login")
def mcp_login(name: str, /, *, where: Where = HERE) -> int:
    """
    Log in to a server that has auth: oauth in the configuration.

    The login is stored in the home folder, readable by its owner alone. A running daemon uses it at once.

    Args:
        name: The server.
    """
    return log_in(where, lambda settings, home: _login(settings, home, name))


@mcp.command(name="logout")
def mcp_logout(name: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Delete the login at a server from this machine.

    Args:
        name: The server.
    """
    answer = ask(where, "mcp_logout", server=name)
    print_result(as_json, answer, "the login is deleted" if answer["deleted"] else "there was no login")
    return 0 if answer["deleted"] else 1


async def _login(settings: Settings, home: Home, name: str) -> int:
    from importlib.util import find_spec

    import anyio.to_thread

    from agent_core.errors import AgentError
    from agent_core.tools.mcp.logins import LoginFile
    from gateway.app.account_state import account_folders
    from gateway.errors import ConfigInvalid, NotFound
    from gateway.operations.mcp import no_server
    from gateway.system.clock import SystemClock
    from gateway.system.terminal_text import plain_line, plain_text

    server = settings.mcp.servers.get(name)
    if server is None:
        raise NotFound(no_server(name, settings.mcp.servers))
    if server.auth != "oauth":
        raise ConfigInvalid(f"mcp.servers.{name}.auth is not oauth, so there is nothing to log in to")
    if find_spec("mcp") is None:
        raise ConfigInvalid("squidbot is installed without its extra 'mcp'")

    async def pasted() -> str:
        return await anyio.to_thread.run_sync(input, "> ", abandon_on_cancel=True)

    from agent_core.tools.mcp.oauth import log_in

    try:
        login = await log_in(server, SystemClock(), show=lambda text: print(plain_text(text)), pasted=pasted)
        async with account_folders(settings, home, SystemClock()) as folders:
            state = folders("mcp")
            LoginFile(state.local / f"{name}.login", login.url, state).save(login)
    except (AgentError, OSError) as error:
        print(f"squidbot: {plain_line(str(error))}", file=sys.stderr)
        return 1
    print(f"{name} can be used now. Try it with: squidbot mcp tools {name}")
    return 0


@mcp.command(name="logs")
def mcp_logs(name: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show the last lines of a server's standard error.

    Args:
        name: The server.
    """
    from gateway.system.terminal_text import plain_text

    answer = ask(where, "mcp_logs", server=name)
    print_result(
        as_json, answer, plain_text(answer["text"]) or "it has written nothing since squidbot started"
    )
    return 0
