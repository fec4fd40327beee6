"""
Parses, filters and shows log lines. Pure. A line is the JSON object that `gateway.observability.logs` writes.
What is none (another program's line in the journal, a line that was cut by a crash) is shown as it is, unless
something was asked for that it cannot answer.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.system.terminal_text import plain_line

LEVELS = ("debug", "info", "warning", "error", "critical")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FIRST = ("time", "level", "event")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. ``fields`` is None where it is no JSON object."""

    raw: str
    fields: dict[str, Any] | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LineFilter:
    """
    A filter of log lines; empty fields match all.

    ``session`` matches by prefix; ``since`` is the oldest time.
    """

    session: str = ""
    turn: str = ""
    level: str = ""
    since: datetime | None = None

    def matches(self, line: LogLine) -> bool:
        """Return True if the line matches."""
        fields = line.fields
        if fields is None:
            return not (self.session or self.turn or self.level) and self.since is None
        if self.since is not None and (line.at is None or line.at < self.since):
            return False
        if self.level and _rank(fields.get("level")) < _rank(self.level):
            return False
        return _begins(fields.get("session"), self.session) and _begins(fields.get("turn"), self.turn)


def _rank(level: object) -> int:
    return LEVELS.index(level) if isinstance(level, str) and level in LEVELS else 1


def _begins(value: object, wanted: str) -> bool:
    return not wanted or (isinstance(value, str) and value.startswith(wanted))


def parse_line(raw: str) -> LogLine:
    """Read a line; anything is one."""
    raw = raw.rstrip("\n")
    if not raw.startswith("{"):
        return LogLine(raw)
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return LogLine(raw)
    if not isinstance(fields, dict):
        return LogLine(raw)
    try:
        at = datetime.fromisoformat(str(fields.get("time")))
    except ValueError:
        return LogLine(raw, fields)
    return LogLine(raw, fields, at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def parse_since(text: str, now: datetime) -> datetime:
    """Parse ``90s``, ``15m``, ``2h``, ``3d``, ``1w`` before now, or a date and time. Raises ValueError."""
    span = _SPAN.fullmatch(text.strip())
    try:
        if span is not None:
            return now - timedelta(seconds=float(span[1]) * _UNITS[span[2]])
        at = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time: say 15m, 2h, 3d, or 2026-01-03T14:05") from None
    return at if at.tzinfo is not None else at.astimezone()


def format_line(line: LogLine) -> str:
    """A line for people: local time, level, event, and the rest as names and values."""
    if line.fields is None:
        return plain_line(line.raw)
    fields = line.fields
    when = f"{line.at.astimezone():%Y-%m-%d %H:%M:%S}" if line.at is not None else "?"
    head = (
        f"{when} {plain_line(str(fields.get('level', '?'))):<8} {plain_line(str(fields.get('event', '?')))}"
    )
    parts = [
        f"{plain_line(name)}={_value(value)}"
        for name, value in fields.items()
        if name not in (*_FIRST, "exception", "stack")
    ]
    trace = [
        f"\n    {plain_line(each)}"
        for name in ("exception", "stack")
        for each in str(fields.get(name) or "").splitlines()
    ]
    return " ".join([head, *parts]) + "".join(trace)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and (not text or any(char.isspace() or char in "\"'=" for char in text)):
        text = json.dumps(text, ensure_ascii=False)
    return plain_line(text)
