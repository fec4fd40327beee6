"""
Searches history lines: each line has its words as a set, and each term of a query is asked for by itself.
`agent_core.storage.search_index.word_splitting` splits both, as in the embedded index. The set of a line has
one more lexeme, which stands for the home and the scope, so that the index finds the words of one scope only.
A phrase, or a word longer than a lexeme may be, is checked again in the text of the rows found. It is ranked
as in the embedded index. The index of words has no order, so that the newest lines with a common word, as
the server's statistics say, are looked for among the newest lines: else all lines with it would be read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from agent_core.storage.history_lines import as_object, storable
from agent_core.storage.search_index.index_rows import Found, SearchLine
from agent_core.storage.search_index.indexed_files import (
    searched_line,
    turn_of,
    withdrawn_turn,
)
from agent_core.storage.search_index.ranking import (
    MAX_POSTINGS,
    Candidate,
    Similarity,
    Statistics,
    choose_candidates,
)
from agent_core.storage.search_index.vectors import Nearest
from agent_core.storage.search_index.word_splitting import TAIL, Filters, Query, Term, fold, index_words
from gateway.store.sql.engine import ConnectionPort

RowId: TypeAlias = tuple[int, str, int]
"""A line: its time in milliseconds, its session and its number in it."""
MAX_TEXT = 20_000
"""How many characters of a text are searched and shown."""
_MAX_WORD = 2000
"""The maximum length in bytes; the server's limit is 2,046."""
_AT_ONCE = 500
_NEWEST = 1_000
"""The number of newest lines whose time says how many there are in a time."""
_COUNTED = 4_000
"""The number of lines of a scope that are counted; of more the server's statistics say how many there are."""
_FEW = 3
"""Of a word in fewer than so many times `MAX_POSTINGS` lines all are read: it is quicker."""
_MORE = 1.3
"""How many times as many lines as seem to be enough are looked through."""
_SENDER = "@@"
_BEGIN = (
    # The words decide which plan is best. More processes would cost more than they save.
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true),"
    " set_config('max_parallel_workers_per_gather', '0', true),"
    " set_config('random_page_cost', '1.1', true),"
    " (SELECT count(*) FROM (SELECT 1 FROM history WHERE scope = ? LIMIT ?) AS few),"
    " (SELECT max(at) FROM history WHERE scope = ?),"
    " (SELECT at FROM history WHERE scope = ? ORDER BY at DESC OFFSET ? LIMIT 1)"
)


def label(home: int, scope: str) -> str:
    """Return the lexeme for the rows of a scope; no word of a text contains such a character."""
    return f"@{home}:{hashlib.sha256(scope.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def _cut(word: str) -> str:
    raw = word.encode()
    return word if len(raw) <= _MAX_WORD else raw[:_MAX_WORD].decode("utf-8", "ignore")


def folded_text(text: str) -> str:
    """Return the searched part of a text, with a blank before and after each word."""
    return f" {fold(storable(text)[:MAX_TEXT])} "


def text_of(raw: str, seq: int) -> str:
    """Return the searched part of a line's text as it was said."""
    line = _searched(raw, seq)
    return "" if line is None else line.text


@dataclass(frozen=True, slots=True)
class IndexedText:
    """The indexed part of a line. ``said`` has a blank before and after each word."""

    said: str
    words: list[str]

    @classmethod
    def from_line(cls, home: int, line: SearchLine) -> IndexedText:
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


def _as_said(term: Term) -> str:
    """Return a term without the words like it; empty if there are none."""
    return "" if _expression(term) == f"({_words(term)})" else _words(term)


def _alike(begin: str, end: str) -> str:
    """Return the words that begin or end so."""
    return f"({_lexeme(_cut(begin))}:* | {_lexeme(_cut(TAIL + end[::-1]))}:*)"


def _in_order(term: Term) -> list[str]:
    """Return the phrase or long word, which the set of words cannot match."""
    return [f" {term.words} "] if " " in term.words or _cut(term.words) != term.words else []


