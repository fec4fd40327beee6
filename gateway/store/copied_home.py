"""
Reads a home for its move into PostgreSQL: the rows of ``gateway.db``, and the histories, records and memory
documents in files, as rows of the tables.
"""

from __future__ import annotations

import base64
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope
from agent_core.ports import Clock
from agent_core.storage import durable_files
from agent_core.storage.history_lines import (
    MAX_LINE_BYTES,
    as_object,
    encode_object,
    from_object,
    position_in,
)
from agent_core.storage.history_paging import Numbering, PageMark, lines_forwards
from agent_core.storage.layout import Layout
from agent_core.storage.memory_files import DocumentFile, Version
from agent_core.storage.session_files import Record, SessionFiles, session_of
from gateway.store.copy_marker import NAME, Marker
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.tables import COLUMNS
from gateway.store.sqlite import sqlite_schema
from gateway.store.sqlite.sqlite_errors import is_damage
from gateway.store.store_errors import StoreUnavailable, StoreUnusable

_BEFORE, _AFTER = '{"bytes_of_a_broken_line":"', '"}'


def as_text(raw: bytes) -> str:
    """Return the line as text."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        value = as_object(raw)
        if value is not None:  # readable nevertheless: half a surrogate pair in raw form
            return encode_object(value).rstrip(b"\n").decode()
    else:
        if "\0" not in text and not text.startswith(_BEFORE):
            return text
    return f"{_BEFORE}{base64.b64encode(raw).decode()}{_AFTER}"


@dataclass(slots=True)
class MovedConversation:
    """One session to move. Read its lines first; its record and cursor are correct only after that."""

    key: SessionKey
    path: Path
    record: Record | None
    notes: list[str]
    scopes: set[str]
    cursor: int = 0
    count: int = 0

    def lines(self) -> Iterator[str]:
        """Yield each line as text, in order; an empty string for a line that is too long to be read."""
        place = self.record.place if self.record is not None else PageMark()
        try:
            handle = durable_files.open_regular(self.path, os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        self.count, self.cursor = 0, 0
        by_offset: int | None = None
        by_number: int | None = None
        numbering = Numbering(-1)
        try:
            for offset, raw in lines_forwards(handle, 0, max_line_bytes=MAX_LINE_BYTES):
                value = as_object(raw) if raw else None
                number = position_in(value, offset)
                position = numbering.next(
                    number, readable=value is not None and from_object(value) is not None
                )
                if offset == place.offset and number in (None, place.position):
                    by_offset = self.count
                if by_number is None and position >= place.position:
                    by_number = self.count
                if raw is None:
                    self.notes.append(
                        f"{self.path.name}: line {self.count} is longer than {MAX_LINE_BYTES >> 20} MiB,"
                        " which squidbot does not read: its place stays, empty"
                    )
                if value is not None and isinstance(value.get("scope"), str):
                    self.scopes.add(value["scope"])
                self.count += 1
                yield "" if raw is None else as_text(raw)
            if by_offset is None and place.offset == os.fstat(handle).st_size:
                by_offset = self.count
        finally:
            os.close(handle)
        if place.position:
            found = by_offset if by_offset is not None else by_number
            self.cursor = self.count if found is None else found


@dataclass(slots=True)
class HomeFiles:
    """The files of a home beside its database. ``notes`` collects what is not moved."""

    layout: Layout
    clock: Clock
    notes: list[str] = field(default_factory=list)
    scopes: set[str] = field(default_factory=set)

    def conversations(self) -> Iterator[MovedConversation]:
        """Yield every session, in the order of its files' names."""
        folder = self.layout.sessions
        stems = {path.stem for path in folder.glob("*.jsonl")}
        stems |= {path.name.removesuffix(".meta.json") for path in folder.glob("*.meta.json")}
        for stem in sorted(stems):
            key = self._key(stem)
            if key is None:
                self.notes.append(f"{folder / stem}: it is no session's, and stays where it is")
                continue
            session = SessionFiles(key, self.layout, self.clock, read_at=os.pread, sync=os.fdatasync)
            has_record = session.record_file.exists() or self.layout.summary(key).exists()
            record = session.record() if has_record else None
            yield MovedConversation(key, self.layout.history(key), record, self.notes, self.scopes)

    def _key(self, stem: str) -> SessionKey | None:
        key = session_of(self.layout.sessions / f"{stem}.jsonl")
        return key if key is not None and key.is_named(stem) else None

    def documents(self) -> Iterator[tuple[MemoryScope, list[tuple[int, str]]]]:
        """
        Yield each memory document with all versions and their numbers.

        Call it after `conversations`: only the lines contain the names that are too long for a folder.
        """
        scopes = {str(scope): scope for scope in self.layout.scopes()}
        for name in self.scopes - set(scopes):
            with suppress(ValueError, OSError):
                scope = MemoryScope.parse(name)
                if self.layout.document(scope).exists() or self.layout.versions(scope).exists():
                    scopes[name] = scope
        known = {self.layout.versions(scope).parent.name for scope in scopes.values()}
        for folder in sorted((self.layout.home / "memory").glob("[pr][eo]o[pm]*/*=~*")):
            if folder.name not in known:
                self.notes.append(f"{folder}: whose memory it is cannot be told, so it stays where it is")
        for _, scope in sorted(scopes.items()):
            if versions := self._versions(scope):
                yield scope, versions

    def _versions(self, scope: MemoryScope) -> list[tuple[int, str]]:
        path = self.layout.versions(scope)
        current = DocumentFile(self.layout.document(scope), path).load()
        found: dict[int, str] = {}
        with suppress(FileNotFoundError):
            handle = durable_files.open_regular(path, os.O_NOFOLLOW)
            try:
                for offset, raw in lines_forwards(handle, 0, max_line_bytes=MAX_LINE_BYTES):
                    version = Version.parse_or_none(raw)
                    number = 0 if version is None else version.document.version
                    if version is None or number < 1 or number in found:
                        what = "is no version" if version is None else f"repeats the number {number}"
                        self.notes.append(f"{path}: the line at byte {offset} {what}, and stays where it is")
                    else:
                        found[number] = as_text(raw or b"")
            finally:
                os.close(handle)
        if current.version and current.version not in found:  # too long for a line of the file
            made = Version(current, self.clock.now())
            found[current.version] = made.line().rstrip(b"\n").decode()
        return sorted(found.items())


