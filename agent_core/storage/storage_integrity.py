"""
Checks and repairs the files of conversations and memory. A check changes nothing; a repair loses nothing. A
damaged line is overwritten by blanks of the same length, after its text was kept by the caller: so every
other line keeps its place, its byte and its position, and cursors and the search index stay right. What is
derived (the readable summary) is made again from the record, and a record that cannot be read is set aside:
the conversation is summarised again. Everything here blocks; while something is repaired nobody else may work
on the home.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_core.messages import Attachment, SessionKey
from agent_core.ports import Clock
from agent_core.storage import durable_files, history_lines
from agent_core.storage.history_file import HistoryFile
from agent_core.storage.history_paging import lines_backwards, lines_forwards
from agent_core.storage.layout import Layout
from agent_core.storage.memory_files import Version
from agent_core.storage.session_files import Record, SessionFiles, parse_record, session_of

_MAX_HALVES = 100
"""The most bad lines compared with what follows; a broken disk leaves more, and then it is damage."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """An unreadable line: its offset, its length without the newline, and what is wrong."""

    offset: int
    length: int
    why: str


@dataclass(frozen=True, slots=True)
class Named:
    """A file that a line of a history names, and the time that the line has."""

    file: Attachment
    at: str


def histories(layout: Layout) -> Iterator[tuple[SessionKey | None, Path]]:
    """All histories with their sessions; None for a file whose session is unknown."""
    for path in sorted(layout.sessions.glob("*.jsonl")):
        yield session_of(path), path


def left_in_files(layout: Layout) -> str:
    """A report of histories and documents in files that are not used; empty if there are none."""
    there = any(layout.sessions.glob("*.jsonl")) or any(map(Path.is_file, version_files(layout)))
    if not there and not (layout.workspace / "MEMORY.md").is_file():
        return ""
    return f"{layout.home} has histories or memory in files, which are not used: they are in the database"


def version_files(layout: Layout) -> list[Path]:
    """All files with versions of memory documents."""
    return sorted((layout.home / "memory").rglob("MEMORY.history.jsonl"))


def documents(layout: Layout) -> Iterator[tuple[Path, Path]]:
    """Yield the expected paths of memory documents and their versions, shortened names included."""
    yield layout.workspace / "MEMORY.md", layout.home / "memory" / "owner" / "MEMORY.history.jsonl"
    for kind in ("people", "rooms"):
        for folder in sorted((layout.home / "memory" / kind).glob("*")):
            yield folder / "MEMORY.md", folder / "MEMORY.history.jsonl"


def last_text(versions: Path) -> str | None:
    """The newest text of a memory document; None if no version can be read."""
    if not versions.is_file():
        return None
    handle = os.open(versions, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        for _, raw in lines_backwards(handle, size, max_line_bytes=history_lines.MAX_LINE_BYTES):
            if (version := Version.parse_or_none(raw)) is not None:
                return version.document.text
    finally:
        os.close(handle)
    return None


def bad_lines(path: Path, *, still_written: bool = False) -> list[BadLine]:
    """
    Return the unreadable lines of a history or versions file. Raises OSError.

    A half line repeated in full after it is none of them: its write was interrupted and repeated. With
    ``still_written`` the end of the file is ignored.
    """
    is_version = path.name.startswith("MEMORY.")
    found: list[BadLine] = []
    halves = _Halves()
    handle = durable_files.open_regular(path, os.O_NOFOLLOW)
    try:
        size = os.fstat(handle).st_size
        starts: list[tuple[int, bytes | None]] = []
        for each in lines_forwards(handle, 0, max_line_bytes=history_lines.MAX_LINE_BYTES):
            starts.append(each)
            if len(starts) == 2:
                offset, raw = starts.pop(0)
                bad = list(_judged(offset, raw, end=each[0] - 1, is_version=is_version))
                found += bad
                halves.see(raw, bad)
        ends_well = size == 0 or os.pread(handle, 1, size - 1) == b"\n"
        for offset, raw in starts:
            if ends_well or not still_written:
                bad = list(
                    _judged(offset, raw, end=size - ends_well, is_version=is_version, torn=not ends_well)
                )
                found += bad
                halves.see(raw, bad)
    finally:
        os.close(handle)
    return [one for one in found if one.offset not in halves.whole]


class _Halves:
    """Bad lines whose bytes are the beginning of a later line."""

    def __init__(self) -> None:
        self.whole: set[int] = set()
        self._waiting: dict[int, bytes] = {}

    def see(self, raw: bytes | None, bad: Sequence[BadLine]) -> None:
        """Check the next line for what is wrong with it; one that is repeated in part is not whole yet."""
        if bad and bad[0].length:
            if raw is not None:
                self._waiting[bad[0].offset] = raw
                while len(self._waiting) > _MAX_HALVES:
                    del self._waiting[next(iter(self._waiting))]
            return
        for offset, half in list(self._waiting.items()):
            if raw is not None and raw.startswith(half):
                self.whole.add(offset)
                del self._waiting[offset]


def _judged(
    offset: int, raw: bytes | None, *, end: int, is_version: bool, torn: bool = False
) -> Iterator[BadLine]:
    length = end - offset
    if raw is None:
        yield BadLine(offset, length, "longer than a line may be")
        return
    if not raw.strip():
        return
    value = history_lines.as_object(raw)
    sound = (
        Version.parse_or_none(raw) if is_version else value is not None and history_lines.from_object(value)
    )
    if not sound:
        what = "not a version of a document" if is_version else "no message"
        yield BadLine(offset, length, what if value is not None else "no JSON")
    elif torn:
        yield BadLine(offset, 0, "the last line does not end")


def blank_out(path: Path, bad: BadLine) -> None:
    """Replace an unreadable line by an empty one; end an incomplete last line. Raises `OSError`."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        left, at = bad.length, bad.offset
        while left:
            count = os.pwrite(handle, b" " * min(left, 1 << 20), at)
            left, at = left - count, at + count
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            os.pwrite(handle, b"\n", size)
        os.fsync(handle)
    finally:
        os.close(handle)


