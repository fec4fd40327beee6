"""
Updates an older ``gateway.db`` to the current version: numbered steps, each in one transaction with its
number.

A step is written once and never changed afterwards. Its result must equal what `schema.py` creates from
nothing (a test compares them). Before the first step, the file is copied, because going back to an earlier
version of squidbot is not possible otherwise.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.queue.errors import StoreUnavailable
from gateway.queue.sql.tables import VERSION

APPLICATION_ID = 0x53514254
"""The id that distinguishes a ``gateway.db`` from other databases."""

Migration = Callable[[sqlite3.Connection], None]


def _rebuilt(db: sqlite3.Connection, table: str, columns: str, definition: str, *indexes: str) -> None:
    """Rebuild a table with another definition: SQLite cannot change a CHECK."""
    db.execute(f"CREATE TABLE new_{table} ({definition})")
    db.execute(f"INSERT INTO new_{table} ({columns}) SELECT {columns} FROM {table}")  # noqa: S608 - constants
    db.execute(f"DROP TABLE {table}")
    db.execute(f"ALTER TABLE new_{table} RENAME TO {table}")
    for index in indexes:
        db.execute(index)


def _to_2(db: sqlite3.Connection) -> None:
    """Add amendments, drafts and quarantine: two states, the withdrawn mark, digests of ignored messages."""
    _rebuilt(
        db,
        "inbox",
        "id, channel, account, native_id, session, kind, payload, state, attempts, deferrals,"
        " first_deferred_at, next_at, fence, turn, tail, error, accepted_at, ended_at",
        "id INTEGER PRIMARY KEY,"
        " channel TEXT NOT NULL, account TEXT NOT NULL, native_id TEXT NOT NULL,"
        " session TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT,"
        " state TEXT NOT NULL CHECK (state IN ('ready', 'running', 'answered', 'settled', 'dead', 'ignored',"
        " 'quarantined')),"
        " attempts INTEGER NOT NULL DEFAULT 0, deferrals INTEGER NOT NULL DEFAULT 0,"
        " first_deferred_at REAL, next_at REAL, fence INTEGER NOT NULL DEFAULT 0, turn TEXT, tail INTEGER,"
        " error TEXT, accepted_at REAL NOT NULL, ended_at REAL, withdrawn TEXT,"
        " UNIQUE (channel, account, native_id)",
        "CREATE INDEX inbox_work ON inbox (state, session)",
    )
    _rebuilt(
        db,
        "outbox",
        "id, inbox_id, turn, key, channel, account, session, payload, state, attempts, next_at,"
        " uncertain_at, provider_id, error, created_at, ended_at",
        "id INTEGER PRIMARY KEY,"
        " inbox_id INTEGER REFERENCES inbox (id), turn TEXT, key TEXT NOT NULL,"
        " channel TEXT NOT NULL, account TEXT NOT NULL, session TEXT NOT NULL, payload TEXT,"
        " state TEXT NOT NULL CHECK (state IN ('pending', 'sending', 'uncertain', 'sent', 'dead', 'unknown',"
        " 'held')),"
        " attempts INTEGER NOT NULL DEFAULT 0, next_at REAL, uncertain_at REAL, provider_id TEXT, error TEXT,"
        " created_at REAL NOT NULL, ended_at REAL",
        "CREATE INDEX outbox_inbox ON outbox (inbox_id)",
        "CREATE INDEX outbox_state ON outbox (state)",
        "CREATE INDEX outbox_open ON outbox (channel, account, session)"
        " WHERE state IN ('pending', 'sending', 'uncertain')",
        "CREATE INDEX outbox_provider ON outbox (provider_id) WHERE provider_id IS NOT NULL",
    )
    db.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY, day INTEGER NOT NULL) WITHOUT ROWID")


def _to_3(db: sqlite3.Connection) -> None:
    """Add scheduled jobs, the run ledger, and alerts that wait for the digest."""
    db.execute(
        """CREATE TABLE jobs (
            id TEXT PRIMARY KEY, kind TEXT NOT NULL, text TEXT NOT NULL, timing TEXT NOT NULL,
            session TEXT NOT NULL, account TEXT NOT NULL, person TEXT NOT NULL, audience TEXT NOT NULL,
            context TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('active', 'paused', 'done')),
            created_at REAL NOT NULL, next_at REAL, last_at REAL, ended_at REAL,
            revision INTEGER NOT NULL, note TEXT NOT NULL
        )"""
    )
    db.execute(
        """CREATE TABLE ledger (
            id INTEGER PRIMARY KEY, name TEXT NOT NULL, instant REAL NOT NULL, until REAL NOT NULL,
            ticks INTEGER NOT NULL, at REAL NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
            tokens INTEGER NOT NULL, calls INTEGER NOT NULL, took_s REAL NOT NULL, said TEXT NOT NULL
        )"""
    )
    db.execute("""CREATE INDEX ledger_name ON ledger (name, until)""")
    db.execute("""CREATE INDEX ledger_said ON ledger (said) WHERE said <> ''""")
    db.execute(
        """CREATE TABLE collected (
            id INTEGER PRIMARY KEY, channel TEXT NOT NULL, person TEXT NOT NULL, text TEXT NOT NULL,
            at REAL NOT NULL
        )"""
    )


def _to_4(db: sqlite3.Connection) -> None:
    """Add crash records, and what a row waits for."""
    db.execute("ALTER TABLE inbox ADD COLUMN waits_for TEXT")
    db.execute("ALTER TABLE outbox ADD COLUMN waits_for TEXT")
    db.execute(
        """CREATE TABLE deaths (
            number INTEGER NOT NULL, item TEXT NOT NULL, step INTEGER NOT NULL, company INTEGER NOT NULL,
            at REAL NOT NULL, PRIMARY KEY (item, number)
        ) WITHOUT ROWID"""
    )


def _to_5(db: sqlite3.Connection) -> None:
    """Add the numbers of cached tokens and of thinking tokens."""
    db.execute("ALTER TABLE usage ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE usage ADD COLUMN thinking_tokens INTEGER NOT NULL DEFAULT 0")


def _to_6(db: sqlite3.Connection) -> None:
    """Move the gateway's own memory out of a pseudo channel, and add indexes for lookups by key."""
    for table in ("state", "once"):
        db.execute(f"CREATE TABLE {table} (topic TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
    db.execute(
        "INSERT INTO once SELECT name, value FROM positions WHERE channel = 'gateway' AND account = 'once'"
    )
    db.execute(
        "INSERT INTO state SELECT account || '.' || name, value FROM positions"
        " WHERE channel = 'gateway' AND account <> 'once'"
    )
    db.execute("DELETE FROM positions WHERE channel = 'gateway'")
    db.execute("CREATE INDEX outbox_key ON outbox (key)")
    db.execute(
        "CREATE INDEX inbox_taken_back ON inbox (state, accepted_at)"
        " WHERE state = 'ignored' AND turn IS NOT NULL"
    )


def _to_7(db: sqlite3.Connection) -> None:
    """Add receipts of tools' effects."""
    db.execute(
        """CREATE TABLE receipts (
            id INTEGER PRIMARY KEY, turn TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL,
            session TEXT NOT NULL, tool TEXT NOT NULL, effect TEXT NOT NULL, call TEXT NOT NULL,
            asked_by TEXT NOT NULL, origins TEXT NOT NULL, approved_by TEXT NOT NULL,
            outcome TEXT NOT NULL, told TEXT, undo TEXT, ended_at REAL,
            UNIQUE (turn, number)
        )"""
    )
    db.execute("CREATE INDEX receipts_at ON receipts (at)")


def _to_8(db: sqlite3.Connection) -> None:
    """Add an index for background jobs among all messages."""
    db.execute("CREATE INDEX inbox_background ON inbox (id) WHERE kind = 'background_job'")


def _to_9(db: sqlite3.Connection) -> None:
    """Add grants."""
    db.execute(
        """CREATE TABLE grants (
            id TEXT PRIMARY KEY, kind TEXT NOT NULL, tool TEXT NOT NULL, what TEXT NOT NULL,
            session TEXT NOT NULL, people TEXT NOT NULL, given_by TEXT NOT NULL, at REAL NOT NULL,
            until REAL NOT NULL, turn TEXT NOT NULL, origins TEXT NOT NULL, seen_at REAL
        ) WITHOUT ROWID"""
    )


MIGRATIONS: Mapping[int, Migration] = {
    1: _to_2,
    2: _to_3,
    3: _to_4,
    4: _to_5,
    5: _to_6,
    6: _to_7,
    7: _to_8,
    8: _to_9,
}
"""The step from each older version to the next one."""


def migrate(
    db: sqlite3.Connection, path: Path, found: int, *, to: int = VERSION, steps: Mapping[int, Migration]
) -> None:
    """
    Update a database from the version ``found`` to ``to``; a copy of its old state stays beside it.

    Raises:
        StoreUnavailable, sqlite3.Error: It cannot be done now; each step is done completely or not at all.
    """
    try:
        lay_aside(db, path, found)
    except OSError as error:
        raise StoreUnavailable(
            f"no copy of {path} can be made before it is brought up to date: {error.strerror}",
            path=str(path),
            operation="migrate",
        ) from error
    db.execute("PRAGMA foreign_keys = OFF")  # else rebuilding a table would affect rows that refer to it
    try:
        for step in range(found, to):
            db.execute("BEGIN IMMEDIATE")
            try:
                steps[step](db)
                if (broken := db.execute("PRAGMA foreign_key_check").fetchone()) is not None:
                    raise sqlite3.IntegrityError(f"after step {step} a row refers to nothing: {broken}")  # noqa: TRY301 - rolled back below
                db.execute(f"PRAGMA user_version = {step + 1}")
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
    finally:
        db.execute("PRAGMA foreign_keys = ON")
    import structlog  # noqa: PLC0415 - `status` asks for our version only, and is quick

    structlog.get_logger(__name__).info("store.migrated", path=str(path), from_schema=found, to_schema=to)


def copy_name(path: Path, version: int) -> Path:
    """Return the path for the copy of a database of this version."""
    return path.with_name(f"{path.name}.v{version}.bak")


def lay_aside(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Copy the database, completely and durably, readable by its owner alone."""
    target = copy_name(path, version)
    making = target.with_name(f"{target.name}.new")
    with contextlib.suppress(FileNotFoundError):
        making.unlink()
    os.close(os.open(making, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    copy = sqlite3.connect(making, isolation_level=None)
    try:
        db.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    finally:
        copy.close()
    for name in (making, path.parent):
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if name == making:
            making.replace(target)
