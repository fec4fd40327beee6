"""
Searches history lines: each line has its words as a set, and each term of a query is asked for by itself.

`agent_core.storage.search_index.text` splits both, as in the embedded index. The set of a line has one more
lexeme, which stands for the home and the scope, so that the index finds the words of one scope only. A
phrase, or a word longer than a lexeme may be, is checked again in the text of the rows found. It is
ranked as in the embedded index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from agent_core.storage.lines import as_object, storable
from agent_core.storage.search_index.files import Found, answer_in, candidate_of, searched_line, undone_turn
from agent_core.storage.search_index.ranking import (
    MOST_CANDIDATES,
    MOST_POSTINGS,
    Candidate,
    Likeness,
    Statistics,
    choose_candidates,
)
from agent_core.storage.search_index.rows import SearchLine
from agent_core.storage.search_index.text import TAIL, Filters, Query, Term, fold, index_words
from agent_core.storage.search_index.vectors import Nearest
from gateway.queue.sql.engine import ConnectionPort

RowId: TypeAlias = tuple[int, str, int]
"""A line: its time in milliseconds, its session and its number in it."""
MOST_TEXT = 20_000
"""How many characters of a text are searched and shown."""
_LONGEST_WORD = 2000
"""The maximum length in bytes; the server's limit is 2,046."""
_AT_ONCE = 500
_SENDER = "@@"


def label(home: int, scope: str) -> str:
    """Return the lexeme for the rows of a scope; no word of a text contains such a character."""
    return f"@{home}:{hashlib.sha256(scope.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def _cut(word: str) -> str:
    raw = word.encode()
    return word if len(raw) <= _LONGEST_WORD else raw[:_LONGEST_WORD].decode("utf-8", "ignore")


def folded_text(text: str) -> str:
    """Return the searched part of a text, with a blank before and after each word."""
    return f" {fold(storable(text)[:MOST_TEXT])} "


def text_of(raw: str, seq: int) -> str:
    """Return the searched part of a line's text as it was said."""
    line = _searched(raw, seq)
    return "" if line is None else line.text


@dataclass(frozen=True, slots=True)
class Searched:
    """The indexed part of a line. ``said`` has a blank before and after each word."""

    said: str
    words: list[str]

    @classmethod
    def from_line(cls, home: int, line: SearchLine) -> Searched:
        """Return the indexed part of a searchable line."""
        said = folded_text(line.text)
        words = {_cut(word) for word in index_words(said)}
        words |= {_cut(_SENDER + word) for word in fold(storable(line.sender or "")).split()}
        return cls(said, [*sorted(words), label(home, line.scope)])


def _lexeme(word: str) -> str:
    doubled = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"


def _words(term: Term) -> str:
    """Return the words of a term as a ``tsquery``; their order is not in it."""
    return f"({' & '.join(_lexeme(_cut(word)) for word in term.words.split())})"


def _expression(term: Term) -> str:
    """Return a term and the words like it as a ``tsquery``."""
    wanted = [_words(term), *map(_lexeme, sorted(term.parts))]
    wanted += [f"{_lexeme(_cut(term.beginning))}:*"] if term.beginning is not None else []
    wanted += [f"{_lexeme(_cut(TAIL + term.ending[::-1]))}:*"] if term.ending is not None else []
    return f"({' | '.join(wanted)})"


def _has_no_forms(term: Term) -> bool:
    return _expression(term) == f"({_words(term)})"


def _alike(begin: str, end: str) -> str:
    """Return the words that begin or end so."""
    return f"({_lexeme(begin)}:* | {_lexeme(TAIL + end[::-1])}:*)"


def _in_order(term: Term) -> list[str]:
    """Return the phrase or long word, which the set of words cannot match."""
    return [f" {term.words} "] if " " in term.words or _cut(term.words) != term.words else []


