"""
The destinations of log lines: structlog in front, loguru behind, and a bridge for stdlib logging. Code calls
structlog only; its last processor hands the event to loguru as bound data, rendered by ``format`` functions
that return a constant template, so that texts never become templates. Traps: loguru's ``diagnose`` prints
variables (off, with ``backtrace``); ``enqueue`` pickles and is three times slower (off); logging in a
``__del__`` during a write raises, so lost lines are counted (`dropped_lines`); nio, aioimaplib and aiohttp
log message bodies at DEBUG, so they stay at WARNING.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import orjson
import structlog
from loguru import logger as _destinations

from gateway.observability.redaction import Redactor, redact_quotes
from gateway.system.terminal_text import plain_line

if TYPE_CHECKING:
    from loguru import Record
    from structlog.typing import EventDict, WrappedLogger

__all__ = ["LogFormat", "adopt_library_loggers", "configure_logs", "dropped_lines"]

LogFormat = Literal["auto", "json", "text"]

_QUIET_LIBRARIES = (
    "aiohttp", "aioimaplib", "asyncio", "charset_normalizer", "httpcore", "httpx", "LiteLLM", "LiteLLM Proxy",
    "LiteLLM Router", "nio", "mail.log", "openai", "peewee", "urllib3",
)  # fmt: skip
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


class _Drops:
    """The number of lines that could not be written."""

    count = 0


def dropped_lines() -> int:
    """Return the number of lines that could not be written since the start of the process."""
    return _Drops.count


def configure_logs(
    level: str = "info",
    *,
    format: LogFormat = "auto",  # noqa: A002 - the name that people write in the configuration
    file: Path | None = None,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
    quiet: bool = False,
    file_bytes: int = 10_000_000,
    files_kept: int = 5,
) -> None:
    """
    Write log lines to ``stream`` (default: stderr) and, as JSON, to ``file``. May be called again.

    Args:
        format: ``text`` for people, ``json`` for journals, ``auto`` for text on a terminal and else JSON.
        secrets: Values that are masked everywhere.
        quiet: Write to no stream, for commands that print themselves.
        file_bytes: The size at which ``file`` is rotated.
        files_kept: The most rotated files.
    """
    stream = stream or sys.stderr
    redactor = Redactor(secrets)
    human = format == "text" or (format == "auto" and stream.isatty())
    _destinations.remove()
    render = _text_format(colour=human and _wants_colour(stream)) if human else _json_format
    if not quiet:
        _destinations.add(_Stream(stream), format=render, **_SAFE)
    if file is not None:
        _open_file(file, file_bytes, files_kept)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _redact_with(redactor),
            _hand_over,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: _Door(),
        cache_logger_on_first_use=False,
    )
    logging.raiseExceptions = False
    logging.basicConfig(handlers=[_Bridge()], level=_LEVELS[level], force=True)
    logging.captureWarnings(True)
    adopt_library_loggers()


def adopt_library_loggers() -> None:
    """Take the libraries' own handlers away, so that each line comes here once. Again after a late import."""
    for name in list(logging.root.manager.loggerDict):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


class _Door:
    """The logger of structlog: every method passes the event to loguru."""

    def msg(self, event: dict[str, Any]) -> None:
        try:
            _destinations.bind(event=event).log(str(event["level"]).upper(), "")
        except Exception:  # noqa: BLE001 - logging never stops what is logged
            _Drops.count += 1

    debug = info = warning = error = critical = msg


class _Stream:
    """A destination whose trouble keeps no line from the others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            _Drops.count += 1


class _Bridge(logging.Handler):
    """Re-emits what libraries log, so that their lines carry the session and the turn as well."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = min(max(record.levelno // 10 * 10, 10), 50)
            structlog.get_logger().log(
                level,
                "library.logged",
                logger=record.name,
                message=_message_of(record),
                **({"exc_info": record.exc_info} if record.exc_info else {}),
            )
        except Exception:  # noqa: BLE001 - an exception from here would end the task that logs
            _Drops.count += 1


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # The arguments do not fit the template: a defect of the library that must not cost the line.
        return f"{record.msg} {record.args!r}"


def _redact_with(redactor: Redactor) -> structlog.typing.Processor:
    def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return redactor.fields(redact_quotes(event))

    return redact


def _hand_over(
    _logger: WrappedLogger, _method: str, event: EventDict
) -> tuple[tuple[EventDict], dict[str, Any]]:
    return (event,), {}


_SAFE: dict[str, Any] = {
    "level": 0,  # structlog has filtered already
    "colorize": False,
    "backtrace": False,
    "diagnose": False,
    "enqueue": False,
    "catch": False,  # it would print the record and a traceback to stderr; `_Door` counts instead
}
_LINE = "{extra[line]}\n"


def _json_format(record: Record) -> str:
    event = record["extra"]["event"]
    first = {"time": event.get("timestamp"), "level": event.get("level"), "event": event.get("event")}
    rest = {key: value for key, value in event.items() if key not in ("timestamp", "level", "event")}
    try:
        record["extra"]["line"] = orjson.dumps(first | rest).decode()
    except (TypeError, ValueError):
        # Lone surrogates and integers beyond 64 bits are too much for orjson.
        record["extra"]["line"] = json.dumps(first | rest, default=str)
    return _LINE


def _text_format(*, colour: bool) -> Any:
    def render(record: Record) -> str:
        event = dict(record["extra"]["event"])
        time = str(event.pop("timestamp", ""))[11:19]
        level, name = str(event.pop("level", "")), plain_line(str(event.pop("event", "")))
        trace = "".join(
            f"\n    {line}" for key in ("exception", "stack") for line in _lines(event.pop(key, None))
        )
        head = f"{level:<8}"
        if colour:
            head = f"\x1b[{_COLOURS.get(level, '0')}m{head}\x1b[0m"
        tail = "".join(f" {plain_line(key)}={_shown(value)}" for key, value in event.items())
        record["extra"]["line"] = f"{time} {head} {name}{tail}{trace}"
        return _LINE

    return render


def _lines(text: object) -> list[str]:
    return [plain_line(line) for line in str(text).splitlines()] if text else []


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, str) and (not text or any(char.isspace() or char in "\"'=" for char in text)):
        text = json.dumps(text, ensure_ascii=False)
    return plain_line(text)


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _open_file(file: Path, file_bytes: int, files_kept: int) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _destinations.add(
        file,
        format=_json_format,
        rotation=file_bytes,
        retention=files_kept,
        encoding="utf-8",
        errors="backslashreplace",
        opener=lambda name, flags: os.open(name, flags, 0o600),
        **_SAFE,
    )
