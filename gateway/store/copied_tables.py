"""The tables that both engines have, and what tells a database as one side of a move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from gateway.store.copy_marker import NAME, Marker
from gateway.store.sql.engine import ConnectionPort

_Row = TypeVar("_Row")
NUMBERED = ("inbox", "receipts", "history_journal", "outbox", "ledger", "collected")
"""The tables that number their rows."""


def storable_row(row: Iterable[object]) -> tuple[object, ...]:
    """Return a row as PostgreSQL can store it: without NUL in texts."""
    return tuple(
        value.replace("\0", "\ufffd")
        if isinstance(value, str)
        else bytes(value)
        if isinstance(value, bytes | bytearray | memoryview)
        else value
        for value in row
    )


def batches(rows: Iterable[_Row], size: int) -> Iterator[list[_Row]]:
    """Yield all rows in batches."""
    batch: list[_Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


class MarkedTables:
    """The identity of a database, and the marker of a move of its content, in rows of ``meta``."""

    def __init__(self, db: ConnectionPort) -> None:
        self._db = db

    @property
    def secret(self) -> str:
        """The identity."""
        return str(self._meta("secret"))

    @property
    def marker(self) -> Marker | None:
        """The marker; None if the content was not moved."""
        text = self._meta(NAME)
        return None if text is None else Marker.read(text)

    def set_marker(self, marker: Marker | None) -> None:
        """Write the marker; None removes it."""
        self._db.execute("DELETE FROM meta WHERE name = ?", (NAME,))
        if marker is not None:
            self._db.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (NAME, marker.text()))

    def _meta(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])
