"""
The tables of ``gateway.db`` as they are made from nothing, and how the file is opened.

What is changed here needs a step in ``migrations.py``, which brings older files up to date.

``inbox`` is one row per accepted message; its ``id`` is the order of everything. ``tail`` is the last row of
the turn, on which the answers in ``outbox`` hang. ``history_journal`` holds lines that are not yet durable in
their files, ``turn_steps`` what an unfinished turn has done so far, ``receipts`` what tools have done,
``grants`` what is allowed in advance. Payloads are JSON texts and become NULL when they are forgotten; the
rows stay, because their keys are what recognises a repetition. Of rows that were only ignored nothing is left
in the end but a digest of the key, in ``seen``.

``positions`` belongs to the channels. ``state`` is what the gateway itself remembers, ``once`` the newest
value of each topic that was posted once.

Times are seconds since 1970 in UTC, from the clock of whoever opened the store.

Why one connection writes and all others are ``mode=ro``: SQLite up to 3.51.2 can corrupt a WAL database when
two connections write or checkpoint at once (https://sqlite.org/wal.html, "the WAL-reset bug"). For the same
reason nothing else may open this file for writing, and since POSIX locks belong to the process, nothing in
this process may open and close it by other means.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from agent_core.files import sync
from gateway.queue.ports import StoreCorrupt, StoreTooNew, StoreUnusable
from gateway.queue.sqlite.errors import name_of
from gateway.queue.sqlite.migrations import APPLICATION_ID, MIGRATIONS, VERSION, Migration, migrate

__all__ = [
    "APPLICATION_ID",
    "VERSION",
    "EmbeddedConnection",
    "corrupt",
    "create_file",
    "identify",
    "open_reader",
    "open_writer",
    "prepare",
]


class EmbeddedConnection(sqlite3.Connection):
    """A connection to ``gateway.db``. Implements `gateway.queue.sql.engine.Connection`."""

    def lock(self, *names: str) -> None:
        """Nothing: nobody else writes while a transaction of the one writer is open."""


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

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE positions (
    channel TEXT NOT NULL, account TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (channel, account, name)
) WITHOUT ROWID;
CREATE TABLE state (topic TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE once (topic TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE inbox (
    id INTEGER PRIMARY KEY,
    channel TEXT NOT NULL, account TEXT NOT NULL, native_id TEXT NOT NULL,
    session TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT,
    state TEXT NOT NULL CHECK (state IN ('ready', 'running', 'answered', 'settled', 'dead', 'ignored',
        'quarantined')),
    attempts INTEGER NOT NULL DEFAULT 0, deferrals INTEGER NOT NULL DEFAULT 0,
    first_deferred_at REAL, next_at REAL, fence INTEGER NOT NULL DEFAULT 0, turn TEXT, tail INTEGER,
    error TEXT, accepted_at REAL NOT NULL, ended_at REAL, withdrawn TEXT, waits_for TEXT,
    UNIQUE (channel, account, native_id)
);
CREATE INDEX inbox_work ON inbox (state, session);
CREATE INDEX inbox_taken_back ON inbox (state, accepted_at) WHERE state = 'ignored' AND turn IS NOT NULL;
CREATE INDEX inbox_background ON inbox (id) WHERE kind = 'background_job';
CREATE TABLE turn_steps (
    turn TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL,
    request TEXT NOT NULL, result TEXT,
    PRIMARY KEY (turn, number)
);
CREATE TABLE receipts (
    id INTEGER PRIMARY KEY, turn TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL,
    session TEXT NOT NULL, tool TEXT NOT NULL, effect TEXT NOT NULL, call TEXT NOT NULL,
    asked_by TEXT NOT NULL, origins TEXT NOT NULL, approved_by TEXT NOT NULL,
    outcome TEXT NOT NULL, told TEXT, undo TEXT, ended_at REAL,
    UNIQUE (turn, number)
);
CREATE INDEX receipts_at ON receipts (at);
CREATE TABLE grants (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, tool TEXT NOT NULL, what TEXT NOT NULL,
    session TEXT NOT NULL, people TEXT NOT NULL, given_by TEXT NOT NULL, at REAL NOT NULL,
    until REAL NOT NULL, turn TEXT NOT NULL, origins TEXT NOT NULL, seen_at REAL
) WITHOUT ROWID;
CREATE TABLE history_journal (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, line TEXT NOT NULL
);
CREATE INDEX history_journal_session ON history_journal (session);
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    inbox_id INTEGER REFERENCES inbox (id), turn TEXT, key TEXT NOT NULL,
    channel TEXT NOT NULL, account TEXT NOT NULL, session TEXT NOT NULL, payload TEXT,
    state TEXT NOT NULL CHECK (state IN ('pending', 'sending', 'uncertain', 'sent', 'dead', 'unknown',
        'held')),
    attempts INTEGER NOT NULL DEFAULT 0, next_at REAL, uncertain_at REAL, provider_id TEXT, error TEXT,
    created_at REAL NOT NULL, ended_at REAL, waits_for TEXT
);
CREATE INDEX outbox_inbox ON outbox (inbox_id);
CREATE INDEX outbox_key ON outbox (key);
CREATE INDEX outbox_state ON outbox (state);
CREATE INDEX outbox_open ON outbox (channel, account, session)
    WHERE state IN ('pending', 'sending', 'uncertain');
CREATE INDEX outbox_provider ON outbox (provider_id) WHERE provider_id IS NOT NULL;
CREATE TABLE usage (
    day TEXT NOT NULL, session TEXT NOT NULL, purpose TEXT NOT NULL, model TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, calls INTEGER NOT NULL, cost_usd REAL,
    cached_tokens INTEGER NOT NULL DEFAULT 0, thinking_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, session, purpose, model)
) WITHOUT ROWID;
CREATE TABLE leases (
    name TEXT PRIMARY KEY, holder TEXT, fence INTEGER NOT NULL, expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE seen (digest BLOB PRIMARY KEY, day INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, text TEXT NOT NULL, timing TEXT NOT NULL,
    session TEXT NOT NULL, account TEXT NOT NULL, person TEXT NOT NULL, audience TEXT NOT NULL,
    context TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('active', 'paused', 'done')),
    created_at REAL NOT NULL, next_at REAL, last_at REAL, ended_at REAL,
    revision INTEGER NOT NULL, note TEXT NOT NULL
);
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, instant REAL NOT NULL, until REAL NOT NULL,
    ticks INTEGER NOT NULL, at REAL NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
    tokens INTEGER NOT NULL, calls INTEGER NOT NULL, took_s REAL NOT NULL, said TEXT NOT NULL
);
CREATE INDEX ledger_name ON ledger (name, until);
CREATE INDEX ledger_said ON ledger (said) WHERE said <> '';
CREATE TABLE collected (
    id INTEGER PRIMARY KEY, channel TEXT NOT NULL, person TEXT NOT NULL, text TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE deaths (
    number INTEGER NOT NULL, item TEXT NOT NULL, step INTEGER NOT NULL, company INTEGER NOT NULL,
    at REAL NOT NULL, PRIMARY KEY (item, number)
) WITHOUT ROWID;
"""


