"""
Appends history lines to the sessions' JSONL files: a turn commits them in the store together with its answer,
and from that journal they are written here. Why twice: one commit can cover the inbox, the outbox and the
history of a turn, but no commit covers a database and a file. So the store's journal is the truth until the
file has the lines durably. Lines have deterministic ids and the file's reader knows the recent ones, so
appending again after a crash adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import structlog

from agent_core.errors import StorageUnavailable
from agent_core.memory_ports import MemoryPort
from agent_core.messages import SessionKey
from gateway.store.stores import JournalLine, Queue, StoreUnavailable
from gateway.store.wakeups import Wakeups

_log = structlog.get_logger(__name__)


class HistoryWriter:
    """Appends journal lines to the histories and clears the journal once they are durable."""

    def __init__(self, store: Queue, memory: MemoryPort, wakeups: Wakeups | None = None) -> None:
        self._store = store
        self._memory = memory
        # How often a session was marked: what is committed while a flush runs must not be forgotten with it.
        self._unappended: dict[SessionKey, int] = {}
        self._unsynced: dict[SessionKey, dict[int, None]] = {}
        # Whose last durable append failed: then nobody knows whether the lines are there.
        self._unsure: set[SessionKey] = set()
        self._marks = 0
        self._work = anyio.Event()
        if wakeups is not None:
            wakeups.history.connect(self.note_lines)

    async def recover(self) -> int:
        """Append a crash's journal lines, before any turn; return their number. Raises StoreUnavailable."""
        lines = await self._store.journal.lines()
        by_session: dict[SessionKey, list[JournalLine]] = {}
        for line in lines:
            by_session.setdefault(line.session, []).append(line)
        for session, group in by_session.items():
            try:
                await self._append(session, group)
            except StorageUnavailable as error:
                self.note_lines(session)
                _log.error("history.unwritable", **{**_fields(error), "session": str(session)})
        if lines:
            _log.info("history.recovered", lines=len(lines), sessions=len(by_session))
        return len(lines)

    def note_lines(self, session: SessionKey) -> None:
        """Note that the journal has lines of this session."""
        self._marks += 1
        self._unappended[session] = self._marks
        self._work.set()

    async def flush(self, session: SessionKey) -> None:
        """Make the session's history readable in full. Raises StorageUnavailable or StoreUnavailable."""
        mark = self._unappended.get(session)
        if mark is None:
            return
        await self._append(session, await self._store.journal.lines(session))
        if self._unappended.get(session) == mark:
            del self._unappended[session]

    async def settle(self, session: SessionKey) -> None:
        """Move the journal's lines durably into the history; repeatable. Raises `StorageUnavailable`."""
        mark = self._unappended.get(session)
        lines = await self._store.journal.lines(session) if mark is not None else ()
        waiting = self._unsynced.get(session, {})
        new = [line for line in lines if line.id not in waiting]
        ids = [*waiting, *(line.id for line in new)]
        if ids:
            await self._durably(session, new)
            await self._store.journal.delete_filed_lines(ids)
        left = self._unsynced.get(session, {})
        for line_id in ids:
            left.pop(line_id, None)
        if not left:
            self._unsynced.pop(session, None)
        if self._unappended.get(session) == mark:
            self._unappended.pop(session, None)

    async def _durably(self, session: SessionKey, new: Sequence[JournalLine]) -> None:
        """
        Append and sync at once; in two steps where that has just failed.

        While a disk takes lines but not for good, each must be handed over once: the file knows only so many
        of its newest ids.
        """
        if not new or session in self._unsure:
            await self._append(session, new)
            await self._memory.sync_history(str(session))
            self._unsure.discard(session)
            return
        try:
            await self._memory.append_message(str(session), *(line.message for line in new), durable=True)
        except StorageUnavailable:
            self._unsure.add(session)
            raise

    async def _append(self, session: SessionKey, lines: Sequence[JournalLine]) -> None:
        appended = self._unsynced.setdefault(session, {})
        new = [line for line in lines if line.id not in appended]
        if new:
            await self._memory.append_message(str(session), *(line.message for line in new))
        # Looked up again: while that was written, a sync may have ended and cleared its own.
        self._unsynced.setdefault(session, {}).update(dict.fromkeys(line.id for line in new))
        self._work.set()

    async def run(self) -> None:
        """Append what was committed and make it durable, in the background, until cancelled."""
        while True:
            await self._work.wait()
            await anyio.sleep(1.0)
            self._work = anyio.Event()
            try:
                await self.sync()
            except (StorageUnavailable, StoreUnavailable) as error:
                _log.warning("history.sync_failed", **_fields(error))
                self._work.set()
                await anyio.sleep(5.0)

    async def sync(self) -> None:
        """Append, sync and clear the journal, bad sessions apart. Raises StorageUnavailable."""
        failed: StorageUnavailable | None = None
        for session in list(self._unappended.keys() | self._unsynced.keys()):
            try:
                await self.settle(session)
            except StorageUnavailable as error:
                failed = error
        if failed is not None:
            raise failed


def _fields(error: StorageUnavailable | StoreUnavailable) -> dict[str, Any]:
    return {**error.fields, "error": str(error)}