class EmbeddedTables:
    """An open ``gateway.db`` that nobody works on. Created by `open`."""

    def __init__(self, db: ConnectionPort) -> None:
        self._db = db

    @classmethod
    @contextmanager
    def open(cls, file: Path) -> Iterator[Self]:
        """Open an existing file. Raises StoreUnusable, StoreUnavailable."""
        if not file.exists():
            raise StoreUnusable(f"there is no queue in {file}, so there is nothing to move", path=str(file))
        try:
            with closing(sqlite_schema.open_writer(file, busy_timeout_s=5.0)) as db:
                db.execute("PRAGMA synchronous = FULL")
                sqlite_schema.prepare(db, file)
                yield cls(db)
        except sqlite3.Error as error:
            if is_damage(error):
                raise sqlite_schema.corrupt(file, error) from error
            raise StoreUnavailable(
                f"the database cannot be read or written: {error}", path=str(file), operation="move"
            ) from error

    @property
    def secret(self) -> str:
        """The identity of the database."""
        return str(self._meta("secret"))

    @property
    def marker(self) -> Marker | None:
        """The marker; None if the content was not moved."""
        text = self._meta(NAME)
        return None if text is None else Marker.read(text)

    def _meta(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_marker(self, marker: Marker | None) -> None:
        """Write the marker durably; None removes it."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("DELETE FROM meta WHERE name = ?", (NAME,))
        if marker is not None:
            self._db.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (NAME, marker.text()))
        self._db.execute("COMMIT")

    def rows(self, table: str) -> Iterator[tuple[object, ...]]:
        """Yield all rows of a table."""
        columns = ", ".join(COLUMNS[table])
        yield from self._db.execute(f"SELECT {columns} FROM {table}")  # noqa: S608 - constants

    def last_line(self) -> int:
        """Return the highest number that the journal has assigned."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'history_journal'").fetchone()
        return 0 if row is None else int(row[0])
