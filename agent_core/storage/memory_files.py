"""
Memory documents: one Markdown file each. Every version is kept, and people may edit the files. An append-only
file beside the document holds every version. A write prepares the document under a temporary name, appends
the version (the commit), and renames. On reading, a document that equals the previous version with a prepared
newer one gets the missing rename; any other text is somebody's edit and becomes a version dated by the file.
So no text is lost in a crash or on a full disk. A lock excludes other processes. Blocks; one caller at a
time.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent_core import files
from agent_core.errors import DocumentUnusable, MemoryConflict
from agent_core.models import MemoryDocument
from agent_core.provenance import Origins, from_json, to_json
from agent_core.storage import durable_files
from agent_core.storage.history_lines import MAX_LINE_BYTES, as_object, encode_object, storable
from agent_core.storage.history_paging import lines_backwards, lines_forwards

log = structlog.get_logger(__name__)

_MAX_VERSION_CHARS = 2 * 1024 * 1024

_Seen = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a document, as the file of versions has it."""

    document: MemoryDocument
    written_at: datetime
    session_id: str = ""
    turn: str = ""

    def line(self) -> bytes:
        """The version as a line of the file."""
        return encode_object(
            {
                "version": self.document.version,
                "time": self.written_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
                "session": self.session_id,
                "turn": self.turn,
                "text": self.document.text,
                "origins": to_json(self.document.origins),
            }
        )

    @classmethod
    def parse_or_none(cls, raw: bytes | None) -> Version | None:
        """Read what `line` wrote."""
        match as_object(raw) if raw else None:
            case {
                "version": int(version),
                "time": str(time),
                "session": str(session),
                "turn": str(turn),
                "text": str(text),
                **rest,
            }:
                try:
                    written_at = datetime.fromisoformat(time)
                except ValueError:
                    return None
                document = MemoryDocument(text, version, from_json(rest.get("origins")))
                return cls(document, written_at, session, turn)
        return None


class DocumentFile:
    """One memory document at ``path`` with its versions at ``versions``."""

    def __init__(self, path: Path, versions: Path) -> None:
        self._path = path
        self._versions = versions
        self._next = path.with_name(f"{path.name}.next")
        self._seen: tuple[_Seen, _Seen] | None = None
        self._document = MemoryDocument()

    def load(self) -> MemoryDocument:
        """Load the current document; an edit by hand has become a version when this returns."""
        seen = (_seen(self._path), _seen(self._versions))
        if seen == (None, None):
            return MemoryDocument()
        if seen != self._seen:
            self._document = self._reconciled()
            self._seen = (_seen(self._path), _seen(self._versions))
        return self._document

    def save(
        self,
        text: str,
        *,
        base_version: int | None,
        written_at: datetime,
        session_id: str,
        turn: str,
        origins: Origins = (),
    ) -> MemoryDocument:
        """Replace the document, if it still is at ``base_version``."""
        text = storable(text)
        files.make_folder(self._versions.parent)
        files.make_folder(self._path.parent)
        self._seen = None
        with durable_files.exclusive(self._versions, sync=True) as handle:
            current = self._settled(handle)
            if current.version and current.text == text:
                return current
            if base_version is not None and base_version != current.version:
                raise MemoryConflict(
                    current_text=current.text, current_version=current.version, origins=current.origins
                )
            document = MemoryDocument(text, current.version + 1, origins)
            if len(current.text) > _MAX_VERSION_CHARS:  # too long for a version: the file itself is kept
                self._path.replace(self._path.with_name(f"{self._path.name}.kept-{current.version}"))
            files.write_new(self._next, text.encode())
            durable_files.append(handle, Version(document, written_at, session_id, turn).line())
            os.fsync(handle)
            self._next.replace(self._path)
            files.sync(self._path.parent)
        return document

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        self.load()
        try:
            handle = durable_files.open_regular(self._versions, os.O_NOFOLLOW)
        except FileNotFoundError:
            return []
        try:
            found = lines_forwards(handle, 0, max_line_bytes=MAX_LINE_BYTES)
            return [version for _, raw in found if (version := Version.parse_or_none(raw)) is not None]
        finally:
            os.close(handle)

    def unusable(self) -> DocumentUnusable | None:
        """Return the error if the document or its versions are no regular file; else None."""
        for path in (self._path, self._versions):
            if not durable_files.is_file_or_nothing(path):
                return DocumentUnusable(f"{path} is {_kind(path)}, and should be a file", path=str(path))
        return None

    # ── inside ──

    def _text(self) -> str:
        try:
            return durable_files.read(self._path).decode("utf-8", "replace")
        except FileNotFoundError as exc:
            if self._path.is_symlink():  # a disk that is not mounted has not deleted what is on it
                raise OSError(errno.ELOOP, "a link to nowhere", str(self._path)) from exc
            return ""

    def _reconciled(self) -> MemoryDocument:
        """The document, settled with the versions if that is needed."""
        last = self._last_versions(1)
        text = self._text()
        if text == (last[0].document.text if last else ""):
            return last[0].document if last else MemoryDocument()
        try:
            files.make_folder(self._versions.parent)
            with durable_files.exclusive(self._versions, sync=True) as handle:
                return self._settled(handle)
        except OSError as exc:
            # The text can be read, so it is used; it gets its version when the disk takes it.
            log.warning("memory.version_not_kept", file=str(self._path), reason=exc.strerror)
            return MemoryDocument(text, (last[0].document.version if last else 0) + 1)

    def _settled(self, handle: int) -> MemoryDocument:
        """The current document, after a rename was caught up on or an edit by hand was recorded."""
        last = self._last_versions(2)
        known = last[0].document if last else MemoryDocument()
        before = last[1].document.text if len(last) > 1 else ""
        text = self._text()
        if text == known.text:
            return known
        if text == before and self._prepared() == known.text:
            self._next.replace(self._path)
            files.sync(self._path.parent)
            log.info("memory.write_finished", file=str(self._path), version=known.version)
            return known
        document = MemoryDocument(text, known.version + 1)
        if len(text) > _MAX_VERSION_CHARS:
            log.warning("memory.edit_too_long", file=str(self._path), chars=len(text))
            return document
        durable_files.append(handle, Version(document, self._edited_at(last)).line())
        log.info("memory.edit_noticed", file=str(self._path), version=document.version)
        return document

    def _prepared(self) -> str | None:
        try:
            return self._next.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return None

    def _edited_at(self, last: list[Version]) -> datetime:
        try:
            return datetime.fromtimestamp(self._path.stat().st_mtime, UTC)
        except FileNotFoundError:  # deleted by hand: its folder changed last
            return datetime.fromtimestamp(self._path.parent.stat().st_mtime, UTC)

    def _last_versions(self, count: int) -> list[Version]:
        found: list[Version] = []
        try:
            handle = durable_files.open_regular(self._versions, os.O_NOFOLLOW)
        except FileNotFoundError:
            return found
        try:
            for _, raw in lines_backwards(handle, os.fstat(handle).st_size, max_line_bytes=MAX_LINE_BYTES):
                if (version := Version.parse_or_none(raw)) is not None:
                    found.append(version)
                if len(found) >= count:
                    break
        finally:
            os.close(handle)
        return found


def _kind(path: Path) -> str:
    """Name the kind of file at a path, for people."""
    if path.is_symlink():
        return "a link that leads to no file"
    return "a folder" if path.is_dir() else "not to be reached, or something special"


def _seen(path: Path) -> _Seen:
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return (state.st_ino, state.st_size, state.st_mtime_ns)