def create_file(path: Path) -> None:
    """Make an empty file that only its owner may read, durably; an existing one is narrowed to that."""
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
        isolation_level=None,  # transactions are ours
        timeout=busy_timeout_s,
        cached_statements=256,
        factory=EmbeddedConnection,
    )


def open_writer(path: Path, *, busy_timeout_s: float) -> EmbeddedConnection:
    """The one connection that writes. The file must exist: what was taken away is not made anew."""
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
    except BaseException:
        db.close()
        raise
    return db


def open_reader(path: Path, *, busy_timeout_s: float) -> EmbeddedConnection:
    """A connection that cannot write."""
    db = _connect(path, "ro", busy_timeout_s)
    db.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
    return db


def prepare(
    db: sqlite3.Connection,
    path: Path,
    *,
    version: int = VERSION,
    migrations: Mapping[int, Migration] = MIGRATIONS,
) -> None:
    """
    Create the tables in an empty file, or bring older ones up to date, each step in one transaction and with
    a copy of the older file beside it.

    Raises:
        StoreTooNew: A later version wrote it.
        StoreCorrupt: It is not ours.
    """
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
    if found > version:
        raise StoreTooNew(
            _TOO_NEW.format(path=path, found=found, known=version), path=str(path), found=found, known=version
        )
    if found < version:
        migrate(db, path, found, to=version, steps=migrations)


def _create(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in _TABLES.split(";\n"):
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


def identify(db: sqlite3.Connection, known: list[str]) -> None:
    """
    Learn the random text that is this database's identity, or check that it is the ``known`` one.

    Raises:
        StoreCorrupt: It has none.
        sqlite3.DatabaseError: Another database lies in the place of the known one.
    """
    row = db.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
    if row is None:
        raise StoreCorrupt("the database has lost its identity")
    if known and known[0] != row[0]:
        raise sqlite3.DatabaseError("another database lies in its place")
    known[:] = [str(row[0])]


def corrupt(path: Path, error: sqlite3.Error) -> StoreCorrupt:
    """What to tell the operator of a file that SQLite cannot read."""
    return StoreCorrupt(_CORRUPT.format(path=path, why=error), path=str(path), sqlite=name_of(error))
