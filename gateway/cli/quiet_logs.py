"""What a command says besides its answer: little, and on stderr."""

from __future__ import annotations

import os
import sys

from gateway.errors import ConfigInvalid

__all__ = ["LOG_VARIABLE", "quiet_logs", "say_defaults"]

LOG_VARIABLE = "SQUIDBOT_LOG"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def quiet_logs(*, verbose: bool = False) -> None:
    """
    What is logged while a command works goes to stderr, and only errors, unless somebody wants more.

    Before anything that logs is imported by a command. ``verbose`` shows everything from ``info`` on,
    ``$SQUIDBOT_LOG`` from the level that it names.
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
    """A command goes on without the configuration: say so, and why, but not inside its answer."""
    _, *problems = str(error).splitlines()
    first = f"\n{problems[0]}" if problems else ""
    more = f"\n  … and {len(problems) - 1} more" if len(problems) > 1 else ""
    sys.stderr.write(
        "squidbot: the configuration cannot be read, so what follows is shown with default settings "
        f"(workspace, time zone, accounts, prices, log file):{first}{more}\n"
        "  squidbot config check tells all of it, and the way back\n"
    )
