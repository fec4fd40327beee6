"""How a command answers: text for people, JSON for programs; everything else goes to stderr."""

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.errors import ConfigInvalid
from gateway.system.terminal_text import plain_text

LOG_VARIABLE = "SQUIDBOT_LOG"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def print_result(as_json: bool, value: Any, text: str) -> None:  # noqa: FBT001 - what every command was asked for
    """Print the answer, as JSON or in words."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(_json(value, ascii_only=not utf8) if as_json else plain_text(text))


def _json(value: Any, *, ascii_only: bool) -> str:
    """JSON for pipes and for terminals: what could steer one stands there as an escape, which is the same."""
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return "".join(
        f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le", "surrogatepass")).cast("H")
    )


def program_command(argv0: str, environ: Mapping[str, str]) -> str:
    """
    Return the command that calls this program: ``squidbot`` if that is on the PATH, else its path.

    Args:
        argv0: The present call.
        environ: For the PATH of the shell.
    """
    called = Path(argv0)
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m gateway"
    if called.name != "squidbot":
        return "squidbot"
    found = shutil.which("squidbot", path=environ.get("PATH", ""))
    return "squidbot" if found and Path(found).samefile(called) else shlex.quote(str(called.absolute()))


def quiet_logs(*, verbose: bool = False) -> None:
    """
    Log to stderr, errors only; call it before a command imports anything that logs.

    ``verbose`` shows everything from ``info`` on, ``$SQUIDBOT_LOG`` from the level that it names.
    """
    import logging  # noqa: PLC0415 - a question to the daemon needs none of it

    import structlog  # noqa: PLC0415

    if structlog.is_configured():
        return
    wanted = os.environ.get(LOG_VARIABLE, "").strip().lower()
    level = _LEVELS.get(wanted, _LEVELS["info" if verbose else "error"])
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # The stream of the moment of each line, not of now.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    logging.basicConfig(level=max(level, logging.WARNING) if level > _LEVELS["debug"] else level)


def say_defaults(error: ConfigInvalid) -> None:
    """Say on stderr that a command continues without the configuration, and why."""
    _, *problems = str(error).splitlines()
    first = f"\n{problems[0]}" if problems else ""
    more = f"\n  … and {len(problems) - 1} more" if len(problems) > 1 else ""
    sys.stderr.write(
        "squidbot: the configuration cannot be read, so what follows is shown with default settings "
        f"(workspace, time zone, accounts, prices, log file):{first}{more}\n"
        "  squidbot config check tells all of it, and the way back\n"
    )