@dataclass(frozen=True, slots=True)
class Searching:
    """A search in a scope of a home."""

    db: ConnectionPort
    home: int
    scope: str
    filters: Filters

    def candidates(self, query: Query) -> tuple[dict[RowId, Candidate], Statistics]:
        """Return the lines that may be hits, by their row, and what rates them."""
        must = [term for term in query.terms if term.quoted]
        found = {term: self._matching([*must, term], MOST_POSTINGS) for term in query.terms}
        total = self._count(4 * MOST_POSTINGS)
        statistics = Statistics.from_matches(found, total)
        weighed = [(statistics.rarity(term), ids) for term, ids in found.items()]
        weighed += [
            (
                statistics.rarity(term),
                ids if _has_no_forms(term) else self._matching(must, MOST_POSTINGS, _words(term)),
            )
            for term, ids in found.items()
            if len(ids) > MOST_CANDIDATES
        ]
        weighed += [
            (statistics.rarity(term), self._matching(must, MOST_POSTINGS, _alike(*term.alike)))
            for term, ids in found.items()
            if not ids and term.alike
        ]
        if all(len(ids) == MOST_POSTINGS for ids in found.values()):  # else those of the rarest have them all
            every = self._matching(query.terms, MOST_POSTINGS)
            weighed.append((sum(weight for weight, _ in weighed), every))
        chosen = choose_candidates(weighed)
        return _lines(self.db, chosen, self.scope), statistics

    def _count(self, limit: int) -> int:
        """Return the number of rows of the scope, up to a limit: in no order, so that no more are read."""
        [count] = self.db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM history WHERE words @@ CAST(? AS tsquery) AND scope = ?"
            " LIMIT ?) AS few",
            (_lexeme(label(self.home, self.scope)), self.scope, limit),
        ).fetchone()
        return int(count)

    def _matching(self, terms: Sequence[Term], limit: int, *more: str) -> list[RowId]:
        """Return the newest rows with all of the terms, and with ``more``, expressions."""
        said_by = (f"{_lexeme(_cut(_SENDER + word))}:*" for word in self.filters.person)
        words = [_lexeme(label(self.home, self.scope)), *said_by, *map(_expression, terms), *more]
        phrases = [phrase for term in terms for phrase in _in_order(term)]
        there = [] if self.filters.sessions is None else [sorted(self.filters.sessions)]
        rows = self.db.execute(
            "SELECT at, session, seq FROM history WHERE words @@ CAST(? AS tsquery) AND scope = ? AND at >= ?"  # noqa: S608
            f"{' AND session = ANY(?)' * len(there)}{' AND strpos(said, ?) > 0' * len(phrases)}"
            " ORDER BY at DESC, session DESC, seq DESC LIMIT ?",
            (" & ".join(words), self.scope, self.filters.since_ms, *there, *phrases, limit),
        )
        return [(int(at), str(session), int(seq)) for at, session, seq in rows.fetchall()]

    def rows_of(self, vectors: Nearest) -> dict[RowId, Likeness]:
        """Return the lines of vectors that are there, in the scope and searched."""
        rows = self.db.execute(
            "SELECT v.id, h.at, h.session, h.seq, h.line FROM vectors AS v"
            " JOIN history AS h ON h.session = v.session AND h.seq = v.seq"
            " WHERE v.id = ANY(?) AND h.scope = ? AND h.said IS NOT NULL",
            (list(vectors), self.scope),
        )
        there: dict[RowId, Likeness] = {}
        for number, at, session, seq, raw in rows.fetchall():
            line = _searched(raw, seq)
            if line is None or not self.filters.accepts(session):
                continue
            if self.filters.is_said(at, line.sender):
                there[int(at), session, seq] = Likeness(session, seq, *vectors[number])
        return there


