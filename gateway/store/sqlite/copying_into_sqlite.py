"""Reads and writes the embedded database as one side of a move between engines."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from gateway.store.copied_tables import MarkedTables
from gateway.store.copy_marker import Marker
from gateway.store.sql.tables import COLUMNS
from gateway.store.sqlite import sqlite_schema
from gateway.store.sqlite.sqlite_errors import is_damage
from gateway.store.store_errors import StoreUnavailable, StoreUnusable


class EmbeddedTables(MarkedTables):
    """An open ``gateway.db`` that nobody works on. Created by `open`."""

    @classmethod
    @contextmanager
    def open(cls, file: Path, *, new: bool = False) -> Iterator[Self]:
        """Open an existing or new file. Raises StoreUnusable, StoreUnavailable."""
        if new:
            sqlite_schema.create_file(file)
        if not file.exists():
            raise StoreUnusable(f"there is no queue in {file}, so there is nothing to move", path=str(file))
        try:
            with closing(sqlite_schema.open_writer(file, busy_timeout_s=5.0)) as db:
                db.execute("PRAGMA synchronous = FULL")
                sqlite_schema.prepare(db, file)
                yield cls(db)
                if new:
                    db.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        except sqlite3.Error as error:
            if is_damage(error):
                raise sqlite_schema.corrupt(file, error) from error
            raise StoreUnavailable(
                f"the database cannot be read or written: {error}", path=str(file), operation="move"
            ) from error

    def set_marker(self, marker: Marker | None) -> None:
        """Write the marker durably; None removes it."""
        self._db.execute("BEGIN IMMEDIATE")
        super().set_marker(marker)
        self._db.execute("COMMIT")

    def rows(self, table: str) -> Iterator[tuple[object, ...]]:
        """Yield all rows of a table."""
        columns = ", ".join(COLUMNS[table])
        yield from self._db.execute(f"SELECT {columns} FROM {table}")  # noqa: S608 - constants

    def has_rows(self) -> bool:
        """Return True if any table has rows."""
        return any(next(self.rows(table), None) is not None for table in COLUMNS)

    def fill(self, secret: str, last_line: int, rows: Callable[[str], Iterable[Sequence[object]]]) -> None:
        """Insert the rows of every table, and set the identity and the journal's last number."""
        self._db.execute("BEGIN IMMEDIATE")
        for table, columns in COLUMNS.items():
            marks = ", ".join("?" * len(columns))
            self._db.executemany(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608 - constants
                rows(table),
            )
        self._db.execute("DELETE FROM sqlite_sequence WHERE name = 'history_journal'")
        self._db.execute("INSERT INTO sqlite_sequence VALUES ('history_journal', ?)", (last_line,))
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'secret'", (secret,))
        self._db.execute("COMMIT")

    def last_line(self) -> int:
        """Return the highest number that the journal has assigned."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'history_journal'").fetchone()
        return 0 if row is None else int(row[0])
