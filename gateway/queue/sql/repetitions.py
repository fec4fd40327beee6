"""Finds or changes texts in other people's rows that repeat a person's words."""
# ruff: noqa: S608 - only constants are put into statements

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from gateway.queue.sql.codec import payload_object
from gateway.queue.sql.engine import Connection
from gateway.queue.sql.erasure import PersonRows, texts_of

_STEPS = (
    "SELECT turn, number, request, result FROM turn_steps WHERE turn NOT IN"
    " (SELECT turn FROM inbox WHERE state IN ('ready', 'running') AND turn IS NOT NULL)"
)
"""Without open turns: those resume from their steps, so their steps stay unchanged."""


def repeated(
    db: Connection, blanked: Callable[[Any], Any], theirs: PersonRows, *, change: bool
) -> dict[str, int]:
    """Count the texts of each table that ``blanked`` changes, without ``theirs``; ``change`` changes them."""
    counts: dict[str, int] = {}
    for table, column, key, text in _texts(db, theirs):
        left = _changed(text, blanked)
        if left is None:
            continue
        counts[table] = counts.get(table, 0) + 1
        if change:
            where = " AND ".join(f"{name} = ?" for name in key)
            db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (left, *key.values()))
    return counts


def _texts(db: Connection, theirs: PersonRows) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Yield table, column, key and text of what is neither the person's nor somebody's question."""
    sends, lines = {row["id"] for row in theirs.outbox}, {row["id"] for row in theirs.journal}
    for number, text in texts_of(db, "outbox", "payload"):
        if number not in sends:
            yield "outbox", "payload", {"id": number}, text
    for number, text in texts_of(db, "history_journal", "line"):
        if number not in lines and (payload_object(text) or {}).get("role") not in (None, "user"):
            yield "history_journal", "line", {"id": number}, text
    turns = {row["turn"] for row in theirs.steps}
    for turn, number, request, result in db.execute(_STEPS).fetchall():
        if turn not in turns:
            for column, text in (("request", request), ("result", result)):
                if text is not None:
                    yield "turn_steps", column, {"turn": turn, "number": number}, text


def _changed(text: str, blanked: Callable[[Any], Any]) -> str | None:
    try:
        before = json.loads(text)
    except (ValueError, RecursionError):
        return None
    after = blanked(before)
    return None if after == before else json.dumps(after, ensure_ascii=False, separators=(",", ":"))
