"""Receipts of tools as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agent_core.text import one_line
from gateway.system.terminal_text import place_of, plain_line


def receipts(answer: Mapping[str, Any]) -> str:
    """``squidbot did``: each effect with what led to it and what became of it."""
    since = datetime.fromisoformat(answer["since"]).astimezone()
    nothing = f"no tool has done anything since {since:%Y-%m-%d %H:%M}"
    return "\n".join(_one(row) for row in answer["rows"]) or nothing


def _one(row: Mapping[str, Any]) -> str:
    from agent_core.prompt import without_tags
    from agent_core.tools.execution import call_in_words, effect_in_words

    at = datetime.fromisoformat(row["at"]).astimezone().strftime("%Y-%m-%d %H:%M:%S") if row["at"] else "?"
    call = one_line(plain_line(call_in_words(row["tool"], row["arguments"])), 200)
    lines = [f"{at}  {row['outcome']:<8} {call}"]
    whose = f"for {plain_line(row['asked_by'])} in {place_of(row)}"
    lines.append(f"  {plain_line(effect_in_words(row['effect']))}, {whose}")
    if row["origins"]:
        lines.append(f"  after reading {plain_line(row['origins'])}")
    if row["approved_by"]:
        lines.append(f"  approved by {plain_line(row['approved_by'])}")
    if row["result"]:
        lines.append(f"  {plain_line(without_tags(row['result']))}")
    if row["undo"]:
        lines.append(f"  undo: {plain_line(row['undo'])}")
    return "\n".join(lines)
