"""
Writes the rows of a home that moves into PostgreSQL: in one transaction, so completely or not at all. The
transaction takes the daemon's lease and lets it expire. A process that opened the database before the commit
knows an outdated identity, and cannot get the lease before it expires. The next process of this home need not
wait.
"""

# ruff: noqa: S608 - only constants are put together

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Self

import psycopg

from agent_core.state_folder import Row
from agent_core.storage.history_lines import storable
from gateway.store.lease import DAEMON, Holders, LeaseTaken, LeaseTimes, process_of
from gateway.store.postgres import history_tables, postgres_schema
from gateway.store.postgres.account_documents import (
    KEY_CHECK,
    KEY_PROOF,
    StateEncryption,
    proven_encryption,
    put_content,
    stored_content,
)
from gateway.store.postgres.histories import history_rows
from gateway.store.postgres.postgres_connection import FACTS, SCHEMA, Transaction, connect, place_of
from gateway.store.postgres.postgres_errors import open_error
from gateway.store.sql.engine import ConnectionPort, lock_first, named_lock
from gateway.store.sql.lease_rows import lease, leases
from gateway.store.sql.tables import COLUMNS
from gateway.store.state_key import StateKey
from gateway.store.store_errors import StoreUnusable

_ROWS = 500
_NUMBERED = ("inbox", "receipts", "history_journal", "outbox", "ledger", "collected")
"""The tables that number their rows."""


class PostgresTables:
    """The rows of one home, inside a transaction. Created by `open`."""

    def __init__(self, raw: psycopg.Connection, home: int, where: str) -> None:
        self.db = Transaction(raw, home)
        """For code that works in the same transaction."""
        self._home = home
        self.where = where
        self.accounts = AccountTables(self.db, where)

    @classmethod
    @contextmanager
    def open(cls, url: str, home: int, holders: Holders | None) -> Iterator[Self]:
        """Open a transaction, exclusive with ``holders``. Raises LeaseTaken or StoreUnavailable."""
        where = place_of(url)
        try:
            with connect(url) as raw:
                postgres_schema.check(raw, where)
                tables = cls(raw, home, where)
                try:
                    if holders is not None:
                        tables._take(holders)
                    yield tables
                    tables.db.commit()
                except BaseException:
                    if not raw.closed and not raw.broken:
                        tables.db.undo()
                    raise
        except psycopg.errors.UniqueViolation as error:
            raise StoreUnusable(
                "two rows differ only in signs that PostgreSQL does not keep apart (NUL and U+FFFD), so"
                f" nothing was moved: {error.diag.message_detail}",
                path=where,
            ) from error
        except psycopg.errors.ProgramLimitExceeded as error:
            raise StoreUnusable(
                "a conversation or a message has a name that is too long for PostgreSQL, so nothing was"
                f" moved: {error.diag.message_primary}",
                path=where,
            ) from error
        except psycopg.Error as error:
            raise open_error(error, where, "move") from error

    def _take(self, holders: Holders) -> None:
        lock_first(self.db, [named_lock("lease", DAEMON)])
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            self.db.execute("SELECT set_config(?, '0', true)", (name,))
        [now] = self.db.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        name, before = holders.new()
        if lease(self.db, DAEMON, name, LeaseTimes().ttl_s, float(now), before) is None:
            held = leases(self.db, float(now))
            who = [process_of(holder) for each, holder, *_ in held if each == DAEMON]
            raise LeaseTaken(
                f"another squidbot works on {self.where}, or did until a moment ago ({', '.join(who)})",
                path=self.where,
            )

    # ── what it is ──

    @property
    def secret(self) -> str:
        """The identity."""
        [found] = self.db.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
        return str(found)

    def set_secret(self, secret: str) -> None:
        """Replace the identity."""
        self.db.execute("UPDATE meta SET value = ? WHERE name = 'secret'", (secret,))

    def filled_tables(self) -> list[str]:
        """Return the tables that have rows."""
        tables = (*COLUMNS, *history_tables.NAMES)
        found = [name for name in tables if self.db.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone()]
        return [*found, *(["account_document"] if self.accounts.has_content() else [])]

    # ── rows ──

    def add(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """Insert rows into a table."""
        columns = COLUMNS[table]
        text = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        left = iter(rows)
        while batch := list(islice(left, _ROWS)):
            self.db.executemany(text, batch)
            self._nothing_noted()

    def _nothing_noted(self) -> None:
        """Clear the recorded facts: nobody waits for signals, and the record grows with each row."""
        self.db.execute("SELECT set_config(?, '', true)", (FACTS,))

    def set_next_numbers(self, last_line: int) -> None:
        """Set the next number of each table beyond all existing ones."""
        for table in _NUMBERED:
            [last] = self.db.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}").fetchone()
            last = max(last, last_line) if table == "history_journal" else last
            self.db.execute(
                "SELECT setval(pg_get_serial_sequence(?, 'id'), ?, ?)",
                (f"{SCHEMA}.all_{table}", max(1, last), last > 0),
            )

    # ── histories and memory ──

    def add_history(self, session: str, each: Iterable[str]) -> None:
        """Insert the lines of a session, in order."""
        known: set[str] = set()
        rows: list[tuple[object, ...]] = []
        chars = 0
        for seq, text in enumerate(each):
            rows.append(self._line(session, seq, text, known))
            chars += len(text)
            if len(rows) >= _ROWS or chars > 4 * 1024 * 1024:
                self._add_lines(rows)
                rows, chars = [], 0
        self._add_lines(rows)

    def _line(self, session: str, seq: int, text: str, known: set[str]) -> tuple[object, ...]:
        msg_id, line, scope, *rest = history_rows.columns_of(self._home, text, seq)
        if msg_id in known:
            msg_id = None  # a file may have an id twice, far apart
        if isinstance(msg_id, str):
            known.add(msg_id)
        return session, seq, msg_id, line, storable(scope) if isinstance(scope, str) else None, *rest

    def _add_lines(self, rows: list[tuple[object, ...]]) -> None:
        history_rows.insert(self.db, rows)
        self._nothing_noted()

    def add_record(self, session: str, record: str) -> None:
        """Insert a record as its first version."""
        self.db.execute(
            "INSERT INTO consolidation (session, record, version) VALUES (?, ?, 1)", (session, record)
        )

    def add_versions(self, scope: str, versions: Iterable[tuple[int, str]]) -> None:
        """Insert all versions of a memory document."""
        for number, text in versions:
            self.db.execute(
                "INSERT INTO memory (scope, version, line) VALUES (?, ?, ?)", (scope, number, text)
            )


