"""Logins that a command makes and keeps in the home folder, also while a daemon runs."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gateway.cli.context import Where
from gateway.cli.output import quiet_logs

if TYPE_CHECKING:
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
        if host.is_somebody_else:  # the daemon, which may run meanwhile, must be able to read what came of it
            host.hand_over()
