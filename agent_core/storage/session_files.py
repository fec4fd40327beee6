"""
The files of one session, its history and its record, and their invariant: a cursor is never beyond the end of
its history. Also finds the attachments that any history names. Everything here blocks and is called in a
worker thread, by one caller at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
import structlog

from agent_core.errors import CursorMoved
from agent_core.messages import SessionKey
from agent_core.models import HistoryTail, Message
from agent_core.ports import Clock
from agent_core.provenance import Origins
from agent_core.storage.durable_files import exclusive
from agent_core.storage.history_file import HistoryFile
from agent_core.storage.history_lines import stamp
from agent_core.storage.history_paging import PageMark, ReadAt
from agent_core.storage.layout import Layout
from agent_core.storage.session_record import Record, RecordFile

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
_LONGEST = 100


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
                rest = block[-_LONGEST:]


async def named_in_files(folder: Path) -> set[str]:
    """The same, in a worker thread."""
    return await anyio.to_thread.run_sync(lambda: set(named_files(folder)))
