"""Finds texts in other people's rows that repeat a person's words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.erasure_statements import PersonRows, texts_of
from gateway.store.sql.row_codec import payload_object

_STEPS = (
    "SELECT turn, request, result FROM turn_steps WHERE turn NOT IN"
    " (SELECT turn FROM inbox WHERE state IN ('ready', 'running') AND turn IS NOT NULL)"
)


def count_repetitions(
    db: ConnectionPort, repeats: Callable[[Any], bool], theirs: PersonRows
) -> dict[str, int]:
    """Count the texts of each table that ``repeats`` recognises, without ``theirs``."""
    return dict(Counter(table for table, text in _texts(db, theirs) if _repeats(text, repeats)))


def _texts(db: ConnectionPort, theirs: PersonRows) -> Iterator[tuple[str, str]]:
    """Yield table and text of what is neither the person's nor somebody's question."""
    sends, lines = {row["id"] for row in theirs.outbox}, {row["id"] for row in theirs.journal}
    for number, text in texts_of(db, "outbox", "payload"):
        if number not in sends:
            yield "outbox", text
    for number, text in texts_of(db, "history_journal", "line"):
        if number not in lines and (payload_object(text) or {}).get("role") not in (None, "user"):
            yield "history_journal", text
    turns = {row["turn"] for row in theirs.steps}
    for turn, request, result in db.execute(_STEPS).fetchall():
        if turn not in turns:
            yield from (("turn_steps", text) for text in (request, result) if text is not None)


def _repeats(text: str, repeats: Callable[[Any], bool]) -> bool:
    try:
        return repeats(json.loads(text))
    except (ValueError, RecursionError):
        return False
