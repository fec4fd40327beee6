"""
Creates and checks the tables in PostgreSQL; derives them from the embedded file's schema by substitution.
Every table has a column ``home`` that begins all keys and indexes. ``all_inbox`` holds all homes' rows; the
view ``inbox`` shows those of the transaction's home, so that no statement can forget it. Row-level security
would not hold for superusers, the usual role in containers, and disables indexes with non-leakproof
operators. Only `prepare` changes tables; a start runs `check`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg

from gateway.store.postgres import history_tables
from gateway.store.postgres.commit_triggers import TRIGGERS
from gateway.store.postgres.postgres_connection import FACTS, SCHEMA
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.tables import TABLES
from gateway.store.store_errors import StoreCorrupt, StoreTooNew, StoreUnusable

VERSION = 15
"""The version of what `statements` creates, the only one that is read. The embedded file has its own."""
_TYPES = {
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    "BLOB": "BYTEA",
    "TEXT": 'TEXT COLLATE "C"',
    "TSVECTOR": "TSVECTOR",
}
_HOME = "current_setting('squidbot.home')::bigint"
_INDEXES = {
    # SQLite's indexes end in the row's number, these do not. Neither contains rows that have ended.
    "inbox_work": (
        "CREATE INDEX inbox_work ON {schema}.all_inbox (home, session, id)"
        " WHERE state IN ('ready', 'running')"
    ),
    "outbox_open": (
        "CREATE INDEX outbox_open ON {schema}.all_outbox (home, channel, account, session, id)"
        " WHERE state IN ('pending', 'sending', 'uncertain')"
    ),
    "outbox_state": (
        "CREATE INDEX outbox_state ON {schema}.all_outbox (home, state, id) WHERE state <> 'sent'"
    ),
}
_MORE = (
    # Each claim checks whether something of a session runs; thousands of its rows may wait.
    "CREATE INDEX inbox_running ON {schema}.all_inbox (home, session) WHERE state = 'running'",
    "CREATE INDEX inbox_left ON {schema}.all_inbox (home, state, id) WHERE state IN ('dead', 'quarantined')",
    "CREATE INDEX inbox_turn ON {schema}.all_inbox (home, turn) WHERE state IN ('ready', 'running')",
    "CREATE INDEX outbox_session ON {schema}.all_outbox (home, session, id)",
)
_ADDED = {
    "history_newest": history_tables.NEWEST,
    "inbox_newest": (
        "CREATE INDEX inbox_newest ON {schema}.all_inbox (home, session, state, id)"
        " WHERE kind IN ('message', 'alone')"
    ),
}
"""Added to tables that exist, too: without them the answers are right, but slow."""
_ACCOUNTS = """
CREATE TABLE account_document (
    folder TEXT NOT NULL, name TEXT NOT NULL, content BLOB, claim TEXT, claimed_until REAL,
    PRIMARY KEY (folder, name)
);
CREATE TABLE account_file (
    folder TEXT NOT NULL, file TEXT NOT NULL, generation INTEGER NOT NULL,
    PRIMARY KEY (folder, file)
);
CREATE TABLE account_row (
    folder TEXT NOT NULL, file TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (folder, file, kind, key)
);
"""
_CREATE = re.compile(r"CREATE TABLE (\w+) \((.*)\)(?: WITHOUT ROWID)?$", re.DOTALL)
_INDEX = re.compile(r"CREATE INDEX (\w+) ON (\w+) \((.*?)\)(.*)$", re.DOTALL)
_LOCK = 0x53514254


_CHANGED = " AND ".join(
    f"has_table_privilege(pg_class.oid, '{right}')" for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
)
# Statements name the views; triggers, and each transaction, read the tables behind them.
_WITHOUT = f"""
SELECT relname FROM pg_class JOIN pg_namespace AS place ON place.oid = relnamespace
WHERE nspname = '{SCHEMA}' AND ((relkind = 'v' AND NOT ({_CHANGED}))
  OR (relkind = 'r' AND NOT has_table_privilege(pg_class.oid, 'SELECT')))
ORDER BY relname
"""  # noqa: S608 - constants


def tables_without_rights(db: ConnectionPort) -> list[str]:
    """Return the tables that the connection's role may not read, or not change as a daemon does."""
    return [str(name) for (name,) in db.execute(_WITHOUT).fetchall()]


def _split(columns: str) -> Iterator[str]:
    """Split the definitions at the commas outside of parentheses."""
    depth, begin = 0, 0
    for place, sign in enumerate(columns):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            yield columns[begin:place].strip()
            begin = place + 1
    yield columns[begin:].strip()


def _table(name: str, columns: str) -> Iterator[str]:
    made, names = [f"home BIGINT NOT NULL DEFAULT {_HOME}"], []
    for definition in _split(columns):
        if (key := re.match(r"(PRIMARY KEY|UNIQUE) \((.*)\)$", definition)) is not None:
            made.append(f"{key[1]} (home, {key[2]})")
            continue
        column, kind, *rest = definition.split(maxsplit=2)
        names.append(column)
        more = " ".join(rest).replace("AUTOINCREMENT", "")
        if kind == "INTEGER" and "PRIMARY KEY" in more:
            more = more.replace("PRIMARY KEY", "GENERATED BY DEFAULT AS IDENTITY")
            made.append(f"PRIMARY KEY (home, {column})")
        elif "PRIMARY KEY" in more:
            more = more.replace("PRIMARY KEY", "NOT NULL")
            made.append(f"PRIMARY KEY (home, {column})")
        if (refers := re.search(r"REFERENCES (\w+) \((\w+)\)", more)) is not None:
            more = more.replace(refers[0], "")
            made.append(
                f"FOREIGN KEY (home, {column}) REFERENCES {SCHEMA}.all_{refers[1]} (home, {refers[2]})"
            )
        made.append(f"{column} {_TYPES[kind]} {more}".strip())
    yield f"CREATE TABLE {SCHEMA}.all_{name} ({', '.join(made)})"
    yield (
        f"CREATE VIEW {SCHEMA}.{name} AS SELECT {', '.join((*names, 'home'))} FROM {SCHEMA}.all_{name}"  # noqa: S608 - constants
        f" WHERE home = {_HOME}"
    )


