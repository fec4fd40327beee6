"""Small helpers for texts and names. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unicodedata import category

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo


_NAMES_OF_UTC = frozenset({"UTC", "UCT", "Universal", "Zulu"})
_UNSEEN = " \t\r\f\v\u00a0\u3000\u200b\u200c\u200d\u200e\u200f"
_UNSEEN += "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""
The characters of scripts that put no blanks between words (Chinese characters, kana, Thai, Lao, Burmese,
Khmer), for a class of a regular expression.
"""
_WITHOUT_BLANKS = re.compile(f"[{UNSPACED}]+")

_HASH = re.compile(r"(SHA-256 [0-9a-f]{16})[0-9a-f]{48}\b")
_SENTENCE_END = re.compile(r"(?<=[.!?…]) |(?<=[。！？])")
# The beginning of a word, so that its other forms are found; two characters of scripts without blanks.
_WORDS = re.compile(r"\b[^\W_\u0e00-\uffff]{3,4}|[\u0e00-\uffff]{2}")


def is_quoted(line: str) -> bool:
    """Return True if a line begins with a quotation mark, possibly after invisible characters."""
    return line.lstrip().lstrip(_UNSEEN).startswith((">", "＞"))


def one_line(text: str, most: int) -> str:
    """``text`` without line breaks and double blanks, cut to ``most`` characters with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def field_at(data: Any, path: str) -> Any:
    """Return a field of a JSON document by names and numbers with dots between; None if there is none."""
    for part in path.split("."):
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and part.isascii() and part.isdecimal() and int(part[:6]) < len(data):
            data = data[int(part[:6])]
        else:
            return None
    return data


def read_number(text: str) -> int | None:
    """Return a number in ASCII digits that every store can hold; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


def short_hash(digest: str) -> str:
    """The beginning of a SHA-256, as much as a line of a phone has room for and nobody can imitate."""
    return f"{digest[:16]}…"


def shorten_hashes(text: str) -> str:
    """The text with `short_hash` in the place of each "SHA-256" with its digest."""
    return _HASH.sub(r"\1…", text)


def is_visible(text: str) -> bool:
    """Return True if a text has a visible character: not blank, zero-width or control."""
    return any(not char.isspace() and category(char) not in ("Cf", "Cc") for char in text)


def time_zone(name: str, *, or_local: bool = False) -> ZoneInfo:
    """Return an IANA time zone; all names of UTC are ``UTC``. Raises ValueError with a text."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - commands that only cut a line need not load it

    try:
        return ZoneInfo("UTC" if name.removeprefix("Etc/") in _NAMES_OF_UTC else name)
    # A folder of the database, a path, a file that is no zone, a hundred folders: each is another error.
    except (KeyError, ValueError, OSError, RecursionError) as error:
        names = "Europe/Berlin, UTC or local" if or_local else "Europe/Berlin or UTC"
        raise ValueError(f"unknown time zone {name!r}; give a name such as {names}") from error


def asks(sentence: str) -> bool:
    """Return True if a sentence ends as a question does."""
    return sentence.endswith(("?", "？", "؟", "か。"))


def excerpt(text: str, query: str, limit: int, found: str = "") -> str:
    """
    Return a text on one line; of a longer one than ``limit`` characters a part.

    It is the sentence that was ``found`` with those beside it, else where most words of ``query`` are.
    """
    text = one_line(text, 20_000)
    if len(text) <= limit:
        return text
    found = " ".join(found.split())
    if found and (start := text.find(found)) >= 0:
        return _with_neighbours(text, start, start + len(found), limit)
    words = {word for word in _WORDS.findall(query[:limit].lower()) if len(word) > 1}
    lower = text.lower()
    places = sorted((at, word) for word in words for at in _places_of(word, lower))
    best, start, first = 0, 0, 0
    inside: Counter[str] = Counter()
    for at, word in places:
        inside[word] += 1
        while places[first][0] < at - limit // 2:
            inside[places[first][1]] -= 1
            first += 1
        if (count := len(+inside)) > best:
            best, start = count, places[first][0]
    if start < limit // 2:
        return one_line(text, limit)
    start -= limit // 4
    start = text.find(" ", start, start + limit // 8) + 1 or start
    return f"… {one_line(text[start:], limit - 2)}"


def _with_neighbours(text: str, start: int, end: int, limit: int) -> str:
    """Return ``start`` to ``end`` with the whole sentences after and before it that fit."""
    breaks = [0, *(found.end() for found in _SENTENCE_END.finditer(text)), len(text)]
    room = limit - 4  # two marks of what was left out, and blanks
    end = max((each for each in breaks if end <= each <= start + room), default=min(end, start + room))
    start = min((each for each in breaks if end - room <= each <= start), default=start)
    before, after = "… " if start else "", " …" if end < len(text) else ""
    return f"{before}{text[start:end].strip()}{after}"


def _places_of(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + len(word))


def word_count(text: str) -> int:
    """Count words; `UNSPACED` scripts count one per two characters, the mean length in Chinese."""
    dense = sum((len(run) + 1) // 2 for run in _WITHOUT_BLANKS.findall(text))
    return dense + sum(any(map(str.isalnum, word)) for word in _WITHOUT_BLANKS.sub(" ", text).split())


def decode_text(content: bytes) -> str:
    """Decode UTF-8 with U+FFFD for what is wrong; what is hardly UTF-8 as Windows-1252."""
    text = content.decode("utf-8", "replace")
    # Every byte is some character there.
    if 2 * text.count("\ufffd") > len(text) - len(text.encode("ascii", "ignore")):
        return content.decode("cp1252", "replace")
    return text
