"""
The tables of the search index, and the statements on them. Blocks. ``lines`` holds texts, ``words`` (FTS5,
contentless) folded words and the ends of long ones; row numbers are the scope, seconds and a counter, so
that a search reads the rows of one scope and time alone, in order, and the index stays small. ``sessions``
says how far each file was read. The file is a cache: unsynced, rebuilt when damaged or of another version.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from agent_core.models import Message
from agent_core.provenance import from_json
from agent_core.storage.search_index.ranking import MAX_POSTINGS, Statistics, choose_candidates
from agent_core.storage.search_index.word_splitting import (
    TAIL,
    Filters,
    Query,
    Term,
    fold,
    index_words,
)

_VERSION = 8
_IN_A_SECOND = 16  # rows; further ones take the numbers of the next seconds
_SCOPE_BITS = 42  # of a row number stand below its scope: enough for the year 9999
_MAX_TEXT = 20_000
_SENDER = "@@"
_BUSY_MS = 2000
_CACHE_KIB = 500  # of each of the two connections; SQLite's own limit is four times that
_DROP_LINES = 1000
_SCHEMA = """
CREATE TABLE scopes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, lines INTEGER NOT NULL DEFAULT 0);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    inode INTEGER NOT NULL, position INTEGER NOT NULL, byte INTEGER NOT NULL, last_ms INTEGER NOT NULL
);
CREATE TABLE lines (
    id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, session INTEGER NOT NULL, position INTEGER NOT NULL,
    scope INTEGER NOT NULL, answers INTEGER NOT NULL, sender TEXT, text TEXT NOT NULL, origins TEXT,
    turn TEXT, msg_id TEXT
);
CREATE UNIQUE INDEX lines_place ON lines (session, position);
CREATE VIRTUAL TABLE words USING fts5(text, content='', columnsize=0,
    tokenize="unicode61 remove_diacritics 0 tokenchars '@~'");
"""

# Lines, each with the one before it and the one after it in its session and scope; and, to rate them, each
# with the answer to it or its question, where that may be beside it.
_COLUMNS = ("position", "ms", "answers", "sender", "text", "origins", "turn", "msg_id")
_NEXT = f"SELECT id FROM lines WHERE session = l.session AND id >> {_SCOPE_BITS} = l.scope AND position"  # noqa: S608 - of our own constants
_BEFORE = f"({_NEXT} < l.position ORDER BY position DESC LIMIT 1)"
_AFTER = f"({_NEXT} > l.position ORDER BY position LIMIT 1)"
_OF_A_SCOPE = (
    " WHERE l.id IN (SELECT value FROM json_each(?)) AND l.scope = (SELECT id FROM scopes WHERE name = ?)"
)
_WITH_NEIGHBOURS = (
    f"SELECT l.id, s.name, {', '.join(f'{line}.{name}' for line in 'bla' for name in _COLUMNS)} FROM lines l"  # noqa: S608 - as above
    " JOIN sessions s ON s.id = l.session"
    f" LEFT JOIN lines b ON b.id = {_BEFORE} LEFT JOIN lines a ON a.id = {_AFTER}{_OF_A_SCOPE}"
)
_WITH_ANSWER = (
    f"SELECT l.id, s.name, {', '.join(f'{line}.{name}' for line in 'lo' for name in _COLUMNS)} FROM lines l"  # noqa: S608 - as above
    " JOIN sessions s ON s.id = l.session"
    f" LEFT JOIN lines o ON o.id = CASE WHEN l.answers THEN {_BEFORE} ELSE {_AFTER} END{_OF_A_SCOPE}"
)


class SearchLine(NamedTuple):
    """
    One message of a session, as it is indexed and shown; or, with ``undoes``, the mark that a turn or a
    single message was taken back: from then on nobody finds its lines.
    """

    position: int
    ms: int
    role: str
    sender: str | None
    text: str
    scope: str
    origins: str | None = None
    """`Message.origins` as JSON."""
    turn: str | None = None
    id: str | None = None
    undoes: str = ""

    def is_in(self, undone: Collection[str]) -> bool:
        """Return True if its turn or the line itself is among what was taken back."""
        return self.turn in undone or self.id in undone

    def is_turn_with(self, other: SearchLine) -> bool:
        """Return True if one of the two may be the answer to the other."""
        return self.role != other.role and (self.turn == other.turn or not self.turn or not other.turn)

    def message(self) -> Message:
        """The line as a message; long texts are there only as far as they are searched."""
        role = "assistant" if self.role == "assistant" else "user"
        at = datetime.fromtimestamp(self.ms / 1000, UTC) if self.ms else None
        origins = None if self.origins is None else from_json(json.loads(self.origins))
        return Message(
            role=role,
            content=self.text,
            turn=self.turn,
            id=self.id,
            sender=self.sender,
            timestamp=at,
            scope=self.scope,
            origins=origins,
        )


Found = tuple[str, list[SearchLine], int]
"""The session of a hit, the lines to show, and which of them it is."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The position up to which a session is indexed."""

    session: int
    inode: int
    position: int
    byte: int
    last_ms: int


