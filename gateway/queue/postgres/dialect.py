"""
The statements of the queue as PostgreSQL takes them. Pure.

The texts are written once, for both engines. What differs is little and mechanical, so it is done here,
once for each text: marks of values, the per cent sign, and the home in the target of a conflict.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PARTS = re.compile(
    r"""
    (?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")
  | (?P<cast>::)
  | (?P<mark>\?)
  | :(?P<name>[a-z_]+)
  | (?P<percent>%)
  | (?P<conflict>\bON\ CONFLICT\s*\()
    """,
    re.VERBOSE,
)


_INSTEAD = {"mark": "%s", "percent": "%%", "conflict": "ON CONFLICT (home, "}


def _part(match: re.Match[str]) -> str:
    kind = str(match.lastgroup)
    if kind == "name":
        return f"%({match['name']})s"
    return _INSTEAD.get(kind, match[0].replace("%", "%%"))


@lru_cache(maxsize=1024)
def translated(text: str) -> str:
    """A statement in the placeholders of psycopg; always to be run with parameters, be they none."""
    return _PARTS.sub(_part, text)
