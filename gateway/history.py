"""
From the journal to the files: the history lines of a turn are committed in the store together with its
answer, and from there appended to the session's JSONL.

Why twice: one commit can cover the inbox, the outbox and the history of a turn, but no commit covers a
database and a file. So the store's journal is the truth until the file has the lines durably. Lines have
deterministic ids and the file's reader knows the recent ones, so appending again after a crash adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import structlog

from agent_core.errors import StorageUnavailable
from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.ports import MemoryPort
from gateway.work.port import JournalLine, StoreUnavailable, WorkStore

__all__ = ["HistoryWriter"]

_SYNC_EVERY_S = 1.0
_BACK_OFF_S = 5.0
_log = structlog.get_logger(__name__)


class HistoryWriter:
    """
    Appends journal lines to the histories and clears the journal once they are durable.

    Args:
        store: Where the journal is.
        memory: Where the histories are.
    """

    def __init__(self, store: WorkStore, memory: MemoryPort) -> None:
        self._store = store
        self._memory = memory
        self._unappended: set[SessionKey] = set()
        self._unsynced: dict[SessionKey, list[int]] = {}
        self._work = anyio.Event()

    async def recover(self) -> int:
        """
        Once at start, before any turn: append what a crash left in the journal. Returns how many lines.

        Raises:
            StorageUnavailable, StoreUnavailable: Not now; nothing is lost, call again.
        """
        lines = await self._store.journal()
        await self._append(lines)
        if lines:
            _log.info("history.recovered", lines=len(lines))
        return len(lines)

    def committed(self, session: SessionKey) -> None:
        """A turn of this session was completed: there are lines in the journal."""
        self._unappended.add(session)

    async def flush(self, session: SessionKey) -> None:
        """
        Return when the session's history can be read in full, so before its next prompt is built.

        Raises:
            StorageUnavailable, StoreUnavailable: Not now; nothing is lost, call again.
        """
        if session in self._unappended:
            await self._append(await self._store.journal(session))
            self._unappended.discard(session)

    async def _append(self, lines: Iterable[JournalLine]) -> None:
        by_session: dict[SessionKey, list[JournalLine]] = {}
        for line in lines:
            by_session.setdefault(line.session, []).append(line)
        for session, group in by_session.items():
            messages: list[Message] = [line.message for line in group]
            await self._memory.append_message(str(session), *messages)
            known = self._unsynced.setdefault(session, [])
            known.extend(line.id for line in group if line.id not in known)
            self._work.set()

    async def run(self) -> None:
        """Make durable what was appended, in the background, until cancelled."""
        while True:
            await self._work.wait()
            await anyio.sleep(_SYNC_EVERY_S)
            self._work = anyio.Event()
            try:
                await self.sync()
            except (StorageUnavailable, StoreUnavailable) as error:
                _log.warning("history.sync_failed", error=str(error), **error.fields)
                self._work.set()
                await anyio.sleep(_BACK_OFF_S)

    async def sync(self) -> None:
        """
        Append what is left, make all of it durable and clear the journal.

        Raises:
            StorageUnavailable, StoreUnavailable: Not now; the journal still has the lines.
        """
        for session in list(self._unappended):
            await self.flush(session)
        for session in list(self._unsynced):
            ids = self._unsynced.pop(session)
            try:
                await self._memory.sync_history(str(session))
                await self._store.journal_done(ids)
            except BaseException:
                self._unsynced.setdefault(session, [])[:0] = ids
                raise
