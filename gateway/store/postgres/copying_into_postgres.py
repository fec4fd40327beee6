"""
Reads and writes PostgreSQL as one side of a move: in one transaction, so completely or not at all. The
transaction takes the daemon's lease and lets it expire. A process that opened the database before the commit
knows an outdated identity, and cannot get the lease before it expires. The next process of this home need not
wait.
"""

# ruff: noqa: S608 - only constants are put together

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Self

import psycopg

from agent_core.storage.history_lines import MAX_LINE_BYTES, storable
from agent_core.storage.history_paging import PageMark
from gateway.store.copied_files import as_bytes
from gateway.store.copied_tables import NUMBERED, MarkedTables, batches
from gateway.store.lease import DAEMON, Holders, LeaseTaken, LeaseTimes, process_of
from gateway.store.postgres import history_tables, postgres_schema
from gateway.store.postgres.account_tables import AccountTables
from gateway.store.postgres.histories import history_rows
from gateway.store.postgres.histories import session_records as records
from gateway.store.postgres.postgres_connection import FACTS, SCHEMA, Transaction, connect, place_of
from gateway.store.postgres.postgres_errors import open_error
from gateway.store.sql.engine import lock_first, named_lock
from gateway.store.sql.lease_rows import lease, leases
from gateway.store.sql.tables import COLUMNS
from gateway.store.store_errors import StoreUnusable

_ROWS = 500
_CHARS = 4 * 1024 * 1024
_CURSOR = "moving"
_MAX_MISSING = 1_000_000
_BYTES_OF_A_CHARACTER = 4


class PostgresTables(MarkedTables):
    """The rows of one home, inside a transaction. Created by `open`."""

    def __init__(self, raw: psycopg.Connection, home: int, where: str) -> None:
        self.db = Transaction(raw, home)
        """For code that works in the same transaction."""
        super().__init__(self.db)
        self._raw = raw
        self._home = home
        self.where = where
        self.too_long: dict[tuple[str, int], str] = {}
        """The reports about lines that are too long for a file."""
        self.accounts = AccountTables(self._db, self._streamed, where)

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
        lock_first(self._db, [named_lock("lease", DAEMON)])
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            self._db.execute("SELECT set_config(?, '0', true)", (name,))
        [now] = self._db.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        name, before = holders.new()
        if lease(self._db, DAEMON, name, LeaseTimes().ttl_s, float(now), before) is None:
            held = leases(self._db, float(now))
            who = [process_of(holder) for each, holder, *_ in held if each == DAEMON]
            raise LeaseTaken(
                f"another squidbot works on {self.where}, or did until a moment ago ({', '.join(who)})",
                path=self.where,
            )

    # ── what it is ──

    def set_secret(self, secret: str) -> None:
        """Replace the identity."""
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'secret'", (secret,))

    def filled_tables(self) -> list[str]:
        """Return the tables that have rows."""
        tables = (*COLUMNS, *history_tables.NAMES)
        found = [name for name in tables if self._db.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone()]
        return [*found, *(["account_document"] if self.accounts.has_content() else [])]

    # ── rows ──

    def rows(self, table: str) -> Iterator[tuple[object, ...]]:
        """Yield all rows of a table, in batches."""
        yield from self._streamed(f"SELECT {', '.join(COLUMNS[table])} FROM {table}")

    def _streamed(self, query: str, parameters: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        with self._raw.cursor(_CURSOR) as cursor:
            cursor.itersize = _ROWS
            cursor.execute(query, parameters)
            yield from cursor

    def add(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """Insert rows into a table."""
        columns = COLUMNS[table]
        text = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        for batch in batches(rows, _ROWS):
            self._db.executemany(text, batch)
            self._nothing_noted()

    def _nothing_noted(self) -> None:
        """Clear the recorded facts: nobody waits for signals, and the record grows with each row."""
        self._db.execute("SELECT set_config(?, '', true)", (FACTS,))

    def set_next_numbers(self, last_line: int) -> None:
        """Set the next number of each table beyond all existing ones."""
        for table in NUMBERED:
            [last] = self._db.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}").fetchone()
            last = max(last, last_line) if table == "history_journal" else last
            self._db.execute(
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
            if len(rows) >= _ROWS or chars > _CHARS:
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
        history_rows.insert(self._db, rows)
        self._nothing_noted()

    def histories(self) -> Iterator[tuple[str, Iterator[str]]]:
        """Yield sessions with lines, huge ones empty, read in order. Raises StoreUnusable if many lack."""
        rows = self._streamed("SELECT session, seq, line FROM history ORDER BY session, seq")
        for session, each in groupby(rows, key=itemgetter(0)):
            yield str(session), self._as_in_a_file(str(session), each)

    def _as_in_a_file(self, session: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
        expected = 0
        for _, seq, text in rows:
            if seq - expected > _MAX_MISSING:
                raise StoreUnusable(
                    f"{session}: lines {expected} to {seq - 1} are missing, so nothing was moved; squidbot"
                    " check --data says what else is wrong",
                    path=self.where,
                )
            yield from repeat("", seq - expected)
            fits = (
                len(text) * _BYTES_OF_A_CHARACTER <= MAX_LINE_BYTES or len(as_bytes(text)) <= MAX_LINE_BYTES
            )
            if not fits:
                self.too_long[session, seq] = (
                    f"{session}: line {seq} is longer than {MAX_LINE_BYTES >> 20} MiB, which squidbot does"
                    " not read in a file: its place stays, empty"
                )
            yield str(text) if fits else ""
            expected = seq + 1

    def add_record(self, session: str, record: str) -> None:
        """Insert a record as its first version."""
        self._db.execute(
            "INSERT INTO consolidation (session, record, version) VALUES (?, ?, 1)", (session, record)
        )

    def records(self) -> dict[str, str]:
        """Return the record of each session that has one."""
        found = self._db.execute("SELECT session FROM consolidation").fetchall()
        kept = ((str(name), records.load(self._db, str(name))) for (name,) in found)
        return {
            name: records.encode(name, replace(one.record, place=PageMark(one.cursor, -1)))
            for name, one in kept
        }

    def add_versions(self, scope: str, versions: Iterable[tuple[int, str]]) -> None:
        """Insert all versions of a memory document."""
        for number, text in versions:
            self._db.execute(
                "INSERT INTO memory (scope, version, line) VALUES (?, ?, ?)", (scope, number, text)
            )

    def documents(self) -> Iterator[tuple[str, Iterator[str]]]:
        """Yield each scope with the versions of its document, to be read before the next scope."""
        rows = self._streamed("SELECT scope, line FROM memory ORDER BY scope, version")
        for scope, each in groupby(rows, key=itemgetter(0)):
            yield str(scope), (str(text) for _, text in each)

    def last_line(self) -> int:
        """Return the highest number that the journal has assigned."""
        query = "SELECT COALESCE(pg_sequence_last_value(pg_get_serial_sequence(?, 'id')::regclass), 0)"
        [last] = self._db.execute(query, (f"{SCHEMA}.all_history_journal",)).fetchone()
        return int(last)
