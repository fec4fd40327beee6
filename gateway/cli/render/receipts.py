"""Receipts of tools as text for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.system.terminal_text import plain_line

__all__ = ["grants", "receipts"]

_CALL_CHARS = 200


def receipts(answer: Mapping[str, Any]) -> str:
    """``squidbot did``: each effect with what led to it and what became of it."""
    return "\n".join(_one(row) for row in answer["rows"]) or "no tool has done anything in this time"


def grants(answer: Mapping[str, Any]) -> str:
    """``squidbot grants list``: each with what it is for, for whom, and until when."""
    return "\n".join(_grant(row) for row in answer["rows"]) or "nothing is allowed in advance"


def _grant(row: Mapping[str, Any]) -> str:
    until = datetime.fromisoformat(row["until"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    what = plain_line(" ".join(filter(None, [row["kind"], row["tool"], row["what"]])))
    short = what if len(what) <= _CALL_CHARS else f"{what[: _CALL_CHARS - 1]}…"
    where = plain_line(row["conversation"]) if row["conversation"] else "everywhere"
    job = ", for one job alone" if row["turn"] else ""
    people = plain_line(", ".join(row["people"]))
    by = plain_line(row["given_by"])
    return f"{row['id']}  until {until}  {short}\n  for {people} in {where}{job}, given by {by}"


def _one(row: Mapping[str, Any]) -> str:
    at = datetime.fromisoformat(row["at"]).astimezone().strftime("%Y-%m-%d %H:%M:%S") if row["at"] else "?"
    call = plain_line(json.dumps(row["arguments"], ensure_ascii=False))
    short = call if len(call) <= _CALL_CHARS else f"{call[: _CALL_CHARS - 1]}…"
    lines = [f"{at}  {row['outcome']:<8} {plain_line(row['tool'])} {short}"]
    lines.append(f"  {row['effect']}, for {plain_line(row['asked_by'])} in {plain_line(row['session'])}")
    if row["origins"]:
        lines.append(f"  after reading {plain_line(row['origins'])}")
    if row["approved_by"]:
        lines.append(f"  approved by {plain_line(row['approved_by'])}")
    if row["result"]:
        lines.append(f"  {plain_line(row['result'])}")
    if row["undo"]:
        lines.append(f"  undo: {plain_line(row['undo'])}")
    return "\n".join(lines)