def line_time(at: datetime | None) -> int:
    """Milliseconds since 1970, never before."""
    return max(0, int(at.timestamp() * 1000)) if at is not None else 0


class Rows:
    """The index in the file at ``path``, created on demand. Every method raises sqlite3.Error."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._db = self.connection = sqlite3.connect(
            path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.execute("PRAGMA secure_delete = ON")  # what a history no longer says is overwritten
            self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._check_version()
            if writable:
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _check_version(self) -> None:
        if (version := self._version()) not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"an index of version {version}")

    def _prepare(self) -> None:
        if self._version() == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # ── writing ──

    def mark(self, name: str) -> Mark | None:
        """Return the mark of the session with this name."""
        row = self._db.execute(
            "SELECT id, inode, position, byte, last_ms FROM sessions WHERE name = ?", (name,)
        ).fetchone()
        return Mark(*row) if row else None

    def marks(self, names: Iterable[str] | None = None) -> dict[str, Mark]:
        """The indexed ones of these sessions (None: of all), by name."""
        if names is not None:
            return {name: mark for name in names if (mark := self.mark(name)) is not None}
        rows = self._db.execute("SELECT name, id, inode, position, byte, last_ms FROM sessions")
        return {name: Mark(*rest) for name, *rest in rows}

    def begin(self, name: str, inode: int) -> Mark:
        """Add a session of which nothing has been indexed yet."""
        self._db.execute(
            "INSERT INTO sessions (name, inode, position, byte, last_ms) VALUES (?, ?, 0, 0, 0)",
            (name, inode),
        )
        mark = self.mark(name)
        assert mark is not None
        return mark

    def add(self, mark: Mark, lines: Sequence[SearchLine], *, position: int, byte: int) -> None:
        """Insert lines and note the new mark, in one transaction."""
        last_ms = mark.last_ms
        scopes: dict[str, int] = {}
        with self._transaction():
            for line in lines:
                if line.undoes:
                    self._delete(self._undone(mark.session, line.undoes))
                    continue
                last_ms = line.ms or last_ms  # a line without a time is as old as the one before it
                scope = scopes.get(line.scope) or self._new_scope(line.scope)
                scopes[line.scope] = scope
                number = self._free_number(scope, last_ms)
                added = self._db.execute(
                    "INSERT OR IGNORE INTO lines"
                    " (id, ms, session, position, scope, answers, sender, text, origins, turn, msg_id)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        number,
                        last_ms,
                        mark.session,
                        line.position,
                        scope,
                        int(line.role == "assistant"),
                        line.sender,
                        line.text[:_MAX_TEXT],
                        line.origins,
                        line.turn,
                        _short_id(line.turn, line.id),
                    ),
                )
                if added.rowcount:
                    self._db.execute("UPDATE scopes SET lines = lines + 1 WHERE id = ?", (scope,))
                    self._db.execute(
                        "INSERT INTO words (rowid, text) VALUES (?, ?)",
                        (number, _indexed(line.text[:_MAX_TEXT], mark.session, line.sender)),
                    )
            self._db.execute(
                "UPDATE sessions SET position = ?, byte = ?, last_ms = ? WHERE id = ?",
                (position, byte, last_ms, mark.session),
            )

    def drop(self, name: str) -> None:
        """Forget a session, in steps: the next call continues after a crash."""
        mark = self.mark(name)
        if mark is None:
            return
        while True:
            lines = self._db.execute(
                "SELECT id, text, scope, session, sender FROM lines WHERE session = ? LIMIT ?",
                (mark.session, _DROP_LINES),
            ).fetchall()
            with self._transaction():
                self._delete(lines)
                if not lines:
                    self._db.execute("DELETE FROM sessions WHERE id = ?", (mark.session,))
            if not lines:
                return

    def _undone(self, session: int, undone: str) -> list[tuple[int, str, int, int, str | None]]:
        return self._db.execute(
            "SELECT id, text, scope, session, sender FROM lines WHERE session = ?1"
            " AND (turn = ?2 OR msg_id = ?2 OR turn || msg_id = ?2)",
            (session, undone),
        ).fetchall()

    def _delete(self, lines: Sequence[tuple[int, str, int, int, str | None]]) -> None:
        for number, text, scope, session, sender in lines:
            self._db.execute(
                "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)",
                (number, _indexed(text, session, sender)),
            )
            self._db.execute("DELETE FROM lines WHERE id = ?", (number,))
            self._db.execute("UPDATE scopes SET lines = lines - 1 WHERE id = ?", (scope,))

    def merge(self) -> None:
        """Merge the parts of the index, of which each batch of lines adds one: searching one is quicker."""
        self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        self._db.executescript("PRAGMA incremental_vacuum;")  # `execute` frees a single page

    def counts(self) -> tuple[int, int]:
        """Return the numbers of sessions and lines."""
        sessions = self._db.execute("SELECT count(*) FROM sessions").fetchone()[0]
        return sessions, self._db.execute("SELECT count(*) FROM lines").fetchone()[0]

    def _free_number(self, scope: int, ms: int) -> int:
        """
        Return the number of a row of this time: one behind the last of the first span that is not full.

        Each span is twice as long as the one before, so few are looked at where many lines have one time.
        """
        first, size = _first_number(scope, ms), _IN_A_SECOND
        while row := self._db.execute(
            "SELECT id FROM lines WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1", (first, first + size)
        ).fetchone():
            if row[0] + 1 < first + size:
                return int(row[0]) + 1
            first, size = first + size, 2 * size
        return first

    def _new_scope(self, name: str) -> int:
        self._db.execute("INSERT OR IGNORE INTO scopes (name) VALUES (?)", (name,))
        number = self._scope_or_none(name)
        assert number is not None
        return number

    def _scope_or_none(self, name: str) -> int | None:
        row = self._db.execute("SELECT id FROM scopes WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # ── asking ──

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read all of one moment in between: what is written meanwhile is not seen."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    def candidates(
        self, query: Query, scope: str, filters: Filters, *, least: float = 0.0
    ) -> tuple[dict[int, Found], Statistics]:
        """Return the possible hits of a scope by row, each with its question or answer, and statistics."""
        number = self._scope_or_none(scope)
        places = "" if filters.sessions is None else self._session_labels(filters)
        if number is None or places is None:
            return {}, Statistics()
        since_ms = filters.since_ms
        said_by = [f'"{_SENDER}{word}"*' for word in filters.person]
        rows = _first_number(number, since_ms), _first_number(number + 1, 0)
        mine = [*said_by, *filter(None, [places])]
        must = [f'"{term.words}"' for term in query.terms if term.quoted]

        def matching(wanted: str) -> list[int]:
            return self._matching(" AND ".join([*mine, *must, wanted]), rows, MAX_POSTINGS)

        found: dict[Term, list[int]] = {}
        as_said: dict[Term, list[int]] = {}
        for term in query.terms:
            exact, forms = f'"{term.words}"', f"({_expression(term)})"
            found[term] = as_said[term] = matching(exact)
            if len(as_said[term]) < MAX_POSTINGS and forms != f"({exact})":
                found[term] = matching(forms)
        (total,) = self._db.execute("SELECT lines FROM scopes WHERE id = ?", (number,)).fetchone()
        statistics = Statistics.from_matches(found, total)
        weighed = [
            (statistics.rarity(term) * (1 + (ids is as_said[term])), ids) for term, ids in found.items()
        ]
        weighed += [
            (statistics.rarity(term), as_said[term]) for term in found if found[term] is not as_said[term]
        ]
        weighed += [
            (statistics.rarity(term), matching(_alike(*term.alike)))
            for term, ids in found.items()
            if not ids and term.alike
        ]
        if all(len(ids) == MAX_POSTINGS for ids in found.values()):  # else those of the rarest have them all
            every = " AND ".join(f'"{term.words}"' for term in found)
            weighed.append((sum(weight for weight, _ in weighed), matching(every)))
            least /= 2  # those lines count twice
        lines = self._with_answers(choose_candidates(weighed, least=least), scope)
        return {row: each for row, each in lines.items() if each[1][each[2]].ms >= since_ms}, statistics

    def _session_labels(self, filters: Filters) -> str | None:
        """Return the expression for the rows of the accepted sessions, "" for all; None if there are none."""
        known = self.marks()
        marks = [mark for name, mark in known.items() if filters.accepts(name)]
        if len(marks) == len(known) and known:
            return ""
        return f"({' OR '.join(_session_label(mark.session) for mark in marks)})" if marks else None

    def _matching(self, expression: str, rows: tuple[int, int], limit: int) -> list[int]:
        found = self._db.execute(
            "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ?"
            " ORDER BY rowid DESC LIMIT ?",
            (expression, *rows, limit),
        )
        return list(chain.from_iterable(found.fetchall()))

    def _with_answers(self, numbers: Sequence[int], scope: str) -> dict[int, Found]:
        """Return the same of rows, but beside a line only what may be the answer to it, or its question."""
        found = {}
        width = len(_COLUMNS)
        for number, session, *columns in self._db.execute(
            _WITH_ANSWER, (json.dumps(numbers), scope)
        ).fetchall():
            lines = [_line(columns[:width], scope)]
            if columns[width] is not None:
                lines.append(_line(columns[width:], scope))
            at = len(lines) - 1 if lines[0].role == "assistant" else 0
            found[number] = session, lines[::-1] if at else lines, at
        return found

    def around(self, numbers: Sequence[int], scope: str) -> dict[int, Found]:
        """Return of rows of a scope the session, the line with its neighbours, and which of them it is."""
        found = {}
        width = len(_COLUMNS)
        for number, session, *columns in self._db.execute(
            _WITH_NEIGHBOURS, (json.dumps(numbers), scope)
        ).fetchall():
            before, line, after = (columns[at : at + width] for at in range(0, 3 * width, width))
            lines = [_line(each, scope) for each in (before, line, after) if each[0] is not None]
            found[number] = session, lines, int(before[0] is not None)
        return found


def _line(row: Sequence[Any], scope: str) -> SearchLine:
    position, ms, answers, sender, text, origins, turn, msg_id = row
    full_id = f"{turn}{msg_id}" if turn and msg_id and msg_id.startswith(".") else msg_id
    role = "assistant" if answers else "user"
    return SearchLine(position, ms, role, sender, text, scope, origins, turn, full_id)


def _short_id(turn: str | None, msg_id: str | None) -> str | None:
    """Return an id that begins with its turn and a dot without the turn."""
    return msg_id[len(turn) :] if turn and msg_id and msg_id.startswith(f"{turn}.") else msg_id


def _first_number(scope: int, ms: int) -> int:
    return (scope << _SCOPE_BITS) + ms // 1000 * _IN_A_SECOND


def _expression(term: Term) -> str:
    wanted = [f'"{term.words}"', *(f'"{part}"' for part in sorted(term.parts))]
    wanted += [f'"{term.beginning}"*'] if term.beginning is not None else []
    wanted += [f'"{TAIL}{term.ending[::-1]}"*'] if term.ending is not None else []
    return " OR ".join(wanted)


def _alike(begin: str, end: str) -> str:
    """Return the words that begin or end so."""
    return f'("{begin}"* OR "{TAIL}{end[::-1]}"*)'


def _session_label(session: int) -> str:
    """Return the word that marks the rows of a session; no word of a text contains such a character."""
    return f'"@s{session}"'


def _indexed(text: str, session: int, sender: str | None) -> str:
    """Return what is indexed of a line: the same for each call, because a row is removed by its words."""
    said_by = (_SENDER + word for word in fold(sender or "").split())
    return " ".join((f"@s{session}", *said_by, *index_words(fold(text))))
