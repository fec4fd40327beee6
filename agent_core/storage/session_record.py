"""
The cursor and the summary of a session: one file, replaced atomically, with a readable copy of the summary.
The record (``….meta.json``) is the truth; ``summary.md`` is repaired from it, or used for a record without a
summary. Without a record the cursor is 0 and the whole history is summarised again. An unreadable record is
set aside and reported. Blocks; one caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import structlog

from agent_core import files
from agent_core.messages import SessionKey
from agent_core.provenance import Origins, from_json, to_json
from agent_core.storage import durable_files
from agent_core.storage.history_lines import as_object, encode_object, storable
from agent_core.storage.history_paging import PageMark

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """The data of a session besides its history. ``place`` is where the cursor points in the file."""

    summary: str = ""
    place: PageMark = field(default_factory=PageMark)
    private: frozenset[str] = frozenset()
    origins: Origins = ()

    @property
    def cursor(self) -> int:
        """Return the number of positions from the beginning that the summary covers."""
        return self.place.position

    def replace_fields(
        self, *, summary: str | None, private: frozenset[str] | None, origins: Origins | None
    ) -> Record:
        """A copy with the given fields replaced."""
        return replace(
            self,
            summary=self.summary if summary is None else storable(summary),
            private=self.private if private is None else private,
            origins=self.origins if origins is None else origins,
        )


class RecordFile:
    """The record of one session; ``copy`` is where the summary alone is, for people."""

    def __init__(self, path: Path, copy: Path, key: SessionKey) -> None:
        self._path = path
        self._copy = copy
        self._key = key
        self._seen: tuple[int, int, int] | None = None
        self._record = Record()
        self._repaired = False

    def load(self, now: datetime) -> Record:
        """The record; an empty one if there is none."""
        if not durable_files.is_file_or_nothing(self._path):
            self._put_aside(now)
        try:
            state = self._path.stat()
        except FileNotFoundError:
            return Record()
        seen = (state.st_ino, state.st_size, state.st_mtime_ns)
        if seen != self._seen:
            raw = durable_files.read(self._path)
            record = self._parsed(raw)
            if record is None:
                self._put_aside(now)
            self._record, self._seen = record or Record(), seen
            if record is not None:
                self._update_copies()
        return self._record

    def save(self, record: Record) -> None:
        """Replace the record durably, then the copy if possible."""
        self._seen = None
        files.replace(self._path, self._encoded(record))
        self._repaired = False
        self._record = record
        self._update_copies()

    def _encoded(self, record: Record) -> bytes:
        return encode_object(
            {
                "version": 1,
                "session": str(self._key),
                "last_consolidated": record.cursor,
                "offset": record.place.offset,
                "message_id": record.place.message_id,
                "summary": record.summary,
                "private": sorted(record.private),
                "origins": to_json(record.origins),
            }
        )

    def exists(self) -> bool:
        """Return True if the file exists."""
        return self._path.exists()

    def _parsed(self, raw: bytes) -> Record | None:
        return parse_record(raw, self._key, self._copied_summary)

    def keep_copy(self, now: datetime) -> str | None:
        """Save the file under another name before it is corrected; returns that name, or None."""
        aside = self._aside(now)
        try:
            files.write_new(aside, self._path.read_bytes())
        except OSError:
            return None
        return aside.name

    def _aside(self, now: datetime) -> Path:
        return self._path.with_name(f"{self._path.name}.bad-{now:%Y%m%dT%H%M%S%fZ}")

    def _put_aside(self, now: datetime) -> Path | None:
        aside = self._aside(now)
        try:
            self._path.replace(aside)
        except OSError as exc:
            log.error("record.unreadable", file=self._path.name, kept_as=None, reason=exc.strerror)
            return None
        log.error("record.unreadable", file=self._path.name, kept_as=aside.name)
        return aside

    def _copied_summary(self) -> str:
        if not durable_files.is_file_or_nothing(self._copy):
            return ""
        try:
            return durable_files.read(self._copy).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _update_copies(self) -> None:
        """Rewrite the readable copy if it differs from the record, once; failing is harmless."""
        if self._repaired:
            return
        self._repaired = True
        try:
            if self._copied_summary() != self._record.summary:
                files.replace(self._copy, self._record.summary.encode(), durable=False)
        except OSError as exc:
            log.warning("summary.copy_failed", file=str(self._copy), reason=exc.strerror)


def parse_record(raw: bytes, key: SessionKey, copied_summary: Callable[[], str]) -> Record | None:
    """Parse a record; None if it is invalid, or another session's."""
    value = as_object(raw)
    if value is None or value.get("session", str(key)) != str(key):
        return None
    cursor, summary = value.get("last_consolidated"), value.get("summary")
    if isinstance(cursor, bool) or not isinstance(cursor, int) or cursor < 0:
        return None
    if summary is None:
        summary = copied_summary()
    if not isinstance(summary, str):
        return None
    private = frozenset(map(str, value["private"])) if isinstance(value.get("private"), list) else frozenset()
    origins = from_json(value.get("origins"))
    offset, message_id = value.get("offset"), value.get("message_id")
    if isinstance(offset, bool) or not isinstance(offset, int) or not isinstance(message_id, str | None):
        return Record(summary, PageMark(cursor, -1), private, origins)
    return Record(summary, PageMark(cursor, offset, message_id), private, origins)


def session_of(history: Path) -> SessionKey | None:
    """The session of a history file; None if it is unknown. `SessionKey.is_named` proves it."""
    try:
        return SessionKey.from_file_name(history.stem)
    except ValueError:  # a shortened name, which the record alone tells in full
        return _session_in(history.with_name(f"{history.stem}.meta.json"))


def _session_in(path: Path) -> SessionKey | None:
    try:
        value = as_object(durable_files.read(path)) if durable_files.is_file_or_nothing(path) else None
        return SessionKey.parse(str(value["session"])) if value else None
    except (FileNotFoundError, KeyError, ValueError):
        return None
