"""
Text for a terminal. What people write may hold control sequences that recolour, retitle or type into it; here
they become visible instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOCAL_PARTS = {"heartbeat": "check-in", "terminal": "local chat"}
"""The words for what looks like a channel and is no service that people know."""
_JOINERS = "\u200c\u200d"
"""Unprintable, but several scripts and many emoji are made with them."""


def plain_line(text: str) -> str:
    """``text`` on one line, with everything unprintable as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _JOINERS else ascii(char)[1:-1] for char in text)


def plain_text(text: str) -> str:
    """``text`` with its line breaks and tabs, and everything else unprintable as an escape."""
    return "\n".join(plain_line(line.replace("\t", "    ")) for line in text.splitlines())


def place_of(row: Mapping[str, Any]) -> str:
    """The name of the place of a row of an answer, that of a room in quotation marks; else its session."""
    return plain_line(f"“{row['room']}”" if row.get("room") else str(row.get("called") or row["session"]))


def quote(text: str) -> str:
    """``text`` as `plain_text` with a mark before each line, so that none looks like one of ours."""
    return "\n".join(f"> {line}".rstrip() for line in plain_text(text).splitlines())
