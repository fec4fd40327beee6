"""The command ``squidbot logs``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from gateway.cli.command_context import HERE, Json, Where


def logs(
    *,
    session: str = "",
    turn: str = "",
    level: Literal["debug", "info", "warning", "error", "critical"] | None = None,
    since: str = "",
    follow: bool = False,
    unit: str = "squidbot",
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    Show the daemon's log, from its log file or from the systemd journal.

    Args:
        session: Only lines of this conversation (its name or a prefix of it).
        turn: Only lines of this turn.
        level: Minimum level: debug, info, warning, error or critical.
        since: Not older than 90s, 15m, 2h, 3d, 1w, or a date such as 2026-01-03T14:05.
        follow: Follow the log until Ctrl-C.
        unit: The unit in the journal.
    """
    from datetime import UTC, datetime

    from gateway.errors import ConfigInvalid
    from gateway.observability.logs.log_lines import LineFilter, format_line, parse_line, parse_since
    from gateway.observability.logs.log_reader import from_files, from_journal
    from gateway.system.home import Home, find_home

    home = Home(find_home(where.home))
    try:
        moment = parse_since(since, datetime.now(UTC)) if since else None
    except ValueError as error:
        from gateway.operations.operation_arguments import RequestInvalid

        raise RequestInvalid(str(error)) from error
    file = _log_file(home.root, where.config_path or home.config_file)
    if file is not None and file.exists():
        lines = from_files(file, since=moment, follow=follow)
    elif file is not None and follow:
        raise ConfigInvalid(f"the log file {file} does not exist yet")
    else:
        lines = from_journal(unit, since=moment, follow=follow)
    wanted = LineFilter(session, turn, level or "", moment)
    found = False
    for raw in lines:
        line = parse_line(raw)
        if wanted.matches(line):
            print(line.raw if as_json else format_line(line), flush=follow)
            found = True
    if not found and not follow:
        print(f"squidbot: {_nothing(file, unit)}", file=sys.stderr)
    return 0


def _nothing(file: Path | None, unit: str) -> str:
    """Explain where no line was found, and why there may be none."""
    if file is not None and file.exists():
        return f"no line in {file} matches"
    return (
        f"no line in the journal of the unit {unit} matches; a daemon that was started by hand logs to "
        "its terminal, and with gateway.log.file in the configuration to a file"
    )


def _log_file(root: Path, config: Path) -> Path | None:
    """Return the configured log file, else the newest one in the home; the configuration may be invalid."""
    from gateway.cli.output import say_defaults
    from gateway.errors import ConfigInvalid
    from gateway.settings import load_settings, use_timezone
    from gateway.system.home import Home

    try:
        settings = load_settings(config, missing_ok=True)
        use_timezone(settings)
        file = settings.gateway.log.file
    except ConfigInvalid as error:
        say_defaults(error)
        file = None
    if file is not None:
        return Home(root).path(file)
    found = sorted((root / "logs").glob("*.log")) if (root / "logs").is_dir() else []
    return found[-1] if found else None