@dataclass(slots=True)
class _Wanted:
    """Rows to look for: with ``words``, a ``tsquery``, and ``phrases``, said since ``oldest_ms``."""

    words: str
    phrases: Sequence[str]
    exact: str
    oldest_ms: int


class _Size(NamedTuple):
    """The lines of a scope, and the times of its newest one and of the last of `_NEWEST`."""

    lines: int = 0
    newest_ms: int = 0
    first_ms: int = 0


@dataclass(slots=True)
class ScopeSearch:
    """A search in a scope of a home."""

    db: ConnectionPort
    home: int
    scope: str
    filters: Filters
    _size: _Size = field(default_factory=_Size)
    _raw: dict[RowId, list[tuple[str | None, int]]] = field(default_factory=dict)
    _line: Callable[[str | None, int], SearchLine | None] = field(default_factory=lambda: cache(_searched))
    """Few of the neighbours are rated or shown, and many are hits themselves."""

    def candidates(self, query: Query, *, least: float = 0.0) -> tuple[dict[RowId, Candidate], Statistics]:
        """Return the lines that may be hits, by their row, and what rates them."""
        must = [term for term in query.terms if term.quoted]
        limits = (self.scope, _COUNTED, self.scope, self.scope, _NEWEST)
        *_, total, newest, first = self.db.execute(_BEGIN, limits).fetchone()
        self._size = _Size(total, newest or 0, first or 0)
        lines = self._estimate(query.terms) if total == _COUNTED else dict.fromkeys(query.terms, 0)
        asked = [self._wanted([*must, term], exact=_as_said(term), lines=lines[term]) for term in query.terms]
        rows = dict(zip(query.terms, self._matching(asked), strict=True))
        found = {term: [row for row, _ in each] for term, each in rows.items()}
        as_said = {term: [row for row, is_exact in each if is_exact] for term, each in rows.items()}
        statistics = Statistics.from_matches(found, self._size.lines)
        are_common = all(len(ids) == MAX_POSTINGS for ids in found.values())
        more = {
            term: self._wanted(must, _words(term), lines=lines[term])  # older ones may be exact, too
            for term, ids in found.items()
            if len(as_said[term]) < len(ids) == MAX_POSTINGS
        }
        more |= {
            term: self._wanted(must, _alike(*term.alike))
            for term, ids in found.items()
            if not ids and term.alike
        }
        share = math.prod(count / max(1, self._size.lines) for count in lines.values())
        every = [
            self._wanted(query.terms, forms=_words, lines=int(share * self._size.lines))
        ] * are_common  # else those of the rarest have them all
        *others, last = [*self._matching([*more.values(), *every]), []][: len(more) + 1]
        as_said |= {term: [row for row, _ in each] for term, each in zip(more, others, strict=True)}
        weighed = [(statistics.rarity(term), ids) for term, ids in found.items()]
        weighed += [(statistics.rarity(term), ids) for term, ids in as_said.items()]
        weighed.append((sum(weight for weight, _ in weighed), [row for row, _ in last]))
        # Lines with all words count twice.
        chosen = choose_candidates(weighed, least=least / 2 if last else least)
        self._read(chosen)
        return {row: self._candidate(row) for row in chosen if row in self._raw}, statistics

    def _estimate(self, terms: Sequence[Term]) -> dict[Term, int]:
        """Return how many lines have each term as the planner estimates it, without reading them."""
        mine = _lexeme(label(self.home, self.scope))
        asked = " UNION ALL SELECT 1 FROM history WHERE words @@ CAST(? AS tsquery)" * len(terms)
        ((plan,),) = self.db.execute(
            f"EXPLAIN (FORMAT JSON) SELECT 1 FROM history WHERE scope = ?{asked}",  # noqa: S608 - of our own constants
            (self.scope, *(f"{mine} & {_words(term)}" for term in terms)),
        ).fetchall()
        (append,) = json.loads(plan) if isinstance(plan, str) else plan
        total, *lines = (int(each["Plan Rows"]) for each in append["Plan"]["Plans"])
        self._size = self._size._replace(lines=max(self._size.lines, total))
        return dict(zip(terms, lines, strict=True))

    def around(self, row: RowId, *, neighbours: bool = True) -> Found | None:
        """Return the session of a line, the line with its neighbours or its turn, and which of them it is."""
        if row not in self._raw:
            self._read([row])
        if row not in self._raw:
            return None
        before, line, after = (self._line(*each) for each in self._raw[row])
        lines = [each for each in (before, line, after) if each is not None]
        found = row[1], lines, int(before is not None)
        return found if neighbours else turn_of(found)

    def _candidate(self, row: RowId) -> Candidate:
        """Return a line with its answer or its question."""
        before, own, after = self._raw[row]
        line = self._line(*own)
        assert line is not None
        beside = self._line(*(before if line.role == "assistant" else after))
        if beside is None or not line.is_turn_with(beside):
            return Candidate(line.ms, line.text)
        return Candidate(line.ms, line.text, beside.text)

    def _read(self, rows: Sequence[RowId]) -> None:
        """Read lines, each with the one before it and the one after it in the scope."""
        beside = " ".join(
            "LEFT JOIN LATERAL (SELECT seq, line FROM history AS b WHERE b.session = h.session"  # noqa: S608 - of our own constants
            f" AND b.seq {where} h.seq AND b.scope = ? AND b.said IS NOT NULL"
            f" ORDER BY b.seq {order} LIMIT 1) AS {name} ON TRUE"
            for name, where, order in (("before", "<", "DESC"), ("after", ">", "ASC"))
        )
        found = self.db.execute(
            "SELECT h.at, h.session, h.seq, h.line, before.seq, before.line, after.seq, after.line"  # noqa: S608 - of our own constants
            " FROM history AS h JOIN unnest(CAST(? AS text[]), CAST(? AS bigint[])) AS hit (session, seq)"
            f" ON h.session = hit.session AND h.seq = hit.seq {beside}",
            ([session for _, session, _ in rows], [seq for *_, seq in rows], self.scope, self.scope),
        )
        for at, session, seq, raw, before_seq, before, after_seq, after in found.fetchall():
            if self._line(raw, seq) is not None:
                self._raw[int(at), session, seq] = [(before, before_seq), (raw, seq), (after, after_seq)]

    def _wanted(
        self,
        terms: Sequence[Term],
        *more: str,
        exact: str = "",
        forms: Callable[[Term], str] = _expression,
        lines: int = 0,
    ) -> _Wanted:
        """Return the rows with all of the terms, and with ``more``, expressions; about so many ``lines``."""
        said_by = (f"{_lexeme(_cut(_SENDER + word))}:*" for word in self.filters.person)
        words = [_lexeme(label(self.home, self.scope)), *said_by, *map(forms, terms), *more]
        phrases = [phrase for term in terms for phrase in _in_order(term)]
        looked_at = (
            _MORE * MAX_POSTINGS * self._size.lines / lines if lines >= _FEW * MAX_POSTINGS else math.inf
        )
        return _Wanted(" & ".join(words), phrases, exact, self._since(looked_at))

    def _since(self, lines: float) -> int:
        """Return the time since when about so many lines were said; 0 for most of them."""
        if lines > self._size.lines / 2:
            return 0
        return self._size.newest_ms - int(lines / _NEWEST * (self._size.newest_ms - self._size.first_ms))

    def _matching(self, wanted: Sequence[_Wanted]) -> list[list[tuple[RowId, bool]]]:
        """
        Return for each the newest rows, and whether they are exact.

        Of too few in the time that seemed to be enough more is looked through.
        """
        found: list[list[tuple[RowId, bool]]] = [[] for _ in wanted]
        pending = list(range(len(wanted)))
        since_ms = self.filters.since_ms
        while pending:
            selects, parameters = zip(
                *(self._newest(number, wanted[number]) for number in pending), strict=True
            )
            rows = self.db.execute(" UNION ALL ".join(selects), list(chain.from_iterable(parameters)))
            for number in pending:
                found[number] = []
            for number, at, session, seq, is_exact in rows.fetchall():
                found[number].append(((at, session, seq), is_exact))
            pending = [
                number
                for number in pending
                if len(found[number]) < MAX_POSTINGS and wanted[number].oldest_ms > since_ms
            ]
            for number in pending:
                age_ms = self._size.newest_ms - wanted[number].oldest_ms
                looked_at = age_ms / max(1, self._size.newest_ms - self._size.first_ms) * _NEWEST
                times = max(2.0, _MORE * MAX_POSTINGS / max(1, len(found[number])))
                since_then = self._since(times * looked_at)
                wanted[number].oldest_ms = since_then if since_then < wanted[number].oldest_ms else 0
        return found

    def _newest(self, number: int, wanted: _Wanted) -> tuple[str, list[Any]]:
        """Return the query for the newest rows from a time on, with a number, and its parameters."""
        since_ms = max(wanted.oldest_ms, self.filters.since_ms)
        # With `+ 0` the server does not look for a rare word in one line after the other.
        order = "at" if since_ms > self.filters.since_ms else "at + 0"
        there = [] if self.filters.sessions is None else [sorted(self.filters.sessions)]
        text = (
            f"(SELECT {number}, at, session, seq, {'words @@ CAST(? AS tsquery)' if wanted.exact else 'TRUE'}"  # noqa: S608 - of our own constants
            " FROM history"
            " WHERE words @@ CAST(? AS tsquery) AND scope = ? AND at >= ?"
            f"{' AND session = ANY(?)' * len(there)}{' AND strpos(said, ?) > 0' * len(wanted.phrases)}"
            f" ORDER BY {order} DESC, session DESC, seq DESC LIMIT {MAX_POSTINGS})"
        )
        return text, [
            *filter(None, [wanted.exact]),
            wanted.words,
            self.scope,
            since_ms,
            *there,
            *wanted.phrases,
        ]

    def rows_of(self, vectors: Nearest) -> dict[RowId, Similarity]:
        """Return the lines of vectors that are there, in the scope and searched."""
        rows = self.db.execute(
            "SELECT v.id, h.at, h.session, h.seq, h.line FROM vectors AS v"
            " JOIN history AS h ON h.session = v.session AND h.seq = v.seq"
            " WHERE v.id = ANY(?) AND h.scope = ? AND h.said IS NOT NULL",
            (list(vectors), self.scope),
        )
        there: dict[RowId, Similarity] = {}
        for number, at, session, seq, raw in rows.fetchall():
            line = _searched(raw, seq)
            if line is None or not self.filters.accepts(session):
                continue
            if self.filters.is_said(at, line.sender):
                there[int(at), session, seq] = Similarity(session, seq, *vectors[number])
        return there


def _searched(raw: str | None, seq: int) -> SearchLine | None:
    line = None if raw is None else searched_line(as_object(raw.encode()), seq)
    return None if line is None else line._replace(text=line.text[:MAX_TEXT])


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


def reindex_lines(
    db: ConnectionPort, home: int, after: tuple[str, int]
) -> tuple[int, tuple[str, int] | None]:
    """Index some lines after a position again; return their number and the last position or None."""
    rows = db.execute(
        "SELECT session, seq, line FROM history WHERE (session, seq) > (?, ?) ORDER BY session, seq LIMIT ?",
        (*after, _AT_ONCE),
    ).fetchall()
    count = 0
    for session, seq, raw in rows:
        value = as_object(raw.encode())
        if undone := withdrawn_turn(value):
            withdraw(db, session, undone)
        line = searched_line(value, seq)
        told = None if line is None else IndexedText.from_line(home, line)
        count += told is not None
        db.execute(
            "UPDATE history SET said = ?, words = array_to_tsvector(CAST(? AS text[]))"
            " WHERE session = ? AND seq = ?",
            (None if told is None else told.said, None if told is None else told.words, session, seq),
        )
    return count, None if len(rows) < _AT_ONCE else (str(rows[-1][0]), int(rows[-1][1]))
