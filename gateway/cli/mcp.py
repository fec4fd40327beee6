"""The command ``squidbot mcp login``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: T201 - a conversation with a person

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gateway.cli.command_context import HERE, Where
from gateway.cli.generated_commands import make_group
from gateway.cli.login import log_in

if TYPE_CHECKING:
    from gateway.settings import Settings
    from gateway.system.home import Home

mcp = make_group(__name__)


@mcp.command(name="login")
def mcp_login(name: str, /, *, where: Where = HERE) -> int:
    """
    Log in to a server that has auth: oauth in the configuration.

    The login is stored in the home folder, readable by its owner alone. A running daemon uses it at once.

    Args:
        name: The server.
    """
    return log_in(where, lambda settings, home: _login(settings, home, name))


async def _login(settings: Settings, home: Home, name: str) -> int:
    from importlib.util import find_spec

    import anyio.to_thread

    from agent_core.errors import AgentError
    from agent_core.tools.mcp.mcp_logins import LoginFile
    from gateway.app.state_folders import account_folders
    from gateway.errors import ConfigInvalid, NotFound
    from gateway.operations.mcp_operations import no_server
    from gateway.system.clock import SystemClock
    from gateway.system.terminal_text import plain_line, plain_text

    server = settings.mcp.servers.get(name)
    if server is None:
        raise NotFound(no_server(name, settings.mcp.servers))
    if server.auth != "oauth":
        raise ConfigInvalid(f"mcp.servers.{name}.auth is not oauth, so there is nothing to log in to")
    if find_spec("mcp") is None:
        raise ConfigInvalid("squidbot is installed without its extra 'mcp'")

    async def read_pasted_address() -> str:
        return await anyio.to_thread.run_sync(input, "> ", abandon_on_cancel=True)

    from agent_core.tools.mcp.mcp_oauth import log_in

    try:
        login = await log_in(
            server, SystemClock(), show=lambda text: print(plain_text(text)), pasted=read_pasted_address
        )
        async with account_folders(settings, home, SystemClock()) as folders:
            state = folders("mcp")
            LoginFile(state.local / f"{name}.login", login.url, state).save(login)
    except (AgentError, OSError) as error:
        print(f"squidbot: {plain_line(str(error))}", file=sys.stderr)
        return 1
    print(f"{name} can be used now. Try it with: squidbot mcp tools {name}")
    return 0
