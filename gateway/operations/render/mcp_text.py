"""MCP servers as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.operations.render import table
from gateway.system.terminal_text import plain_line, plain_text

_DESCRIPTION_CHARS = 70


def servers(answer: Mapping[str, Any]) -> str:
    """Render ``mcp list``."""
    rows = answer["servers"]
    if not rows:
        return "there are no MCP servers in the settings (mcp.servers)"
    odd = [plain_line(f"{row['name']}, not used: {one}") for row in rows for one in row["left_out"]]
    return "\n".join([_table(rows), *odd])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ("NAME", "WHAT", "FOR", "TOOLS", "TO REVIEW", "STATE"),
        [
            (
                row["name"],
                plain_line(row["kind"]),
                row["allow"],
                str(row["tools"]),
                str(len(row["changed"])),
                plain_line(row["state"]),
            )
            for row in rows
        ],
    )


def tools(answer: Mapping[str, Any]) -> str:
    """Render ``mcp tools``."""
    lines = [
        f"{plain_line(one['model_name'])}  ({one['effect'] or 'asks each time'})\n    "
        f"{plain_line(one['description'])[:_DESCRIPTION_CHARS]}"
        for one in answer["tools"]
    ]
    if not lines:
        lines = ["no tools can be used" + (" yet" if answer["changes"] else "")]
    for change in answer["changes"]:
        what = "is new" if change["kind"] == "new" else "has changed"
        lines += ["", f"{plain_line(change['name'])} {what} and is off:", plain_text(change["diff"])]
    if answer["changes"]:
        lines += ["", f"To approve this: squidbot mcp approve {answer['server']}"]
    return "\n".join(lines)
