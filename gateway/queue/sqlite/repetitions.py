"""Texts of ``gateway.db`` in which somebody's words stand again, in rows of others: found, or changed."""
# ruff: noqa: S608 - only constants are put into statements

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.queue.sqlite.erasure import PersonRows
from gateway.queue.sqlite.errors import unavailable
from gateway.queue.sqlite.schema import open_reader, open_writer, prepare

__all__ = ["repeated_in_rows"]

_BUSY_S = 5.0
_OPEN = "SELECT turn FROM inbox WHERE state IN ('ready', 'running') AND turn IS NOT NULL"
_TEXTS = (
    ("outbox", "id", "payload", ""),
    ("history_journal", "id", "line", "WHERE json_valid(line) AND json_extract(line, '$.role') <> 'user'"),
    # A turn that is still open is taken up again by these steps, so they stay what they were.
    ("turn_steps", "rowid", "request", f"WHERE turn NOT IN ({_OPEN})"),
    ("turn_steps", "rowid", "result", f"WHERE turn NOT IN ({_OPEN})"),
)


def repeated_in_rows(
    path: Path, blanked: Callable[[Any], Any], theirs: PersonRows, *, change: bool
) -> dict[str, int]:
    """
    How many rows of each table ``blanked`` changes, leaving out ``theirs``; with ``change`` they are changed.

    Raises:
        StoreUnavailable: It cannot be read, or not be changed now.
    """
    left_out = {
        "outbox": {row["id"] for row in theirs.outbox},
        "history_journal": {row["id"] for row in theirs.journal},
    }
    turns = {row["turn"] for row in theirs.steps}
    counts: dict[str, int] = {}
    opened = open_writer if change else open_reader
    try:
        with closing(opened(path, busy_timeout_s=_BUSY_S)) as db:
            if change:
                prepare(db, path)
                db.execute("PRAGMA secure_delete = ON")
                db.execute("BEGIN IMMEDIATE")
            for table, number, column, where in _TEXTS:
                turn = "turn" if table == "turn_steps" else "NULL"
                rows = db.execute(f"SELECT {number}, {column}, {turn} FROM {table} {where}").fetchall()
                for row, text, of_turn in rows:
                    if row in left_out.get(table, ()) or (of_turn is not None and of_turn in turns):
                        continue
                    left = _changed(text, blanked)
                    if left is None:
                        continue
                    counts[table] = counts.get(table, 0) + 1
                    if change:
                        db.execute(f"UPDATE {table} SET {column} = ? WHERE {number} = ?", (left, row))
            if change:
                db.execute("COMMIT")
    except sqlite3.Error as error:
        raise unavailable(error, path, "forget") from error
    return counts


def _changed(text: str | None, blanked: Callable[[Any], Any]) -> str | None:
    try:
        before = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    after = blanked(before)
    return None if after == before else json.dumps(after, ensure_ascii=False, separators=(",", ":"))
