"""
Attachments of messages: their storage, their tools, and the removal of old files. A file goes when it was not
saved again for ``keep_days``, whatever history names it: what was said about it stays. One that nothing names
goes after `ORPHAN_AFTER_S`: it was fetched just before a crash, or its message was refused after all. What is
still to be answered or sent keeps its files however old they are. When anything cannot be read, nothing is
removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass

import anyio
import structlog

from agent_core.errors import StorageUnavailable
from agent_core.ports import Clock
from channels.attachments import AttachmentStore, AttachmentsUnavailable
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import Queue, StoreUnavailable

ORPHAN_AFTER_S = 2 * 86_400.0
_FIRST_AFTER_S = 300.0
_EVERY_S = 6 * 3600.0
_AGAIN_S = 1800.0
_MAX_ROWS = 200_000
_OVER_IN = frozenset({InboxState.SETTLED, InboxState.IGNORED})
_NOT_NOW = (StoreUnavailable, StorageUnavailable, AttachmentsUnavailable, OSError)
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class AttachmentSweeper:
    """Sweeps one home folder; ``named`` returns the files in histories and raises like `sweep`."""

    attachments: AttachmentStore
    store: Queue
    named: Callable[[], Awaitable[set[str]]]
    _: KW_ONLY
    clock: Clock
    keep_days: float

    def __post_init__(self) -> None:
        self._keep_s = self.keep_days * 86_400.0

    async def run(self) -> None:
        """Sweep now and then until cancelled; nothing that fails comes out of here."""
        pause_s = _FIRST_AFTER_S
        while True:
            await anyio.sleep(pause_s)
            pause_s = _AGAIN_S
            try:
                await self.sweep_own()
                pause_s = _EVERY_S
            except _NOT_NOW as error:
                _log.warning("attachments.not_swept", error=f"{type(error).__name__}: {error}")

    async def sweep_own(self) -> int:
        """Do `sweep` unless the files are those of another squidbot."""
        if not await self.attachments.belongs_to(self.store.maintenance.identity):
            _log.error("attachments.of_another", remedy="give each squidbot a place of its own")
            return 0
        return await self.sweep()

    async def sweep(self) -> int:
        """Remove what is due; return the number of files. Raises if not everything can be read."""
        now = self.clock.now().timestamp()
        old = [file for file in await self.attachments.list_files() if now - file.saved_at > ORPHAN_AFTER_S]
        if not old:
            return 0
        open_files = await self._open()
        if open_files is None:
            return 0
        candidates = {file.path: file for file in old if file.path not in open_files}
        due = {path for path, file in candidates.items() if now - file.saved_at > self._keep_s}
        if candidates.keys() - due:
            due |= candidates.keys() - await self.named()
        removed = await self.attachments.remove([candidates[path] for path in sorted(due)])
        if removed:
            _log.info("attachments.swept", files=removed)
        return removed

    async def _open(self) -> set[str] | None:
        """Files of what is not over yet; None if there is too much of it to be sure."""
        waiting = [state for state in InboxState if state not in _OVER_IN]
        inbox = await self.store.inbox.rows(states=waiting, limit=_MAX_ROWS)
        unsent = [state for state in OutboxState if state is not OutboxState.SENT]
        outbox = await self.store.outbox.rows(states=unsent, limit=_MAX_ROWS)
        if len(inbox) >= _MAX_ROWS or len(outbox) >= _MAX_ROWS:
            return None
        files = [file for row in inbox for file in row.message.attachments]
        files += [file for row in outbox for file in row.message.attachments]
        files += [file for line in await self.store.journal.lines() for file in line.message.attachments]
        return {file.path for file in files}