def _lines(db: ConnectionPort, chosen: Sequence[RowId], scope: str) -> dict[RowId, Candidate]:
    """Read lines, each with its answer or its question."""
    near = ", ".join(
        f"(SELECT b.line FROM history AS b WHERE b.session = h.session AND b.seq {where} h.seq"  # noqa: S608 - of our own constants
        f" AND b.scope = ? AND b.said IS NOT NULL ORDER BY b.seq {order} LIMIT 1)"
        for where, order in (("<", "DESC"), (">", "ASC"))
    )
    rows = db.execute(
        f"SELECT h.at, h.session, h.seq, h.line, {near} FROM history AS h"  # noqa: S608
        " JOIN unnest(CAST(? AS text[]), CAST(? AS bigint[])) AS hit (session, seq)"
        " ON h.session = hit.session AND h.seq = hit.seq",
        (scope, scope, [session for _, session, _ in chosen], [seq for *_, seq in chosen]),
    )
    found: dict[RowId, Candidate] = {}
    for at, session, seq, raw, before, after in rows.fetchall():
        if (line := _searched(raw, seq)) is not None:
            lines = [_searched(before, seq - 1), line, _searched(after, seq + 1)]
            told = [each for each in lines if each is not None]
            found[int(at), session, seq] = candidate_of(line, answer_in(told, told.index(line)))
    return found


def _searched(raw: str | None, seq: int) -> SearchLine | None:
    line = None if raw is None else searched_line(as_object(raw.encode()), seq)
    return None if line is None else replace(line, text=line.text[:MOST_TEXT])


def around(db: ConnectionPort, scope: str, row: RowId) -> Found | None:
    """Return the session of a line, the line with its neighbours, and which of them it is."""
    _, session, seq = row
    text = " UNION ALL ".join(_near(*each) for each in (("<", "DESC"), ("=", "ASC"), (">", "ASC")))
    lines: list[SearchLine] = []
    for number, raw in db.execute(text, (session, seq, scope) * 3).fetchall():
        if (line := _searched(raw, number)) is not None:
            lines.append(line)
    lines.sort(key=lambda line: line.position)
    at = next((place for place, line in enumerate(lines) if line.position == seq), None)
    return None if at is None else (session, lines, at)


def _near(where: str, order: str) -> str:
    """Return the query of the line before a hit, the hit, or the line after it, in the same scope."""
    return (
        "(SELECT h.seq, h.line FROM history AS h WHERE h.session = ?"  # noqa: S608 - of our own constants
        f" AND h.seq {where} ? AND h.scope = ? AND h.said IS NOT NULL ORDER BY h.seq {order} LIMIT 1)"
    )


def withdraw(db: ConnectionPort, session: str, undone: str) -> None:
    """Take a turn or a single message out of the search, because a later line takes it back."""
    rows = db.execute(
        "SELECT seq, line FROM history WHERE session = ? AND said IS NOT NULL AND strpos(line, ?) > 0",
        (session, undone),
    ).fetchall()
    for seq, raw in rows:
        value = as_object(raw.encode()) or {}
        if undone in {value.get("turn"), value.get("id")}:
            db.execute(
                "UPDATE history SET said = NULL, words = NULL WHERE session = ? AND seq = ?", (session, seq)
            )


def recut(db: ConnectionPort, home: int, after: tuple[str, int]) -> tuple[int, tuple[str, int] | None]:
    """Index some lines after a position again; return their number and the last position or None."""
    rows = db.execute(
        "SELECT session, seq, line FROM history WHERE (session, seq) > (?, ?) ORDER BY session, seq LIMIT ?",
        (*after, _AT_ONCE),
    ).fetchall()
    count = 0
    for session, seq, raw in rows:
        value = as_object(raw.encode())
        if undone := undone_turn(value):
            withdraw(db, session, undone)
        line = searched_line(value, seq)
        told = None if line is None else Searched.from_line(home, line)
        count += told is not None
        db.execute(
            "UPDATE history SET said = ?, words = array_to_tsvector(CAST(? AS text[]))"
            " WHERE session = ? AND seq = ?",
            (None if told is None else told.said, None if told is None else told.words, session, seq),
        )
    return count, None if len(rows) < _AT_ONCE else (str(rows[-1][0]), int(rows[-1][1]))
