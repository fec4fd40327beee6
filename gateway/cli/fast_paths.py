"""
`squidbot run` on the short way: a daemon that lives for months should not carry the command line's libraries.

Measured on CPython 3.11: without cyclopts the daemon is 2 MB smaller, without rich (which structlog loads for
tracebacks that are never drawn here) another 2.6 MB, with one arena for all threads (`gateway.system.malloc`)
another 0.5 MB, of about 84 MB with all channels.

`squidbot status` takes a short way, too: people and programs ask it often, and the command line's own library
alone takes longer than the question.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["StatusRequest", "look", "parse_run", "parse_status", "run"]


def parse_run(arguments: Sequence[str]) -> tuple[Path | None, Path | None] | None:
    """
    Read ``run [--home DIR] [--config FILE]``.

    Returns:
        Home and configuration; None for everything else, which the whole command line must understand.
    """
    if not arguments or arguments[0] != "run":
        return None
    given: dict[str, Path] = {}
    rest = list(arguments[1:])
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in ("--home", "--config") or name in given:
            return None
        if not equals:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        given[name] = Path(value)
    return given.get("--home"), given.get("--config")


def run(home: Path | None, config: Path | None, *, verbose: bool = False) -> int:
    """Run the daemon, see `gateway.app.daemon.run_daemon`; ``verbose`` logs everything, whatever is set."""
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # "not installed", as far as structlog can see
    from gateway.system.malloc import share_one  # noqa: PLC0415

    share_one()  # before the libraries make threads
    from gateway.app.daemon import run_daemon  # noqa: PLC0415 - after rich is out of the way
    from gateway.settings import load_settings  # noqa: PLC0415
    from gateway.system.home import Home, find_home, named_config, open_home  # noqa: PLC0415
    from gateway.system.restore_marker import refuse_unfinished  # noqa: PLC0415

    root = find_home(home)
    refuse_unfinished(root)  # the configuration may be among what is missing
    settings = load_settings(named_config(config) or Home(root).config_file)
    if verbose:
        log = settings.gateway.log.model_copy(update={"level": "debug"})
        gateway = settings.gateway.model_copy(update={"log": log})
        settings = settings.model_copy(update={"gateway": gateway})
    return run_daemon(settings, open_home(root))


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """What was asked: ``status [--home DIR] [--json]``."""

    home: Path | None = None
    as_json: bool = False


def parse_status(arguments: Sequence[str]) -> StatusRequest | None:
    """
    Read ``status [--home DIR] [--json]``.

    Returns:
        None for everything else, which the whole command line must understand.
    """
    if not arguments or arguments[0] != "status":
        return None
    home: Path | None = None
    as_json = False
    rest = list(arguments[1:])
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "--json" and not equals and not as_json:
            as_json = True
        elif name == "--home" and home is None:
            if not equals:
                if not rest or rest[0].startswith("-"):
                    return None
                value = rest.pop(0)
            home = Path(value)
        else:
            return None
    return StatusRequest(home, as_json)


def look(asked: StatusRequest) -> int:
    """Print the status; the exit code is 0."""
    from gateway.cli import render  # noqa: PLC0415
    from gateway.cli.client import Asker  # noqa: PLC0415
    from gateway.cli.output import tell  # noqa: PLC0415
    from gateway.system.home import Home, find_home, named_config  # noqa: PLC0415

    home = Home(find_home(asked.home))
    named = named_config()
    asker = Asker(home, named or home.config_file, must_exist=named is not None)
    report: dict[str, Any] = asker.call("status", reasons=True)
    tell(asked.as_json, report, render.status(report))
    return 0
