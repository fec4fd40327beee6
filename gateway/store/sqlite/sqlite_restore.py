"""
Opens ``gateway.db`` outside the daemon: checks a restored copy and parks its open work, and finds or erases a
person. Deleted rows leave their bytes in free pages and in the log, so rows are overwritten
(``secure_delete``), the file is rewritten (``VACUUM``) and the log is emptied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gateway.store.sql.quarantine_after_restore import QuarantineCounts, set_aside_open_work
from gateway.store.sql.tables import VERSION
from gateway.store.sqlite.sqlite_errors import unavailable
from gateway.store.sqlite.sqlite_schema import (
    APPLICATION_ID,
    EmbeddedConnection,
    identify,
    open_reader,
    open_writer,
    prepare,
)
from gateway.store.store_errors import StoreCorrupt, StoreTooNew


def examine_copy(path: Path) -> tuple[int, str, int, int]:
    """Check a copy; return schema, secret, highest ids. Raises StoreTooNew or StoreCorrupt."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            (owner,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if owner != APPLICATION_ID:
                raise StoreCorrupt("the database in it is not one of squidbot's", path=str(path))
            if version > VERSION:
                raise StoreTooNew(
                    f"it was made by a later version of squidbot (schema {version}, this version knows "
                    f"{VERSION}); install that version first",
                    path=str(path),
                    found=version,
                    known=VERSION,
                )
            if version < VERSION:
                raise StoreCorrupt(
                    f"it was made by a version from before the first release (schema {version}, this version "
                    f"knows {VERSION}); restore it with the version that made it",
                    path=str(path),
                )
            # A view can run forever, and a trigger can do anything: our schema has neither.
            foreign = db.execute(
                "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index')"
            ).fetchone()
            if foreign is not None:
                raise StoreCorrupt("the database in it is not as squidbot makes it", path=str(path))
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise StoreCorrupt(f"the database in it is damaged ({verdict})", path=str(path))
            found = db.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
            if found is None or not isinstance(found[0], str):
                raise StoreCorrupt("the database in it has no identity", path=str(path))
            inbox, outbox = db.execute(
                "SELECT COALESCE((SELECT MAX(id) FROM inbox), 0), COALESCE((SELECT MAX(id) FROM outbox), 0)"
            ).fetchone()
            if not isinstance(inbox, int) or not isinstance(outbox, int):
                raise StoreCorrupt("the database in it is not as squidbot makes it", path=str(path))
            return version, found[0], inbox, outbox
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(f"the database in it is damaged ({error})", path=str(path)) from error


def quarantine_open_work(
    path: Path, *, backed_up_at: float, now: float, runs_once: Callable[[str], bool]
) -> QuarantineCounts:
    """Park a copy's open work in one transaction. Raises StoreUnavailable."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            parked = set_aside_open_work(db, backed_up_at=backed_up_at, now=now, runs_once=runs_once)
            db.execute("COMMIT")
            return parked
    except sqlite3.Error as error:
        raise unavailable(error, path, "restore") from error


@contextmanager
def transaction(path: Path, operation: str, *, change: bool, compact: bool) -> Iterator[EmbeddedConnection]:
    """Open a transaction; ``compact`` needs exclusive access. Raises StoreUnavailable; repeatable."""
    opened = open_writer if change else open_reader
    try:
        with closing(opened(path, busy_timeout_s=5.0)) as db:
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
