"""
Reads and writes the vectors beside the history lines, each call in the caller's transaction. A trigger
removes the vectors of a line whose words or place change, or that is deleted, in its transaction
(``history_tables.py``). ``id`` only grows, and only the active daemon adds rows, one call after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.store.postgres.histories.database_search import folded_text, text_of
from gateway.store.sql.engine import ConnectionPort

_ADD = (
    "INSERT INTO vectors (session, seq, scope, vectors) SELECT session, seq, scope, ? FROM history"
    # The lock makes an erasure at the same time wait, and then find these vectors.
    " WHERE session = ? AND seq = ? AND said = ? FOR SHARE ON CONFLICT DO NOTHING"
)


def without(
    db: ConnectionPort, session: str, after: int, limit: int
) -> list[tuple[int, tuple[str, int], str]]:
    """Return position, line and text of the first lines of a session after a position without vectors."""
    rows = db.execute(
        "SELECT h.seq, h.line FROM history AS h WHERE h.session = ? AND h.seq > ? AND h.said IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM vectors AS v WHERE v.session = h.session AND v.seq = h.seq)"
        " ORDER BY h.seq LIMIT ?",
        (session, after, limit),
    ).fetchall()
    return [(seq, (session, seq), text_of(raw, seq)) for seq, raw in rows]


def add(db: ConnectionPort, vectors: Sequence[tuple[int, Any, str, bytes]]) -> bool:
    """Add the vectors of lines that still have their text. Returns True."""
    db.executemany(_ADD, [(raw, *line, folded_text(text)) for _, line, text, raw in vectors])
    return True


def after(db: ConnectionPort, scope: str, mark: int, limit: int) -> list[tuple[int, int, bytes]]:
    """Return number, time in ms and vectors of what a scope got after a number, in order."""
    return _read_vectors(db, ">", "ASC", (scope, mark, limit))


def before(db: ConnectionPort, scope: str, mark: int, limit: int) -> list[tuple[int, int, bytes]]:
    """Return the same of what it got before a number, the last first."""
    return _read_vectors(db, "<", "DESC", (scope, mark, limit))


def _read_vectors(
    db: ConnectionPort, where: str, order: str, asked: tuple[str, int, int]
) -> list[tuple[int, int, bytes]]:
    rows = db.execute(
        "SELECT v.id, h.at, v.vectors FROM vectors AS v"  # noqa: S608 - of our own constants
        " JOIN history AS h ON h.session = v.session AND h.seq = v.seq"
        f" WHERE v.scope = ? AND v.id {where} ? ORDER BY v.id {order} LIMIT ?",
        asked,
    ).fetchall()
    return [(int(number), int(at), bytes(raw)) for number, at, raw in rows]
