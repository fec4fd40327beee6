"""
One history file: appended to, read from its end, never rewritten and never parsed as a whole. The number of
positions is valid while size, inode and time of the file are unchanged. Positions come from ``n`` of the last
lines, else newlines are counted once. An append leaves out ids of the last thousand lines, as far as a crash
can repeat. The cursor is a byte offset verified by its line: damage can join lines and shift numbers. Blocks;
one caller at a time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import count as numbers
from pathlib import Path
from typing import Any

import structlog

from agent_core import files
from agent_core.models import HistoryTail, Message
from agent_core.prompt_budget import message_chars
from agent_core.storage import durable_files, history_lines
from agent_core.storage.durable_files import Durability
from agent_core.storage.history_paging import (
    BLOCK_BYTES,
    Entry,
    Numbering,
    PageMark,
    ReadAt,
    count_lines,
    entries_from,
    lines_backwards,
    lines_forwards,
    newest,
    oldest,
    place_of,
)

SET_ASIDE = ".set-aside"
"""What is put behind the name of a folder, a pipe or a link that stood in the place of a history."""

_RECENT_IDS = 1000
_SHORT_LINE = 4000  # bytes: only such lines are kept decoded
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not make anybody wait

log = structlog.get_logger(__name__)


class HistoryFile:
    """One history file; ``read_at`` and ``sync`` replace ``os.pread`` and ``os.fdatasync`` in tests."""

    def __init__(
        self, path: Path, *, read_at: ReadAt = os.pread, sync: Callable[[int], None] = os.fdatasync
    ) -> None:
        self.path = path
        self._read_at = read_at
        self._durability = Durability(path, sync)
        self._reported: set[int] = set()
        self._forget()

    def _forget(self) -> None:
        self._seen: tuple[int, int, int, int] | None = None
        self._size = 0
        self._end = 0
        self._recent: dict[str, None] | None = None
        """The newest ids, the oldest first."""
        self._judged: tuple[PageMark, bool] | None = None

    def set_aside(self) -> Path | None:
        """Move away what is at the file's path and is not a file; None if there is nothing to move."""
        try:
            if stat.S_ISREG(self.path.lstat().st_mode):
                return None
        except FileNotFoundError:
            return None
        names = (self.path.with_name(f"{self.path.name}{SET_ASIDE}-{number}") for number in numbers(1))
        aside = next(name for name in names if not os.path.lexists(name))
        self.path.rename(aside)
        files.sync(self.path.parent)
        self._forget()
        return aside

    def end(self, hint: PageMark = PageMark()) -> int:  # noqa: B008 (a frozen constant)
        """Return the number of positions; at least that of a valid ``hint``."""
        with self._opened(hint) as handle:
            return self._end_after(handle, hint) if handle is not None else 0

    def read(
        self, *, cursor: int, max_messages: int | None, max_chars: int | None, hint: PageMark
    ) -> HistoryTail:
        """The newest messages after ``cursor``, which is clamped to the end."""
        with self._opened(hint) as handle:
            if handle is None:
                return HistoryTail()
            total = self._end_after(handle, hint)
            entries = self._entries(handle)
            if cursor == hint.position and self._is_right(handle, hint):
                entries = entries_from(hint, entries)
            return newest(
                entries,
                cursor=min(cursor, total),
                total=total,
                max_messages=max_messages,
                max_chars=max_chars,
            )

    def segment(
        self, *, start: int, max_messages: int, max_chars: int | None, cursor: int, hint: PageMark
    ) -> HistoryTail:
        """The oldest messages from position ``start`` on, within both limits."""
        with self._opened(hint) as handle:
            if handle is None:
                return HistoryTail()
            place = hint if hint.position <= start and self._is_right(handle, hint) else PageMark()
            entries = self._entries_forwards(handle, self._nearer(handle, place, start))
            total = self._end_after(handle, hint)
            return oldest(
                (entry for entry in entries if entry.position >= start),
                cursor=min(cursor, total),
                total=total,
                max_messages=max_messages,
                max_chars=max_chars,
            )

    def place(self, position: int, hint: PageMark) -> PageMark:
        """
        Return the mark of the first readable message from ``position`` on, counted from ``hint`` like
        `segment`.

        Behind the last message it is the end; far from both ends it is a mark without offset.
        """
        with self._opened(hint) as handle:
            if handle is None or position <= 0:
                return PageMark()
            if hint.position <= position and self._is_right(handle, hint):
                for entry in self._entries_forwards(handle, hint):
                    if entry.position >= position and entry.message is not None:
                        return place_of(entry)
                    if entry.offset - hint.offset > 8 * 1024 * 1024:
                        break
                else:
                    return PageMark(self._end, self._size)
            if position >= self._end:
                return PageMark(self._end, self._size)
            for count, entry in enumerate(self._entries(handle)):
                if entry.position == position and entry.message is not None:
                    return place_of(entry)
                if entry.position < position or count >= 5000:
                    break
            return PageMark(position, -1)

    def append(
        self, messages: Sequence[Message], hint: Callable[[], PageMark], *, durable: bool = False
    ) -> int:
        """Append new messages in one write; return their number. ``durable`` syncs all of the file."""
        handle = self._opened_to_append()
        try:
            durable_files.lock(handle)
            if _state(handle) != self._seen:
                self._refresh(handle, hint())
            self._durability.started_sync(self._size)
            new = self._not_there(handle, messages)
            if new:
                self._write(handle, new)
            if durable:
                self._durability.sync(handle)
        except BaseException:
            self._forget()
            raise
        finally:
            os.close(handle)
        return len(new)

    def sync(self) -> None:
        """Return when everything appended so far is on the disk, the file's name included."""
        try:
            handle = os.open(self.path, _READ)
        except FileNotFoundError:
            return
        try:
            self._durability.sync(handle)
        finally:
            os.close(handle)

    # ── inside ──

    def _opened_to_append(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            files.make_folder(self.path.parent)
            return os.open(self.path, flags, 0o600)

    @contextmanager
    def _opened(self, hint: PageMark) -> Iterator[int | None]:
        try:
            handle = os.open(self.path, _READ)
        except FileNotFoundError:
            self._forget()
            yield None
            return
        try:
            self._refresh(handle, hint)
            yield handle
        finally:
            os.close(handle)

    def _refresh(self, handle: int, hint: PageMark) -> None:
        seen = _state(handle)
        if seen == self._seen:
            return
        if self._seen is not None:
            _decode.cache_clear()  # somebody else has changed it: what was erased does not stay here
        self._forget()
        self._size = seen[2]
        self._end = self._find_end(handle, hint)
        self._seen = seen

    def _find_end(self, handle: int, hint: PageMark) -> int:
        """The number of positions: from the last line that knows its own, else by counting newlines."""
        after = -1
        for after, (offset, raw) in enumerate(self._raw_backwards(handle, self._size)):
            number = history_lines.position_in(history_lines.as_object(raw) if raw else None, offset)
            if number is not None:
                return number + 1 + after
            if after >= 64:
                break
        else:
            return after + 1
        place = hint if self._is_right(handle, hint) else PageMark()
        return place.position + count_lines(handle, place.offset, self._size, read_at=self._read_at)

    def _end_after(self, handle: int, hint: PageMark) -> int:
        return max(self._end, hint.position) if self._is_right(handle, hint) else self._end

    def _is_right(self, handle: int, hint: PageMark) -> bool:
        """Return True if the mark still fits the file, as far as one probe can tell."""
        if self._judged is None or self._judged[0] != hint:
            self._judged = (hint, self._looks_right(handle, hint))
        return self._judged[1]

    def _looks_right(self, handle: int, hint: PageMark) -> bool:
        if not 0 < hint.offset <= self._size or self._read_at(handle, 1, hint.offset - 1) != b"\n":
            return hint.offset == hint.position == 0
        for _, raw in lines_forwards(
            handle, hint.offset, max_line_bytes=history_lines.MAX_LINE_BYTES, read_at=self._read_at
        ):
            value = history_lines.as_object(raw) if raw else None
            number = history_lines.position_in(value, hint.offset)
            named = hint.message_id is None or (value is not None and value.get("id") == hint.message_id)
            return named and number in (None, hint.position)
        return hint.message_id is None

    def _raw_backwards(self, handle: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        return lines_backwards(
            handle, end, max_line_bytes=history_lines.MAX_LINE_BYTES, read_at=self._read_at
        )

    def _entries(self, handle: int) -> Iterator[Entry]:
        """All lines, newest first."""
        numbering = Numbering(self._end, step=-1)
        for offset, raw in self._raw_backwards(handle, self._size):
            yield self._entry(numbering, offset, raw)

    def _entries_forwards(self, handle: int, place: PageMark) -> Iterator[Entry]:
        numbering = Numbering(place.position - 1)
        for offset, raw in lines_forwards(
            handle, place.offset, max_line_bytes=history_lines.MAX_LINE_BYTES, read_at=self._read_at
        ):
            yield self._entry(numbering, offset, raw)

    def _nearer(self, handle: int, place: PageMark, start: int) -> PageMark:
        """Return a mark between ``place`` and position ``start``, by halving, where lines know their own."""
        end = self._size
        while place.position < start and end - place.offset > 4 * BLOCK_BYTES:
            middle = (place.offset + end) // 2
            following = lines_forwards(
                handle, middle, max_line_bytes=history_lines.MAX_LINE_BYTES, read_at=self._read_at
            )
            next(following, None)  # the rest of a line
            offset, raw = next(following, (end, None))
            number = history_lines.position_in(history_lines.as_object(raw) if raw else None, offset)
            if number is None and offset < end:
                break
            if number is None or number > start or number <= place.position:
                end = middle
            else:
                place = PageMark(number, offset)
        return place

    def _entry(self, numbering: Numbering, offset: int, raw: bytes | None) -> Entry:
        decode = _decode if raw is not None and len(raw) <= _SHORT_LINE else _decode.__wrapped__
        place, message, chars = decode(raw)
        number = history_lines.position_in(place, offset)
        position = numbering.next(number, readable=message is not None)
        if message is not None:
            return Entry(position, offset, message, chars, number=number)
        broken = raw is None or bool(raw.strip())
        if broken and offset not in self._reported and len(self._reported) < 1000:
            self._reported.add(offset)
            log.warning("history.line_skipped", file=self.path.name, offset=offset, position=position)
        return Entry(position, offset, None, broken=broken)

    def _not_there(self, handle: int, messages: Sequence[Message]) -> list[Message]:
        """Those that were not written lately, each id once."""
        if self._recent is None:
            self._recent = dict.fromkeys(reversed(self._last_ids(handle)))
        new: dict[object, Message] = {}
        for message in messages:
            if message.id is None or message.id not in self._recent:
                new.setdefault(object() if message.id is None else message.id, message)
        return list(new.values())

    def _last_ids(self, handle: int) -> list[str]:
        found: list[str] = []
        for entry in self._entries(handle):
            if entry.message is not None and entry.message.id is not None:
                found.append(entry.message.id)
            if len(found) >= _RECENT_IDS or self._size - entry.offset >= 512 * 1024:
                break
        return found

    def _write(self, handle: int, messages: Sequence[Message]) -> None:
        encoded = [
            history_lines.to_line(message, self._end + number) for number, message in enumerate(messages)
        ]
        expected = sum(map(len, encoded))
        durable_files.append(handle, b"".join(encoded))
        seen = _state(handle)
        if seen[2] - expected - self._size not in (0, 1):
            # Somebody else has written too: look again next time.
            self._forget()
            return
        for message in messages:
            if self._recent is not None and message.id is not None:
                self._recent[message.id] = None
                if len(self._recent) > _RECENT_IDS:
                    del self._recent[next(iter(self._recent))]
        self._end += len(messages)
        self._size = seen[2]
        self._seen = seen


@lru_cache(maxsize=500)  # at most some 6 MB with what is made of them
def _decode(raw: bytes | None) -> tuple[dict[str, Any] | None, Message | None, int]:
    """The place in a line, its message and the characters of that; each turn reads the newest lines again."""
    value = history_lines.as_object(raw) if raw else None
    message = history_lines.from_object(value) if value is not None else None
    place = None if value is None else {"n": value.get("n")}
    return place, message, 0 if message is None else message_chars(message)


def _state(handle: int) -> tuple[int, int, int, int]:
    """Return device, inode, size and modification time, which identify an unchanged file."""
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
