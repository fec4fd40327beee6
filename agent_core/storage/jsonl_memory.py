"""
Memory in files: the `MemoryPort` that the daemon uses. The layout is in the package's docstring. Every
operation is one visit to a worker thread, because a disk may hang. Operations on one session or document wait
for each other; at most eight others run concurrently. Open sessions are dropped least recently used first.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
import structlog

from agent_core.messages import SessionKey
from agent_core.models import HistoryTail, MemoryDocument, MemoryScope, Message
from agent_core.ports import Clock
from agent_core.provenance import Origins
from agent_core.storage.durable_files import NO_FILE, storage_errors
from agent_core.storage.history_paging import ReadAt
from agent_core.storage.layout import Layout
from agent_core.storage.memory_files import DocumentFile
from agent_core.storage.session_files import SessionFiles, session_of

_THREADS = 8

log = structlog.get_logger(__name__)

T = TypeVar("T")
F = TypeVar("F")
K = TypeVar("K")


@dataclass(slots=True)
class _Slot(Generic[F]):
    files: F
    lock: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    users: int = 0


class _Shelf(Generic[K, F]):
    """Open objects by name, of which the least recently used idle ones are dropped."""

    def __init__(self, limit: int, opened: Callable[[K], F]) -> None:
        self._limit = limit
        self._opened = opened
        self._slots: OrderedDict[K, _Slot[F]] = OrderedDict()

    async def visit(self, name: K, work: Callable[[F], T], limiter: anyio.CapacityLimiter) -> T:
        """Run ``work`` in a worker thread, alone with the files of ``name``."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = _Slot(self._opened(name))
        self._slots.move_to_end(name)
        slot.users += 1
        try:
            async with slot.lock:
                # Whoever is cancelled leaves only when the call has ended: nobody works behind a free lock.
                return await anyio.to_thread.run_sync(work, slot.files, limiter=limiter)
        finally:
            slot.users -= 1
            excess = max(0, len(self._slots) - self._limit)
            for idle in [each for each, slot in self._slots.items() if not slot.users][:excess]:
                del self._slots[idle]


