"""
The files of one session: its history, and its record with the cursor and the summary. The cursor is never
beyond the end of the history. The record (``….meta.json``) is the truth and is replaced atomically;
``summary.md`` is a readable copy. Without a record the cursor is 0 and the whole history is summarised again;
an unreadable one is set aside and reported. Also finds the attachments that any history names. Everything
here blocks and is called in a worker thread, by one caller at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import anyio.to_thread
import structlog

from agent_core import files
from agent_core.errors import CursorMoved
from agent_core.messages import SessionKey
from agent_core.models import HistoryTail, Message
from agent_core.ports import Clock
from agent_core.provenance import Origins, from_json, to_json
from agent_core.storage import durable_files
from agent_core.storage.durable_files import exclusive
from agent_core.storage.history_file import HistoryFile
from agent_core.storage.history_lines import as_object, encode_object, stamp, storable
from agent_core.storage.history_paging import PageMark, ReadAt
from agent_core.storage.layout import Layout


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


log = structlog.get_logger(__name__)


class SessionFiles:
    """The files of one session."""

    def __init__(
        self, key: SessionKey, layout: Layout, clock: Clock, *, read_at: ReadAt, sync: Callable[[int], None]
    ) -> None:
        self.history = HistoryFile(layout.history(key), read_at=read_at, sync=sync)
        self.record_file = RecordFile(layout.record(key), layout.summary(key), key)
        self._shortened = "=~" in layout.name(key)
        self._path = layout.record(key)
        self._clock = clock

    def record(self) -> Record:
        """Cursor and summary, the cursor never beyond the end of the history."""
        record = self.record_file.load(self._clock.now())
        if record.cursor == 0:
            return record
        end = self.history.end(record.place)
        return record if record.cursor <= end else self._clamped_to(end, record)

    def _clamped_to(self, end: int, record: Record) -> Record:
        """
        The record of a file that has become shorter.

        It is corrected on the disk too: otherwise the cursor would go on pointing behind whatever is said
        from now on, and no prompt would ever show it.
        """
        corrected = replace(record, place=self.history.place(end, PageMark()))
        kept_as = self.record_file.keep_copy(self._clock.now())
        try:
            self.record_file.save(corrected)
        except OSError as exc:
            log.warning("cursor.not_corrected", file=self._path.name, reason=exc.strerror)
            return corrected
        log.warning("cursor.clamped", file=self._path.name, cursor=record.cursor, end=end, kept_as=kept_as)
        return corrected

    def consolidate(
        self, *, summary: str, cursor: int, base_cursor: int | None, private: frozenset[str], origins: Origins
    ) -> None:
        """Replace both, if the cursor has not moved; no other process can come in between."""
        if base_cursor is None or not self.history.path.exists():
            self.save(summary=summary, cursor=cursor, private=private, origins=origins)
            return
        with exclusive(self.history.path):
            current = self.record().cursor
            if current != base_cursor:
                raise CursorMoved(f"the cursor is at {current} and not at {base_cursor} any more")
            self.save(summary=summary, cursor=cursor, private=private, origins=origins)

    def save(
        self,
        *,
        summary: str | None = None,
        cursor: int | None = None,
        private: frozenset[str] | None = None,
        origins: Origins | None = None,
    ) -> None:
        """Replace the given fields, in one write."""
        record = self.record().replace_fields(summary=summary, private=private, origins=origins)
        if cursor is not None:
            record = replace(record, place=self.history.place(cursor, record.place))
        self.record_file.save(record)

    def last(self) -> HistoryTail:
        """The last message, also if it is before the cursor."""
        record = self.record()
        cursor, hint = record.cursor, record.place
        tail = self.history.read(cursor=cursor, max_messages=1, max_chars=None, hint=hint)
        if tail.messages or not tail.total:
            return tail
        return self.history.segment(
            start=tail.total - 1, max_messages=1, max_chars=None, cursor=cursor, hint=hint
        )

    def append(self, messages: tuple[Message, ...], *, durable: bool) -> None:
        """Append to the history. A session whose file name does not tell its key gets a record first."""
        if self._shortened and not self.record_file.exists():
            self.record_file.save(self.record_file.load(self._clock.now()))
        now = self._clock.now()
        lines = [stamp(message, now) for message in messages]
        self.history.append(lines, lambda: self.record().place, durable=durable)


_PATH = re.compile(rb"attachments/[0-9a-f]{2}/[0-9a-f]{64}\.[a-z0-9]{1,8}")


def named_files(folder: Path) -> Iterator[str]:
    """Yield every `Attachment.path` named in histories below ``folder``. Blocks. Raises OSError."""
    for history in sorted(folder.rglob("*.jsonl*")):
        if not history.is_file():
            continue
        rest = b""
        with history.open("rb") as lines:
            while block := lines.read(1024 * 1024):
                block = rest + block
                for found in _PATH.finditer(block):
                    yield found[0].decode()
                rest = block[-100:]


async def named_in_files(folder: Path) -> set[str]:
    """The same, in a worker thread."""
    return await anyio.to_thread.run_sync(lambda: set(named_files(folder)))
