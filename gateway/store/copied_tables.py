"""The tables that both engines have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from gateway.store.sql.tables import TABLES

_Row = TypeVar("_Row")
_LEFT_OUT = frozenset({"meta", "leases"})
_CREATE = re.compile(r"CREATE TABLE (\w+) \((.*?)\n?\)(?: WITHOUT ROWID)?;", re.DOTALL)
_COLUMN = re.compile(r"(?:^|,)\s*([a-z_]+) (?:INTEGER|TEXT|REAL|BLOB)")


def _columns() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, body in _CREATE.findall(TABLES):
        if name not in _LEFT_OUT:
            yield name, tuple(_COLUMN.findall(body))


COLUMNS: Mapping[str, tuple[str, ...]] = dict(_columns())
"""The columns of each table that is moved; the order of the tables respects the references between them."""
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