class JsonlMemory:
    """
    History, cursor, summary and memory documents as files under ``home``.

    Args:
        workspace: The folder of the owner's ``MEMORY.md``; default: ``home/workspace``.
        read_at, sync: Replace ``os.pread`` and ``os.fdatasync`` in tests.
        on_set_aside: Called if a non-history in a history's place was moved.
        on_append: Called with a session's id when its history may have grown.
    """

    def __init__(
        self,
        home: Path,
        *,
        clock: Clock,
        workspace: Path | None = None,
        read_at: ReadAt = os.pread,
        sync: Callable[[int], None] = os.fdatasync,
        on_set_aside: Callable[[str], None] = lambda _: None,
        on_append: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.layout = Layout(home, workspace if workspace is not None else home / "workspace")
        self._on_set_aside = on_set_aside
        self._on_append = on_append
        self._clock = clock
        self._limiter = anyio.CapacityLimiter(_THREADS)
        self._sessions: _Shelf[SessionKey, SessionFiles] = _Shelf(
            32,
            lambda key: SessionFiles(key, self.layout, clock, read_at=read_at, sync=sync),
        )
        self._documents: _Shelf[MemoryScope, DocumentFile] = _Shelf(
            64,
            lambda scope: DocumentFile(self.layout.document(scope), self.layout.versions(scope)),
        )

    async def load_history(
        self, session_id: str, *, max_messages: int | None = None, max_chars: int | None = None
    ) -> HistoryTail:
        """See `MemoryPort`."""

        def work(files: SessionFiles) -> HistoryTail:
            record = files.record()
            tail = files.history.read(
                cursor=record.cursor, max_messages=max_messages, max_chars=max_chars, hint=record.place
            )
            return replace(tail, summary=record.summary, private=record.private, origins=record.origins)

        return await self._in_session(session_id, "read", work)

    async def load_segment(
        self, session_id: str, *, start: int, max_messages: int, max_chars: int | None = None
    ) -> HistoryTail:
        """See `MemoryPort`."""

        def work(files: SessionFiles) -> HistoryTail:
            record = files.record()
            tail = files.history.segment(
                start=max(0, start),
                max_messages=max_messages,
                max_chars=max_chars,
                cursor=record.cursor,
                hint=record.place,
            )
            return replace(tail, summary=record.summary, private=record.private, origins=record.origins)

        return await self._in_session(session_id, "read", work)

    async def last_messages(self, session_ids: Sequence[str]) -> list[HistoryTail]:
        """See `MemoryPort`."""
        return [await self._in_session(each, "read", SessionFiles.last) for each in session_ids]

    async def append_message(self, session_id: str, *messages: Message, durable: bool = False) -> None:
        """See `MemoryPort`."""
        if messages:
            try:
                await self._in_session(
                    session_id, "write", lambda files: files.append(messages, durable=durable)
                )
            finally:
                self._on_append(session_id)
        elif durable:
            await self.sync_history(session_id)

    async def sync_history(self, session_id: str) -> None:
        """See `MemoryPort`."""
        await self._in_session(session_id, "sync", lambda files: files.history.sync())

    async def load_session_summary(self, session_id: str) -> str:
        """See `MemoryPort`."""
        record = await self._in_session(
            session_id, "read", lambda files: files.record_file.load(self._clock.now())
        )
        return record.summary

    async def save_session_summary(self, session_id: str, summary: str) -> None:
        """See `MemoryPort`."""
        await self._in_session(session_id, "write", lambda files: files.save(summary=summary))

    async def load_consolidated_cursor(self, session_id: str) -> int:
        """See `MemoryPort`."""
        return await self._in_session(session_id, "read", lambda files: files.record().cursor)

    async def save_consolidated_cursor(self, session_id: str, cursor: int) -> None:
        """See `MemoryPort`."""
        await self._in_session(session_id, "write", lambda files: files.save(cursor=cursor))

    async def save_consolidation(
        self,
        session_id: str,
        *,
        summary: str,
        cursor: int,
        base_cursor: int | None = None,
        private: Collection[str] = (),
        origins: Origins = (),
    ) -> None:
        """See `MemoryPort`."""
        await self._in_session(
            session_id,
            "write",
            lambda files: files.consolidate(
                summary=summary,
                cursor=cursor,
                base_cursor=base_cursor,
                private=frozenset(private),
                origins=origins,
            ),
        )

    async def load_global_memory(self, scope: MemoryScope) -> MemoryDocument:
        """See `MemoryPort`."""
        return await self._in_document(scope, "read", lambda file: file.load())

    async def save_global_memory(
        self,
        scope: MemoryScope,
        text: str,
        *,
        base_version: int | None = None,
        session_id: str = "",
        turn: str = "",
        origins: Origins = (),
    ) -> MemoryDocument:
        """See `MemoryPort`."""
        return await self._in_document(
            scope,
            "write",
            lambda file: file.save(
                text,
                base_version=base_version,
                written_at=self._clock.now(),
                session_id=session_id,
                turn=turn,
                origins=origins,
            ),
        )

    async def memory_versions(self, scope: MemoryScope) -> list[tuple[MemoryDocument, datetime, str, str]]:
        """See `MemoryPort`. An edit by hand has neither session nor turn."""
        versions = await self._in_document(scope, "read", lambda file: file.versions())
        return [(each.document, each.written_at, each.session_id, each.turn) for each in versions]

    async def memory_scopes(self) -> list[MemoryScope]:
        """See `MemoryPort`. The name of a folder that had to be shortened is not known."""

        def list_scopes(layout: Layout) -> list[MemoryScope]:
            with storage_errors("list", layout.home):
                return list(layout.scopes())

        return await anyio.to_thread.run_sync(list_scopes, self.layout, limiter=self._limiter)

    async def sessions(self) -> list[str]:
        """See `MemoryPort`."""
        return await anyio.to_thread.run_sync(_list_sessions, self.layout, limiter=self._limiter)

    # ── inside ──

    async def _in_session(self, session_id: str, action: str, work: Callable[[SessionFiles], T]) -> T:
        aside: list[Path] = []

        def guarded(files: SessionFiles) -> T:
            with storage_errors(action, files.history.path):
                try:
                    return work(files)
                except OSError as exc:
                    # Nobody but a person could end it, and until then everything said here would wait.
                    moved = files.history.set_aside() if exc.errno in NO_FILE else None
                    if moved is None:
                        raise
                    aside.append(moved)
                    return work(files)

        try:
            return await self._sessions.visit(SessionKey.parse(session_id), guarded, self._limiter)
        finally:
            for path in aside:
                log.error("history.set_aside", session=session_id, moved_to=path.name)
                self._on_set_aside(f"{session_id}, now {path.name}")

    async def _in_document(self, scope: MemoryScope, action: str, work: Callable[[DocumentFile], T]) -> T:
        path = self.layout.document(scope)

        def guarded(file: DocumentFile) -> T:
            with storage_errors(action, path):
                try:
                    return work(file)
                except OSError as exc:
                    unusable = file.unusable() if exc.errno in NO_FILE else None
                    if unusable is None:
                        raise
                    raise unusable from exc

        return await self._documents.visit(scope, guarded, self._limiter)


def _written_at(path: os.DirEntry[str]) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # erased meanwhile
        return 0


def _list_sessions(layout: Layout) -> list[str]:
    found: list[str] = []
    with (
        storage_errors("list", layout.sessions),
        suppress(FileNotFoundError),
        os.scandir(layout.sessions) as all_,
    ):
        histories = [entry for entry in all_ if entry.name.endswith(".jsonl")]
        for entry in sorted(histories, key=_written_at, reverse=True):
            path = Path(entry.path)
            key = session_of(path)
            if key is not None and key.is_named(path.stem):
                found.append(str(key))
            else:
                log.warning("session.unknown_file", file=entry.name)
    return found