class AccountTables:
    """The logins, keys and files' rows of accounts, inside the transaction of a move."""

    def __init__(self, db: ConnectionPort, where: str) -> None:
        self._db = db
        self._where = where

    def has_content(self) -> bool:
        """Return True if an account has ever stored anything."""
        query = "SELECT 1 FROM account_document WHERE folder <> '' LIMIT 1"
        return self._db.execute(query).fetchone() is not None

    def clear(self) -> None:
        """Delete everything."""
        for name in ("account_document", "account_file", "account_row"):
            self._db.execute(f"DELETE FROM {name}")

    def encryption(self, key: StateKey) -> StateEncryption:
        """Return the encryption of the documents. Raises StoreUnusable for a missing or other key."""
        found = stored_content(self._db, *KEY_CHECK)
        if found is not None:
            return proven_encryption(key, found, self._where)
        made = StateEncryption(key.read_or_create())
        self.add(made, *KEY_CHECK, KEY_PROOF)
        return made

    def add(self, encryption: StateEncryption, folder: str, name: str, content: bytes) -> None:
        """Insert a document."""
        put_content(self._db, folder, name, encryption.encrypt(content, folder, name))

    def add_file(self, folder: str, file: str, generation: int, rows: Iterable[Row]) -> None:
        """Insert the rows of a file."""
        self._db.execute(
            "INSERT INTO account_file (folder, file, generation) VALUES (?, ?, ?)", (folder, file, generation)
        )
        text = "INSERT INTO account_row (folder, file, kind, key, content) VALUES (?, ?, ?, ?, ?)"
        self._db.executemany(text, [(folder, file, *row) for row in rows])

    def make_older(self) -> None:
        """Make every key store count as an older copy at its next start, which replaces the device."""
        self._db.execute("UPDATE account_file SET generation = -1")
