"""
Searches history lines: each line has its words as a set, and a query is a set of words.

`agent_core.storage.search_index.text` splits both, as in the embedded index. The set of a line has one more
lexeme, which stands for the home and the scope, so that the index finds the words of one scope only. A
phrase, or a word longer than a lexeme may be, is checked again in the text of the rows found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent_core.storage.lines import as_object, storable
from agent_core.storage.search_index.files import Found, searched_line
from agent_core.storage.search_index.rows import Line
from agent_core.storage.search_index.text import Query, folded
from gateway.queue.sql.engine import Connection

MOST_TEXT = 20_000
"""How many characters of a text are searched and shown."""
_LONGEST_WORD = 2000
"""The maximum length in bytes; the server's limit is 2,046."""
_AT_ONCE = 500


def label(home: int, scope: str) -> str:
    """Return the lexeme for the rows of a scope; no word of a text contains such a character."""
    return f"@{home}:{hashlib.sha256(scope.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def _cut(word: str) -> str:
    raw = word.encode()
    return word if len(raw) <= _LONGEST_WORD else raw[:_LONGEST_WORD].decode("utf-8", "ignore")


@dataclass(frozen=True, slots=True)
class Searched:
    """The indexed part of a line. ``said`` has a blank before and after each word."""

    said: str
    words: list[str]

    @classmethod
    def of(cls, home: int, line: Line) -> Searched:
        """Return the indexed part of a searchable line."""
        text = folded(storable(line.text)[:MOST_TEXT])
        words = {_cut(word) for word in text.split()}
        return cls(f" {text} ", [*sorted(words), label(home, line.scope)])


def _lexeme(word: str) -> str:
    doubled = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"


def _expression(query: Query, mark: str) -> str:
    """Return the words as a ``tsquery``."""
    parts = [_lexeme(mark)]
    for term in query.terms:
        *before, last = term.split()
        parts += [_lexeme(_cut(word)) for word in before]
        parts.append(_lexeme(_cut(last)) + (":*" if query.beginnings else ""))
    return " & ".join(parts)


def _in_order(query: Query) -> Iterator[str]:
    """Yield the phrases and long words, which the set of words cannot match."""
    for term in query.terms:
        if " " in term or _cut(term) != term:
            yield f" {term}" if query.beginnings else f" {term} "


def found(db: Connection, home: int, query: Query, scope: str, *, since_ms: int, limit: int) -> list[Found]:
    """Return session, lines and the hit's index among them, for the newest hits of a scope."""
    phrases = list(_in_order(query))
    text = (
        "WITH hit AS (SELECT session, seq FROM history"  # noqa: S608 - of our own constants
        " WHERE words @@ CAST(? AS tsquery) AND scope = ? AND at >= ?"
        f"{' AND strpos(said, ?) > 0' * len(phrases)} ORDER BY at DESC, seq DESC LIMIT ?)"
        " SELECT hit.session, hit.seq, near.seq, near.line FROM hit, LATERAL ("
        f"{_near('<', 'DESC')} UNION ALL {_near('=', 'ASC')} UNION ALL {_near('>', 'ASC')}) AS near"
    )
    asked = (_expression(query, label(home, scope)), scope, since_ms, *phrases, limit, scope, scope, scope)
    around: dict[tuple[str, int], list[Line]] = {}
    for session, seq, number, raw in db.execute(text, asked).fetchall():
        line = searched_line(as_object(raw.encode()), number)
        if line is not None:
            around.setdefault((session, seq), []).append(replace(line, text=line.text[:MOST_TEXT]))
    return [hit for (session, seq), lines in around.items() if (hit := _hit(session, seq, lines)) is not None]


def _near(where: str, order: str) -> str:
    """Return the query of the line before a hit, the hit, or the line after it, in the same scope."""
    return (
        "(SELECT h.seq, h.line FROM history AS h WHERE h.session = hit.session"  # noqa: S608 - of our own constants
        f" AND h.seq {where} hit.seq AND h.scope = ? AND h.said IS NOT NULL ORDER BY h.seq {order} LIMIT 1)"
    )


def _hit(session: str, seq: int, lines: list[Line]) -> Found | None:
    lines.sort(key=lambda line: line.position)
    at = next((place for place, line in enumerate(lines) if line.position == seq), None)
    return None if at is None else (session, lines, at)


def recut(db: Connection, home: int, after: tuple[str, int]) -> tuple[int, tuple[str, int] | None]:
    """
    Split the lines after a position into words again, up to a limit.

    Returns how many of them are searchable, and the position of the last one; None: there are no more lines.
    """
    rows = db.execute(
        "SELECT session, seq, line FROM history WHERE (session, seq) > (?, ?) ORDER BY session, seq LIMIT ?",
        (*after, _AT_ONCE),
    ).fetchall()
    count = 0
    for session, seq, raw in rows:
        line = searched_line(as_object(raw.encode()), seq)
        told = None if line is None else Searched.of(home, line)
        count += told is not None
        db.execute(
            "UPDATE history SET said = ?, words = array_to_tsvector(CAST(? AS text[]))"
            " WHERE session = ? AND seq = ?",
            (None if told is None else told.said, None if told is None else told.words, session, seq),
        )
    return count, None if len(rows) < _AT_ONCE else (str(rows[-1][0]), int(rows[-1][1]))