def files_in(path: Path) -> Iterator[Named]:
    """The files that the messages of a history name."""
    handle = durable_files.open_regular(path, os.O_NOFOLLOW)
    try:
        for _, raw in lines_forwards(handle, 0, max_line_bytes=history_lines.MAX_LINE_BYTES):
            if raw is None or b"attachments" not in raw:
                continue
            value = history_lines.as_object(raw)
            message = history_lines.from_object(value) if value is not None else None
            if message is not None and value is not None:
                for file in message.attachments:
                    yield Named(file, str(value.get("timestamp") or ""))
    finally:
        os.close(handle)


def record_troubles(layout: Layout, key: SessionKey) -> list[str]:
    """The contradictions between a session's record, its readable summary and its history."""
    record = _parsed(layout.record(key), key, layout)
    if record is None:
        return []
    if isinstance(record, str):
        return [f"{layout.record(key).name} {record}"]
    found = []
    if _copied(layout, key) != record.summary:
        found.append("its summary.md does not match the record")
    if record.cursor:
        end = HistoryFile(layout.history(key)).end(record.place)
        if record.cursor > end:
            found.append(f"its cursor ({record.cursor}) is beyond the end of the history ({end})")
    return found


def repair_record(layout: Layout, key: SessionKey, clock: Clock) -> None:
    """Repair a session's record, cursor and copy. Raises OSError or `StorageUnavailable`."""
    SessionFiles(key, layout, clock, read_at=os.pread, sync=os.fdatasync).record()


def _copied(layout: Layout, key: SessionKey) -> str:
    copy = layout.summary(key)
    return copy.read_bytes().decode("utf-8", "replace") if copy.exists() else ""


def _parsed(path: Path, key: SessionKey, layout: Layout) -> Record | str | None:
    """The record in a file, what is wrong with it, or None without one."""
    try:
        record = parse_record(path.read_bytes(), key, lambda: _copied(layout, key))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return record or "is not a record"
