"""
Gives an export and an erasure access to histories and memory
(`gateway.operations.privacy.personal_histories`). Calls block. Each is one transaction, or a few where it
reads many rows: a daemon may be running during an export, and an interrupted erasure is completed by running
the same command again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import psycopg

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope
from agent_core.storage.history_lines import as_object, encode_object
from agent_core.storage.memory_files import Version
from gateway.store.place import ServerDatabase
from gateway.store.postgres import postgres_schema
from gateway.store.postgres.deleted_rows import remove_leftovers
from gateway.store.postgres.histories import history_rows as lines
from gateway.store.postgres.histories import memory_documents as documents
from gateway.store.postgres.histories import session_records
from gateway.store.postgres.histories.history_rows import files_in
from gateway.store.postgres.history_tables import NAMES
from gateway.store.postgres.postgres_connection import SCHEMA, Transaction, connect, place_of
from gateway.store.postgres.postgres_errors import open_error
from gateway.store.sql.engine import ConnectionPort, Locks, lock_first, named_lock, session_lock
from gateway.store.sql.person_address import AddressChange

_AT_ONCE = 500
_MAX_REPORTED = 50
_Result = TypeVar("_Result")
_Line = tuple[bytes, dict[str, Any] | None]


class KeptTables:
    """Implements `StoredHistories` for tables; a context manager that connects."""

    def __init__(self, at: ServerDatabase, home: int) -> None:
        self._at = at
        self._home = home
        self._where = place_of(at.url)
        self._db: psycopg.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._db = connect(self._at.url)
            postgres_schema.check(self._db, self._where)
            postgres_schema.identity(self._db, self._home)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, psycopg.Error):
                raise open_error(error, self._where, "person") from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._db is not None:
            self._db.close()

    def histories(self) -> Iterator[_History]:
        """Yield each history whose session is known."""
        for name in sorted(self.read(lines.sessions)):
            with suppress(ValueError):
                yield self.history(SessionKey.parse(name))

    def history(self, key: SessionKey) -> _History:
        """Return the history of a session."""
        return _History(self, key)

    def documents(self) -> Iterator[_Document]:
        """Yield each document."""
        for name in sorted(self.read(documents.scopes)):
            yield _Document(self, name)

    def document(self, scope: MemoryScope) -> _Document:
        """Return the document of a scope."""
        return _Document(self, documents.name_of(scope))

    def scopes(self) -> Iterator[MemoryScope]:
        """Return the scopes that have a document."""
        for name in self.read(documents.scopes):
            with suppress(ValueError):
                yield MemoryScope.parse(name)

    def named_files(self) -> set[str]:
        """Return the path of each file that a history names."""
        return self.read(files_in)

    def places_naming(self, addresses: Collection[str]) -> Iterator[str]:
        """Yield the histories, summaries and documents that still name one of the addresses."""
        # Lines contain the addresses as JSON encodes them.
        wanted = [json.dumps(address, ensure_ascii=False)[1:-1].lower() for address in addresses]
        found = "({})".format(" OR ".join(["strpos(lower({0}), ?) > 0"] * len(wanted)))
        yield from (f"the history of {name}" for name in self._histories_with(found.format("line"), wanted))
        asked = (
            (
                "the summary of",
                "SELECT session FROM consolidation WHERE {} ORDER BY session LIMIT ?",
                "record",
            ),
            ("the memory", "SELECT DISTINCT scope FROM memory WHERE {} ORDER BY scope LIMIT ?", "line"),
        )
        for told, query, column in asked:
            rows = self.select(query.format(found.format(column)), *wanted, _MAX_REPORTED)
            yield from (f"{told} {name}" for (name,) in rows)

    def _histories_with(self, condition: str, wanted: Sequence[str]) -> Iterator[str]:
        """Yield the sessions with such a line, few lines per statement, as its time is limited."""
        query = (
            f"SELECT session, seq, {condition} FROM (SELECT session, seq, line FROM history"  # noqa: S608 - constants
            " WHERE (session, seq) > (?, ?) ORDER BY session, seq LIMIT ?) AS few ORDER BY session, seq"
        )
        named: set[str] = set()
        session, seq = "", -1
        while len(named) < _MAX_REPORTED and (rows := self.select(query, *wanted, session, seq, _AT_ONCE)):
            named |= {name for name, _, is_named in rows if is_named}
            session, seq, _ = rows[-1]
        return iter(sorted(named)[:_MAX_REPORTED])

    def finish(self) -> None:
        """Free the space of deleted rows, and leave no samples of them."""
        assert self._db is not None
        try:
            remove_leftovers(self._db, [f"all_{table}" for table in NAMES])
            with suppress(psycopg.errors.LockNotAvailable), self._db.transaction():
                # Such an index keeps a word forever, even without a line.
                self._db.execute("SET LOCAL lock_timeout = '5s'")
                self._db.execute(f"REINDEX INDEX {SCHEMA}.history_words")
        except psycopg.OperationalError as error:
            raise open_error(error, self._where, "forget") from error

    def read(self, look: Callable[[ConnectionPort], _Result]) -> _Result:
        """Run a read in a transaction."""
        return self._run(look, (), look_only=True)

    def write(self, work: Callable[[ConnectionPort], _Result], *locks: str) -> _Result:
        """Run a change in a transaction."""
        return self._run(work, locks, look_only=False)

    def select(self, text: str, *parameters: object) -> list[Any]:
        """Return the rows of one reading statement."""
        return self.read(lambda db: db.execute(text, parameters).fetchall())

    def run(self, text: str, *parameters: object, lock: str) -> None:
        """Run one statement that changes something."""
        self.write(lambda db: db.execute(text, parameters), lock)

    @property
    def home(self) -> int:
        """The home whose rows are used."""
        return self._home

    def _run(self, work: Callable[[ConnectionPort], _Result], locks: Locks, *, look_only: bool) -> _Result:
        assert self._db is not None
        needs = None if look_only else self._at.needs
        transaction = Transaction(self._db, self._home, look_only=look_only, needs=needs)
        try:
            lock_first(transaction, locks)
            done = work(transaction)
            transaction.commit()
        except BaseException as error:
            with suppress(psycopg.Error):
                transaction.undo()
            if isinstance(error, psycopg.Error):
                raise open_error(error, self._where, "person") from error
            raise
        return done


@dataclass(frozen=True, slots=True)
class _History:
    kept: KeptTables
    key: SessionKey

    @property
    def name(self) -> str:
        return self.key.file_name

    @property
    def place_text(self) -> str:
        return f"the history of {self.key}"

    def exists(self) -> bool:
        return bool(self.kept.read(lambda db: lines.end(db, str(self.key))))

    def lines(self) -> Iterator[_Line]:
        for _, raw in self._rows():
            yield raw.encode(), as_object(raw.encode()) if raw else None

    def _rows(self) -> Iterator[tuple[int, str]]:
        start = 0
        while rows := self.kept.read(partial(lines.page, session=str(self.key), start=start, limit=_AT_ONCE)):
            yield from rows
            start = rows[-1][0] + 1

    def search_lines(self) -> Iterator[tuple[int, str, str | None]]:
        """Yield each line with its position, and with the words by which it is found."""
        query = "SELECT seq, line, said FROM history WHERE session = ? AND seq >= ? ORDER BY seq LIMIT ?"
        start = 0
        while rows := self.kept.select(query, str(self.key), start, _AT_ONCE):
            yield from rows
            start = rows[-1][0] + 1

    def rewrite(self, change: Callable[[bytes, dict[str, Any] | None], bytes]) -> None:
        session, changed = str(self.key), []
        for seq, raw in self._rows():
            before = raw.encode()
            after = change(before, as_object(before) if raw else None).rstrip(b"\n")
            if after != before:
                changed.append((seq, after.decode()))
        for first in range(0, len(changed), _AT_ONCE):
            some = changed[first : first + _AT_ONCE]
            self.kept.write(
                partial(lines.replace, home=self.kept.home, session=session, changed=some),
                session_lock(session),
            )

    def remove(self) -> None:
        session = str(self.key)

        def work(db: ConnectionPort) -> None:
            db.execute("DELETE FROM history WHERE session = ?", (session,))
            db.execute("DELETE FROM consolidation WHERE session = ?", (session,))

        self.kept.write(work, session_lock(session))

    def summary(self) -> str:
        return self.kept.read(lambda db: session_records.load(db, str(self.key))).record.summary

    def drop_summary(self) -> None:
        session = str(self.key)
        self.kept.run("DELETE FROM consolidation WHERE session = ?", session, lock=session_lock(session))


@dataclass(frozen=True, slots=True)
class _Document:
    kept: KeptTables
    scope: str

    @property
    def place_text(self) -> tuple[str, str]:
        return f"the memory {self.scope}", f"the versions of the memory {self.scope}"

    def exists(self) -> bool:
        return bool(self._rows())

    def text(self) -> str | None:
        rows = self._rows()
        known = [version for raw in rows if (version := Version.parse_or_none(raw)) is not None]
        return known[-1].document.text if known else None

    def versions(self) -> list[dict[str, Any]]:
        return [line for raw in self._rows() if (line := as_object(raw)) is not None]

    def raw_versions(self) -> bytes:
        return b"".join(raw + b"\n" for raw in self._rows())

    def replace_text(self, text: str | None) -> None:
        """Do nothing: the last version is the document."""

    def replace_versions(self, versions: Sequence[dict[str, Any]]) -> None:
        rows = [
            (self.scope, number, encode_object(version).rstrip(b"\n").decode())
            for version in versions
            if isinstance(number := version.get("version"), int)
        ]

        def work(db: ConnectionPort) -> None:
            db.execute("DELETE FROM memory WHERE scope = ?", (self.scope,))
            db.executemany(
                "INSERT INTO memory (scope, version, line) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rows
            )

        self.kept.write(work, named_lock("memory", self.scope))

    def remove(self) -> None:
        self.kept.run("DELETE FROM memory WHERE scope = ?", self.scope, lock=named_lock("memory", self.scope))

    def _rows(self) -> list[bytes]:
        rows = self.kept.select("SELECT line FROM memory WHERE scope = ? ORDER BY version", self.scope)
        return [str(raw).encode() for (raw,) in rows]


def rename_histories(db: ConnectionPort, home: int, change: AddressChange) -> None:
    """Rename senders, sessions and memory scopes; texts stay as they were. Repeating it changes nothing."""
    for session in lines.sessions(db):
        start = 0
        while rows := lines.page(db, session, start, _AT_ONCE):
            moved = [(seq, _line(raw, change)) for seq, raw in rows]
            lines.replace(
                db, home, session, [one for one, row in zip(moved, rows, strict=True) if one != row]
            )
            start = rows[-1][0] + 1
        if (renamed := change.text(session)) != session:
            db.execute("UPDATE history SET session = ? WHERE session = ?", (renamed, session))
    for session, record in db.execute("SELECT session, record FROM consolidation").fetchall():
        after = (change.text(session), _line(record, change))
        if after != (session, record):
            db.execute(
                "UPDATE consolidation SET session = ?, record = ? WHERE session = ?", (*after, session)
            )
    for scope in documents.scopes(db):
        if (renamed := change.text(scope)) != scope:
            db.execute("UPDATE memory SET scope = ? WHERE scope = ?", (renamed, scope))


def _line(raw: str, change: AddressChange) -> str:
    value = as_object(raw.encode()) if raw else None
    moved = change.value(value)
    return raw if value is None or moved == value else encode_object(moved).rstrip(b"\n").decode()
