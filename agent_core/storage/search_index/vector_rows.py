"""
The vectors beside the rows of the search index (a `VectorStore`), and the statements on them. A trigger
removes the vectors of a line with the line, in the same transaction, also where a program does so that knows
nothing of vectors. ``id`` only grows, so what was added later has a larger one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from agent_core.storage.search_index.ranking import Similarity
from agent_core.storage.search_index.vectors import Nearest
from agent_core.storage.search_index.word_splitting import Filters

_TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS vectors (
    id INTEGER PRIMARY KEY AUTOINCREMENT, line INTEGER NOT NULL UNIQUE, scope INTEGER NOT NULL,
    vectors BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS vectors_scope ON vectors (scope, id);
CREATE TRIGGER IF NOT EXISTS lines_vectors AFTER DELETE ON lines BEGIN
    DELETE FROM vectors WHERE line = old.id;
END;
COMMIT;
"""
_Result = TypeVar("_Result")


class _Run(Protocol):
    def __call__(self, work: Callable[[sqlite3.Connection], _Result], /) -> Awaitable[_Result | None]: ...


def prepare_vectors(db: sqlite3.Connection) -> None:
    """Create what is not there yet."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'lines_vectors'").fetchone() is None:
        db.executescript(_TABLES)


def similar_lines(
    db: sqlite3.Connection, found: Nearest, scope: str, filters: Filters
) -> dict[int, Similarity]:
    """Return the lines of vectors that are there, in the scope and searched."""
    marks = ", ".join("?" * len(found))
    rows = db.execute(
        "SELECT v.id, l.id, s.name, l.position, l.ms, l.sender FROM vectors v JOIN lines l ON l.id = v.line"  # noqa: S608
        f" JOIN sessions s ON s.id = l.session WHERE v.id IN ({marks})"  # of our own marks
        " AND l.scope = (SELECT id FROM scopes WHERE name = ?)",
        (*found, scope),
    )
    return {
        line: Similarity(session, position, *found[number])
        for number, line, session, position, ms, sender in rows
        if filters.accepts(session) and filters.is_said(ms, sender)
    }


class IndexVectors:
    """
    Implements `VectorStore` beside the rows of the index.

    Args:
        written: Runs something with the connection that writes, in a thread; None: it cannot.
        read: The same with the one that reads.
    """

    def __init__(self, written: _Run, read: _Run) -> None:
        self._written = written
        self._read = read

    async def without_vectors(
        self, session_id: str, after: int, limit: int
    ) -> list[tuple[int, Any, str]] | None:
        """See `VectorStore`."""
        return await self._read(lambda db: _without(db, session_id, after, limit))

    async def add_vectors(self, session_id: str, vectors: Sequence[tuple[int, Any, str, bytes]]) -> bool:
        """See `VectorStore`."""
        return await self._written(lambda db: _add(db, vectors)) is not None

    async def vectors_after(self, scope: str, mark: int, limit: int) -> list[tuple[int, int, bytes]] | None:
        """See `VectorStore`."""
        return await self._read(lambda db: _read_vectors(db, ">", "ASC", (scope, mark, limit)))

    async def vectors_before(self, scope: str, mark: int, limit: int) -> list[tuple[int, int, bytes]] | None:
        """See `VectorStore`."""
        return await self._read(lambda db: _read_vectors(db, "<", "DESC", (scope, mark, limit)))


def _without(db: sqlite3.Connection, session: str, after: int, limit: int) -> list[tuple[int, Any, str]]:
    return db.execute(
        "SELECT l.position, l.id, l.text FROM sessions s JOIN lines l ON l.session = s.id"
        " LEFT JOIN vectors v ON v.line = l.id"
        " WHERE s.name = ? AND l.position > ? AND v.line IS NULL ORDER BY l.position LIMIT ?",
        (session, after, limit),
    ).fetchall()


def _add(db: sqlite3.Connection, vectors: Sequence[tuple[int, Any, str, bytes]]) -> bool:
    db.executemany(
        "INSERT OR IGNORE INTO vectors (line, scope, vectors) SELECT id, scope, ? FROM lines"
        " WHERE id = ? AND position = ? AND text = ?",
        [(raw, number, position, text) for position, number, text, raw in vectors],
    )
    return True


def _read_vectors(
    db: sqlite3.Connection, where: str, order: str, asked: tuple[str, int, int]
) -> list[tuple[int, int, bytes]]:
    return db.execute(
        "SELECT v.id, l.ms, v.vectors FROM vectors v JOIN lines l ON l.id = v.line"  # noqa: S608 - of our own constants
        f" WHERE v.scope = (SELECT id FROM scopes WHERE name = ?) AND v.id {where} ?"
        f" ORDER BY v.id {order} LIMIT ?",
        asked,
    ).fetchall()
