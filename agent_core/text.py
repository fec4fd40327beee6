"""Small helpers for texts and names. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unicodedata import category

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo


_NAMES_OF_UTC = frozenset({"UTC", "UCT", "Universal", "Zulu"})
_UNSEEN = " \t\r\f\v\u00a0\u3000\u200b\u200c\u200d\u200e\u200f"
_UNSEEN += "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"


def is_quoted(line: str) -> bool:
    """Whether a line is marked as somebody else's; programs put signs that nobody sees before the mark."""
    return line.lstrip().lstrip(_UNSEEN).startswith((">", "＞"))


def one_line(text: str, most: int) -> str:
    """``text`` without line breaks and double blanks, cut to ``most`` characters with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def is_visible(text: str) -> bool:
    """Whether a text holds anything to see: more than blanks, zero-width and control characters."""
    return any(not char.isspace() and category(char) not in ("Cf", "Cc") for char in text)


def time_zone(name: str, *, or_local: bool = False) -> ZoneInfo:
    """
    The time zone of a name in the IANA database; the names of coordinated universal time are all ``UTC``.

    Raises:
        ValueError: There is none; the text says so, and with ``or_local`` that ``local`` can be given.
    """
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - commands that only cut a line need not load it

    try:
        return ZoneInfo("UTC" if name.removeprefix("Etc/") in _NAMES_OF_UTC else name)
    # A folder of the database, a path, a file that is no zone, a hundred folders: each is another error.
    except (KeyError, ValueError, OSError, RecursionError) as error:
        names = "Europe/Berlin, UTC or local" if or_local else "Europe/Berlin or UTC"
        raise ValueError(f"unknown time zone {name!r}; give a name such as {names}") from error
