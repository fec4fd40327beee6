"""
Creates ``gateway.db`` and opens connections to it. Its tables are in `gateway.store.sql.tables`. Why one
connection writes and all others are ``mode=ro``: SQLite up to 3.51.2 can corrupt a WAL database when two
connections write or checkpoint at once (https://sqlite.org/wal.html, "the WAL-reset bug"). For the same
reason nothing else may open this file for writing. Since POSIX locks belong to the process, nothing in this
process may open and close the file by other means.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path
from urllib.parse import quote

from agent_core.files import sync
from gateway.store.copy_marker import NAME as MOVED
from gateway.store.copy_marker import check_no_marker
from gateway.store.sql.tables import TABLES, VERSION
from gateway.store.sqlite.sqlite_errors import name_of
from gateway.store.store_errors import StoreCorrupt, StoreTooNew, StoreUnusable


class EmbeddedConnection(sqlite3.Connection):
    """A connection to ``gateway.db``. Implements `gateway.store.sql.engine.ConnectionPort`."""

    def lock(self, *names: str) -> None:
        """Do nothing: nobody else writes while a transaction of the one writer is open."""

    def note(self, fact: str, of: str) -> None:
        """Fire a signal after the commit."""
        self.execute("SELECT became_true(?, ?)", (fact, of))


APPLICATION_ID = 0x53514254
"""The id that distinguishes a ``gateway.db`` from other databases."""
_OLDEST_SQLITE = (3, 35, 0)
# A cache grows to its limit and stays, and the system keeps the file's pages anyway.
_WRITER_CACHE_KIB = 2000
_READER_CACHE_KIB = 1000
_CORRUPT = (
    "The queue's database {path} is damaged ({why}). It was not touched. Stop squidbot, keep a copy of the "
    "file and of the -wal file beside it, and bring back a backup; or move both away to begin with an empty "
    "queue: messages that were accepted and not yet answered are then lost."
)
_FOREIGN = (
    "{path} is a database, but not one of squidbot's. It was not touched; give squidbot another home folder."
)
_TOO_NEW = (
    "{path} was written by a later version of squidbot (schema {found}, this version knows {known}). It was "
    "not touched. Install that version again, or bring back a backup from before the upgrade."
)
_TOO_OLD = (
    "{path} was written by a version from before the first release (schema {found}, this version knows "
    "{known}). It was not touched. Install the version that wrote it, or move the file away to begin anew."
)


def create_file(path: Path) -> None:
    """Create an empty file readable by its owner alone, durably; restrict an existing one to that."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        return
    os.close(descriptor)
    sync(path.parent)


def _connect(path: Path, mode: str, busy_timeout_s: float) -> EmbeddedConnection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,  # squidbot begins and ends the transactions itself
        timeout=busy_timeout_s,
        cached_statements=256,
        factory=EmbeddedConnection,
    )


def open_writer(path: Path, *, busy_timeout_s: float) -> EmbeddedConnection:
    """Open the one connection that writes. The file must exist: a removed file is not created again."""
    db = _connect(path, "rw", busy_timeout_s)
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            reason = f"the file system has no shared memory for WAL (mode {mode})"
            raise sqlite3.OperationalError(reason)  # noqa: TRY301 - the connection is closed below
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        db.execute("PRAGMA journal_size_limit = 67108864")
        db.create_function("became_true", -1, lambda *_: None)  # nobody subscribes, unless it is watched
    except BaseException:
        db.close()
        raise
    return db


def open_reader(path: Path, *, busy_timeout_s: float) -> EmbeddedConnection:
    """Open a connection that cannot write."""
    db = _connect(path, "ro", busy_timeout_s)
    db.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
    return db


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Create the tables in an empty file. Raises StoreTooNew, StoreUnusable or StoreCorrupt."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        needed = ".".join(map(str, _OLDEST_SQLITE))
        raise StoreUnusable(f"SQLite {sqlite3.sqlite_version} is too old; squidbot needs {needed} or later.")
    (found,) = db.execute("PRAGMA user_version").fetchone()
    (owner,) = db.execute("PRAGMA application_id").fetchone()
    if found == 0:
        if owner or db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise StoreCorrupt(_FOREIGN.format(path=path), path=str(path))
        _create(db)
        found = VERSION
    elif owner != APPLICATION_ID:
        raise StoreCorrupt(_FOREIGN.format(path=path), path=str(path))
    if found > VERSION:
        raise StoreTooNew(
            _TOO_NEW.format(path=path, found=found, known=VERSION), path=str(path), found=found, known=VERSION
        )
    if found < VERSION:
        raise StoreUnusable(_TOO_OLD.format(path=path, found=found, known=VERSION), path=str(path))


def _create(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in TABLES.split(";\n"):
            if statement.strip():
                db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('secret', ?)", (secrets.token_hex(16),))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def identify(db: sqlite3.Connection, path: Path, known: list[str]) -> None:
    """Read or compare the random identity. Raises StoreCorrupt, StoreMoved or sqlite3.DatabaseError."""
    found = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('secret', ?)", (MOVED,)))
    if "secret" not in found:
        raise StoreCorrupt("the database has lost its identity")
    if known and known[0] != found["secret"]:
        raise sqlite3.DatabaseError("another database lies in its place")
    check_no_marker(found.get(MOVED), str(path))
    known[:] = [str(found["secret"])]


def corrupt(path: Path, error: sqlite3.Error) -> StoreCorrupt:
    """Return the error for a file that SQLite cannot read."""
    return StoreCorrupt(_CORRUPT.format(path=path, why=error), path=str(path), sqlite=name_of(error))