def statements() -> Iterator[str]:
    """Yield the statements that create all tables from nothing."""
    yield f"CREATE SCHEMA {SCHEMA}"
    yield from _made_from(TABLES)
    for more in _MORE:
        yield more.format(schema=SCHEMA)
    for trigger in TRIGGERS:
        yield trigger.replace("{schema}", SCHEMA).replace("{facts}", FACTS)
    yield from _made_from(history_tables.TABLES)
    for more in (*history_tables.INDEXES, *history_tables.TRIGGERS):
        yield more.format(schema=SCHEMA)
    yield from _made_from(_ACCOUNTS)
    yield f"CREATE TABLE {SCHEMA}.schema (version BIGINT NOT NULL, oldest BIGINT NOT NULL)"
    yield f"INSERT INTO {SCHEMA}.schema VALUES ({VERSION}, {VERSION})"  # noqa: S608 - constants


def _made_from(text: str) -> Iterator[str]:
    for statement in filter(None, (part.strip() for part in text.split(";\n"))):
        if (table := _CREATE.match(statement)) is not None:
            yield from _table(table[1], table[2])
        elif (index := _INDEX.match(statement)) is not None and index[1] in _INDEXES:
            yield _INDEXES[index[1]].format(schema=SCHEMA)
        elif index is not None:
            yield f"CREATE INDEX {index[1]} ON {SCHEMA}.all_{index[2]} (home, {index[3]}){index[4]}"
        else:
            raise AssertionError(statement)


def _found(db: psycopg.Connection[Any]) -> int | None:
    """Return the version of the existing tables."""
    there = db.execute("SELECT to_regnamespace(%s), to_regclass(%s)", (SCHEMA, f"{SCHEMA}.schema")).fetchone()
    if there is None or there[0] is None:
        return None
    if there[1] is None:
        raise StoreCorrupt(
            f"The database has a schema {SCHEMA}, but it is not one that squidbot has made. It was not"
            " touched; give squidbot another database."
        )
    row = db.execute(f"SELECT version FROM {SCHEMA}.schema").fetchone()  # noqa: S608 - constants
    if row is None:
        raise StoreCorrupt(f"The table {SCHEMA}.schema of the database is empty. Nothing was touched.")
    return int(row[0])


def check(db: psycopg.Connection[Any], where: str) -> None:
    """Check that the tables fit this version. Raises StoreUnusable; nothing was changed."""
    (encoding,) = db.execute("SELECT current_setting('server_encoding')").fetchone() or ("",)
    if encoding != "UTF8":
        raise StoreUnusable(f"{where} has the encoding {encoding}; squidbot needs UTF8.")
    found = _found(db)
    if found is None:
        raise StoreUnusable(
            f"{where} has no tables of squidbot yet. `squidbot migrate` makes them.", path=where
        )
    if found > VERSION:
        raise StoreTooNew(
            f"{where} has tables of a later version of squidbot (schema {found}, this version knows"
            f" {VERSION}). It was not touched; install that version.",
            path=where, found=found, known=VERSION,
        )  # fmt: skip
    if found < VERSION:
        raise StoreUnusable(
            f"{where} has tables from before the first release (schema {found}, this version knows"
            f" {VERSION}). It was not touched. Install the version that made them, or give squidbot"
            " another database.",
            path=where, found=found, known=VERSION,
        )  # fmt: skip


def prepare(db: psycopg.Connection[Any], where: str, home: int) -> bool:
    """Create missing tables and indexes; True if all were. Raises StoreUnusable, psycopg.Error."""
    with db.transaction():
        db.execute("SET LOCAL lock_timeout = '5s'")
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        is_new = _found(db) is None
        for statement in statements() if is_new else ():
            db.execute(statement)
        check(db, where)
        for name, index in _ADDED.items():
            if db.execute(f"SELECT to_regclass('{SCHEMA}.{name}')").fetchone() == (None,):
                db.execute(index.format(schema=SCHEMA))
        db.execute(
            f"INSERT INTO {SCHEMA}.all_meta (home, name, value) VALUES (%s, 'secret', %s)"  # noqa: S608 - constants
            " ON CONFLICT DO NOTHING",
            (home, secrets.token_hex(16)),
        )
    return is_new


def identity(db: psycopg.Connection[Any], home: int) -> str:
    """Return the home's random identity. Raises StoreCorrupt (none)."""
    query = f"SELECT value FROM {SCHEMA}.all_meta WHERE home = %s AND name = 'secret'"  # noqa: S608 - constants
    found = db.execute(query, (home,)).fetchone()
    if found is None:
        raise StoreCorrupt(
            "The database has lost the identity of this home. `squidbot migrate` gives it a new one."
        )
    return str(found[0])
