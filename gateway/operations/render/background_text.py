"""Background jobs as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.system.terminal_text import plain_line, quote

_TEXT_CHARS = 100


def jobs(answer: Mapping[str, Any]) -> str:
    """``jobs list``."""
    return "\n".join(_one(row) for row in answer["jobs"]) or "there are no background jobs"


def render_job(answer: Mapping[str, Any]) -> str:
    """``jobs show``."""
    row = answer["job"]
    parts = [_one(row), quote(row["text"]), quote(answer["output"])]
    return "\n\n".join(part for part in parts if part.strip())


def _one(row: Mapping[str, Any]) -> str:
    text = plain_line(row["name"] or row["text"] or "")
    short = text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 1]}…"
    at = datetime.fromisoformat(row["started_at"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    kind = "command" if row["command"] else "task"
    return (
        f"{row['id']}  {kind:<7}  {plain_line(row['state_text'])}; started {at}\n"
        f"        {plain_line(row['person'])} in {plain_line(row['session'])}"
        + (f": {short}" if short else "")
    )
