"""Logins that a command makes and keeps in the home folder, also while a daemon runs."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: T201 - a conversation with a person

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.cli.command_context import Where
from gateway.cli.output import quiet_logs

if TYPE_CHECKING:
    from channels.plugin import AccountConfig
    from gateway.settings import Settings
    from gateway.system.home import Home


def log_in(where: Where, login: Callable[[Settings, Home], Awaitable[int]]) -> int:
    """Run ``login`` with the settings and the home; what it writes belongs to the owner of the home."""
    import anyio

    from gateway.settings import load_settings
    from gateway.system.home import Home, find_home, open_home
    from gateway.system.ownership import Host

    root = find_home(where.home)
    quiet_logs(verbose=where.verbose)
    settings = load_settings(where.config_path or Home(root).config_file)
    home, host = open_home(root, as_guest=True), Host(root)
    try:
        return anyio.run(login, settings, home)
    finally:
        if host.is_foreign_root:  # the daemon, which may run meanwhile, must be able to read what came of it
            host.hand_over()


def log_in_account(where: Where, kind: str, account: str) -> int:
    """Log an account of a kind of channel in; a running daemon connects with the login at once."""
    used: list[tuple[Home, str]] = []

    async def login(settings: Settings, home: Home) -> int:
        name, config = _account(settings, kind, account)
        if await _log_in(settings, home, name, config):
            used.append((home, name))
        return 0 if used else 1

    code = log_in(where, login)
    for home, name in used:
        _connect_again(home, name)
    return code


class TerminalPerson:
    """Whoever sits at the terminal."""

    def show(self, text: str) -> None:
        """Print a text, without what steers a terminal."""
        from gateway.system.terminal_text import plain_text

        print(plain_text(text), flush=True)

    async def read_line(self) -> str:
        """Return a line; empty if nobody is there, who would open the browser either."""
        import anyio.to_thread

        try:
            return await anyio.to_thread.run_sync(input, "> ", abandon_on_cancel=True)
        except EOFError:
            return ""


def _account(settings: Settings, kind: str, account: str) -> tuple[str, AccountConfig]:
    """The account of that name; without one the only one there is, or the one that bears the kind's name."""
    from gateway.errors import ConfigInvalid

    kinds = settings.channels.kinds()
    found = {name: config for name, config in settings.channels.enabled().items() if kinds[name] == kind}
    name = account or (next(iter(found)) if len(found) == 1 else kind)
    if name not in found:
        known = ", ".join(found) or "none"
        raise ConfigInvalid(f"there is no account {name!r} under channels.{kind}; switched on: {known}")
    return name, found[name]


async def _log_in(settings: Settings, home: Home, name: str, config: AccountConfig) -> bool:
    from channels.base import ChannelError
    from gateway.app.state_folders import account_folders
    from gateway.plugins import channel_kinds
    from gateway.system.clock import SystemClock
    from gateway.system.terminal_text import plain_line

    plugin = channel_kinds()[settings.channels.kinds()[name]]
    try:
        async with account_folders(settings, home, SystemClock()) as folders:
            await plugin.log_in(config, folders(name), SystemClock(), TerminalPerson())
    except (ChannelError, OSError) as error:
        print(f"squidbot: {plain_line(str(error))}", file=sys.stderr)
        return False
    print(f"{plugin.own_address(config)} can be used now. Try it with: squidbot check")
    return True


def _connect_again(home: Home, channel: str) -> None:
    from gateway.errors import GatewayError
    from gateway.operations.control.control_client import ControlClient
    from gateway.operations.status_operation import RETRY
    from gateway.system.lock import holder_of

    if holder_of(home) is not None:
        with suppress(GatewayError):
            ControlClient(home).call(RETRY, {"channel": channel})
