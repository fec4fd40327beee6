"""
Translates the queue's SQL to PostgreSQL's. Pure.

The SQL is written once, for both engines. The differences are few and mechanical, so each text is translated
here once: placeholders, the per cent sign, and the home in the target of a conflict.
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
def translate(text: str) -> str:
    """Return a statement with psycopg's placeholders; always run it with parameters, even with empty ones."""
    return _PARTS.sub(_part, text)
