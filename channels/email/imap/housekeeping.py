"""
Housekeeping in the mailbox: flags on answered mails, our copies in the Sent folder. Nothing depends on it. It
is done between two looks at the mailbox on the same connection; what the server refuses is logged and
forgotten, what a lost connection interrupts is tried again on the next one, and what a crash loses stays
undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from channels.base import ChannelUnavailable
from channels.email.imap.imap_protocol import ImapRefused
from channels.email.imap.mailbox import Mailbox

MAX_TASKS = 2_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Answered:
    """A mail in INBOX whose answer was sent."""

    uid: int
    uidvalidity: int


@dataclass(frozen=True, slots=True)
class FileCopy:
    """Our own mail in INBOX that belongs in the Sent folder."""

    uid: int
    uidvalidity: int


@dataclass(frozen=True, slots=True)
class UploadCopy:
    """A sent mail that the server has no copy of yet."""

    raw: bytes


HousekeepingTask: TypeAlias = Answered | FileCopy | UploadCopy


class Housekeeping:
    """
    The pending tasks, without the oldest if too many.

    Answered mails get ``keyword`` and move to ``processed``; both may be empty.
    """

    def __init__(self, *, keyword: str = "", processed: str = "") -> None:
        self._keyword = keyword
        self._processed = processed
        self._waiting: deque[HousekeepingTask] = deque(maxlen=MAX_TASKS)

    def add(self, task: HousekeepingTask) -> None:
        """Add a task."""
        if len(self._waiting) == MAX_TASKS:
            _log.warning("mailbox.housekeeping_dropped")
        self._waiting.append(task)

    async def do(self, mailbox: Mailbox, uidvalidity: int) -> None:
        """Do all tasks in an open INBOX. Raises ChannelUnavailable; undone tasks stay."""
        waiting = list(self._waiting)
        answered = {
            task.uid for task in waiting if isinstance(task, Answered) and task.uidvalidity == uidvalidity
        }
        copies = {
            task.uid for task in waiting if isinstance(task, FileCopy) and task.uidvalidity == uidvalidity
        }
        uploads = [task for task in waiting if isinstance(task, UploadCopy)]
        if answered and not mailbox.read_only:
            await self._try("flag", mailbox.add_flags(sorted(answered), *self._flags(mailbox)))
            if self._processed:
                await self._try("process", _move(mailbox, sorted(answered), self._processed))
        if copies and not mailbox.read_only:
            await self._try("file", _file(mailbox, sorted(copies)))
        for upload in uploads:
            await self._try("upload", _upload(mailbox, upload.raw))
        for _ in waiting:
            self._waiting.popleft()

    def _flags(self, mailbox: Mailbox) -> list[str]:
        keyword = [self._keyword] if self._keyword and mailbox.takes_keywords else []
        return ["\\Seen", "\\Answered", *keyword]

    async def _try(self, what: str, doing: Awaitable[None]) -> None:
        try:
            await doing
        except ChannelUnavailable as exc:
            if not isinstance(exc.__cause__, ImapRefused):
                raise
            _log.warning("mailbox.housekeeping_refused", task=what, error=str(exc))


async def _file(mailbox: Mailbox, uids: list[int]) -> None:
    await mailbox.add_flags(uids, "\\Seen")
    await mailbox.move(uids, await mailbox.sent_folder())


async def _move(mailbox: Mailbox, uids: list[int], folder: str) -> None:
    if not await mailbox.move(uids, await mailbox.folder(folder)):
        _log.warning("mailbox.not_moved", why="the server can neither MOVE nor expunge single mails")


async def _upload(mailbox: Mailbox, raw: bytes) -> None:
    await mailbox.append(await mailbox.sent_folder(), raw)
