"""
Opens ``gateway.db`` for finding a person while a daemon may be running, and for erasing them while none is.

Deleted rows leave their bytes in the file, in free pages and in the log beside it. So rows are overwritten
(``secure_delete``), the file is rewritten (``VACUUM``) and the log is emptied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gateway.store.sqlite.sqlite_errors import unavailable
from gateway.store.sqlite.sqlite_schema import EmbeddedConnection, identify, open_reader, open_writer, prepare

_BUSY_S = 5.0


@contextmanager
def transaction(path: Path, operation: str, *, change: bool, compact: bool) -> Iterator[EmbeddedConnection]:
    """Open a transaction; ``compact`` needs exclusive access. Raises StoreUnavailable; repeatable."""
    opened = open_writer if change else open_reader
    try:
        with closing(opened(path, busy_timeout_s=_BUSY_S)) as db:
            if change:
                prepare(db, path)
                identify(db, path, [])
                db.execute("PRAGMA secure_delete = ON")
                db.execute("BEGIN IMMEDIATE")
            else:
                db.execute("BEGIN")
                identify(db, path, [])
            yield db
            db.execute("COMMIT")
            if compact:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                db.execute("VACUUM")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise unavailable(error, path, operation) from error
