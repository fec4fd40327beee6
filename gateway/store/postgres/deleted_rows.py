"""
Removes what the server keeps of deleted rows: their space in its files, and samples of their values. The
planner uses the samples (https://www.postgresql.org/docs/current/view-pg-stats.html): whole texts of up to
1,024 bytes, which our role can read. They are taken again from the remaining rows. The server does not sample
an empty table and keeps the old samples, so such a table gets a row while it is sampled.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from gateway.store.postgres.postgres_connection import SCHEMA

_HOME = -1
_STATES = {"all_inbox": "dead", "all_outbox": "dead", "all_jobs": "done"}
_COLUMNS = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass"
    " AND attnum > 0 AND NOT attisdropped AND attnotnull AND attidentity = ''"
    " AND (attname = 'home' OR NOT atthasdef)"
)


def remove_leftovers(db: psycopg.Connection[Any], tables: Iterable[str]) -> None:
    """Vacuum these tables and renew their samples; locked ones are left to the server."""
    for table in tables:
        name = sql.Identifier(SCHEMA, table)
        with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            db.execute(sql.SQL("VACUUM (ANALYZE) {}").format(name))
            some = db.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(name)).fetchone()
            if some == (False,):
                _sample_one_row(db, table, name)


def _sample_one_row(db: psycopg.Connection[Any], table: str, name: sql.Identifier) -> None:
    columns = db.execute(_COLUMNS, (f"{SCHEMA}.{table}",)).fetchall()
    values = [_nothing(table, column, kind) for column, kind in columns]
    with db.transaction():
        db.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                name,
                sql.SQL(", ").join(sql.Identifier(column) for column, _ in columns),
                sql.SQL(", ").join(map(sql.Literal, values)),
            )
        )
        db.execute(sql.SQL("ANALYZE {}").format(name))
        db.execute(sql.SQL("DELETE FROM {}").format(name))


def _nothing(table: str, column: str, kind: str) -> str | int:
    """Return a meaningless value for a column that requires one."""
    if column == "state":
        return _STATES[table]
    if column == "home":
        return _HOME
    return "" if kind in ("text", "bytea") else 0
