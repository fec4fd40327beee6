"""`AttachmentStore`; what it promises is told in the package."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import anyio
import anyio.to_thread
import structlog

from agent_core.confined import READ, Identity, identity_of, open_below
from agent_core.messages import Attachment, InboundMessage
from channels.attachments.disk import BLOCK_BYTES, Writing, blocks, from_handle
from channels.attachments.errors import (
    AttachmentGone,
    AttachmentRefused,
    AttachmentsFull,
    AttachmentsUnavailable,
    AttachmentTooLarge,
    disk_errors,
)
from channels.attachments.kinds import ending_of, media_type_of
from channels.attachments.names import safe_name
from channels.attachments.pictures import HEAD_BYTES, Picture, picture_in
from channels.attachments.shares import Shares

__all__ = ["FOLDER", "AttachmentStore", "StoredFile"]

FOLDER = "attachments"
_TEMPORARY = "tmp"
_PATH = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.[a-z0-9]{{1,8}}")
_MEGABYTE = 1_000_000
_MOST_FILES = 500_000
"""There are never more: each counts as one part of so many at least. A disk gives small ones a block, too."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of the store: its `Attachment.path`, when it was last saved (seconds since 1970), its size."""

    path: str
    saved_at: float
    size_bytes: int


class AttachmentStore:
    """
    The attachments of one home folder. One instance per process; any number of saves at a time.

    Nothing is touched before the first use.

    Args:
        max_file_bytes: No file is larger, whatever limit a caller names.
        max_total_bytes: What all files together may take.
        share_of: On whose share the file of a message counts (see `channels.attachments.shares`); None: on
            nobody's, it is the owner's.
    """

    def __init__(
        self,
        home_root: Path,
        *,
        max_file_bytes: int = 25_000_000,
        max_total_bytes: int = 2_000_000_000,
        share_of: Callable[[InboundMessage], str | None] = lambda message: message.sender.address,
    ) -> None:
        self._home = home_root
        self._folder = home_root / FOLDER
        self._max_file_bytes = max_file_bytes
        self._max_total_bytes = max_total_bytes
        self._share_of = share_of
        self._least_bytes = max_total_bytes // _MOST_FILES
        self._shares = Shares(self._folder, max_total_bytes, self._least_bytes)
        self._used_bytes: int | None = None
        self._getting_ready = anyio.Lock()

    @property
    def max_file_bytes(self) -> int:
        """The limit for one file: a channel need not begin to fetch what is larger."""
        return self._max_file_bytes

    # ── saving ──

    async def save(
        self,
        name: str,
        media_type: str,
        chunks: AsyncIterator[bytes] | bytes,
        *,
        limit_bytes: int | None = None,
        message: InboundMessage | None = None,
    ) -> Attachment:
        """
        Keep a file; when this returns it would survive a power cut.

        Args:
            name: What the sender calls it; anything.
            media_type: What the sender says it is; anything. The content decides where it can be told.
            chunks: The content, in pieces of any size. It is read no further than the limit.
            limit_bytes: A limit below `max_file_bytes`, if this file has one of its own.
            message: What it came with; None: it is one of the bot's own.

        Raises:
            AttachmentTooLarge, AttachmentsFull: It is not kept.
            AttachmentsUnavailable: The disk does not take it now.
        """
        limit = self._max_file_bytes if limit_bytes is None else min(limit_bytes, self._max_file_bytes)
        await self._ready()
        writing = Writing(self._folder / _TEMPORARY / secrets.token_hex(16))
        writing.person = self._share_of(message) if message is not None else None
        if writing.person is not None:
            with disk_errors():
                disk = await anyio.to_thread.run_sync(shutil.disk_usage, self._folder)
            writing.disk_free = disk.free
        marked = False
        try:
            async with aclosing(blocks(chunks)) as pieces:
                async for block in pieces:
                    self._claim(writing, len(block), limit)
                    with disk_errors():
                        await anyio.to_thread.run_sync(writing.write, block)
            self._claim(writing, max(0, self._least_bytes - writing.size), self._max_total_bytes)
            picture = picture_in(bytes(writing.head))
            stored_type = media_type_of(name, media_type, picture)
            ending = ending_of(name, picture)
            digest = writing.hash.hexdigest()
            path = f"{FOLDER}/{digest[:2]}/{digest}{ending}"
            with disk_errors():
                if writing.person is not None:  # first the mark: a crash leaves no file without one
                    marked = await anyio.to_thread.run_sync(
                        self._shares.add, writing.person, PurePosixPath(path).name
                    )
                is_new = await anyio.to_thread.run_sync(writing.finish, self._home / path)
        except BaseException:
            self._release(writing)
            raise
        finally:
            writing.discard()
        if not is_new:
            self._release(writing, of_share=not marked)
        return Attachment(
            name=safe_name(name, fallback=f"file{ending}"),
            media_type=stored_type,
            size_bytes=writing.size,
            path=path,
            sha256=digest,
        )

    async def keep_file(self, folder: Path, path: str, *, max_bytes: int) -> Attachment:
        """Keep a copy of a file below ``folder``; see `agent_core.ports.AttachmentPort.keep_file`."""
        limit = min(max_bytes, self._max_file_bytes)
        handle = await anyio.to_thread.run_sync(
            lambda: open_below(folder, path, forbidden=self._private_but(folder))
        )
        try:
            size = os.fstat(handle).st_size
            if size > limit:
                raise ValueError(f"it has {size} bytes, and {limit} are allowed")
            name = PurePosixPath(path).name
            return await self.save(name, "", from_handle(handle), limit_bytes=limit)
        except AttachmentRefused as error:  # it grew meanwhile, or there is no more room
            raise ValueError(error.public) from error
        except AttachmentsUnavailable as error:
            raise OSError(str(error)) from error
        finally:
            os.close(handle)

    # ── reading ──

    def path(self, attachment: Attachment) -> Path:
        """
        Where the file is, or was: never outside of the folder.

        Raises:
            ValueError: ``attachment.path`` is none of ours.
        """
        if not _PATH.fullmatch(attachment.path):
            raise ValueError(f"not the path of an attachment: {attachment.path!r}")
        return self._home / attachment.path

    async def read(self, attachment: Attachment, *, max_bytes: int, offset: int = 0) -> bytes:
        """
        Up to ``max_bytes`` of the content from ``offset`` on.

        Raises:
            AttachmentGone: The file is not there any more.
            OSError: The disk does not give it now.
        """

        def read() -> bytes:
            with self._opened(attachment) as handle:
                return os.pread(handle, max(0, max_bytes), max(0, offset))

        return await anyio.to_thread.run_sync(read)

    async def chunks(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """The whole content in pieces. Raises like `read`."""
        for offset in range(0, attachment.size_bytes, BLOCK_BYTES):
            yield await self.read(attachment, max_bytes=BLOCK_BYTES, offset=offset)

    async def look_at(self, attachment: Attachment) -> Picture | None:
        """Which picture it is and how large, None if it is none. Raises like `read`."""
        return picture_in(await self.read(attachment, max_bytes=HEAD_BYTES))

    async def picture(
        self, attachment: Attachment, *, max_bytes: int, max_pixels: int
    ) -> tuple[str, bytes] | None:
        """Media type and content of a picture; see `agent_core.ports.AttachmentPort.picture`."""
        content = await self.read(attachment, max_bytes=max_bytes + 1)
        found = picture_in(content[:HEAD_BYTES]) if len(content) <= max_bytes else None
        if found is None or found.width * found.height > max_pixels:
            return None
        return found.media_type, content

    # ── for the sweeper ──

    async def stored(self) -> list[StoredFile]:
        """All files, in no particular order."""
        with disk_errors():
            return await anyio.to_thread.run_sync(lambda: list(self._walk()))

    async def remove(self, file: StoredFile) -> bool:
        """Remove a file, unless it was saved again since it was listed. Whether it was removed."""

        def remove() -> list[str] | None:
            path = self._home / file.path
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime == file.saved_at:
                    path.unlink()
                    return self._shares.discard(path.name)
            return None

        with disk_errors():
            whose = await anyio.to_thread.run_sync(remove)
        if whose is not None and self._used_bytes is not None:
            counted = max(file.size_bytes, self._least_bytes)
            self._used_bytes -= counted
            self._shares.give_back(whose, counted)
        return whose is not None

    # ── inside ──

    async def _ready(self) -> None:
        async with self._getting_ready:
            if self._used_bytes is None:
                with disk_errors():
                    self._used_bytes = await anyio.to_thread.run_sync(self._prepare)

    def _prepare(self) -> int:
        """Make the folders, remove what a crash has left half written, and count what is there."""
        for folder in (self._folder, self._folder / _TEMPORARY):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in (self._folder / _TEMPORARY).iterdir():
            left.unlink()
            _log.info("attachment.leftover_removed")
        self._shares.load()
        return sum(max(file.size_bytes, self._least_bytes) for file in self._walk())

    def _private_but(self, folder: Path) -> frozenset[Identity]:
        """The home folder and what is in it, but ``folder``: no other path leads there."""
        with suppress(FileNotFoundError), os.scandir(self._home) as entries:
            inside = [entry.stat() for entry in entries if entry.is_dir(follow_symlinks=False)]
            private = frozenset(map(identity_of, [self._home.stat(), *inside]))
            # The workspace is one of them, by its own path.
            own = {identity_of(folder.stat())} if folder.is_relative_to(self._home) else set()
            return private - own
        return frozenset()

    def _walk(self) -> Iterator[StoredFile]:
        if not self._folder.is_dir():
            return
        for folder in self._folder.iterdir():
            if len(folder.name) != 2 or not folder.is_dir():
                continue
            for file in folder.iterdir():
                path = f"{FOLDER}/{folder.name}/{file.name}"
                with suppress(FileNotFoundError):
                    found = file.lstat()
                    if stat.S_ISREG(found.st_mode) and _PATH.fullmatch(path):
                        yield StoredFile(path, found.st_mtime, found.st_size)

    def _claim(self, writing: Writing, more: int, limit: int) -> None:
        """Count a block before it is written, or refuse it."""
        if writing.claimed + more > limit:
            raise AttachmentTooLarge(f"it is larger than {_readable(limit)}", limit_bytes=limit)
        used = self._used_bytes or 0
        if used + more > self._max_total_bytes:
            _log.error("attachment.store_full", max_total_bytes=self._max_total_bytes)
            raise AttachmentsFull("there is no room for more files here", limit_bytes=self._max_total_bytes)
        if writing.person is not None:
            if more > self._shares.room(writing.person, writing.disk_free - writing.claimed):
                _log.warning("attachment.share_full")
                raise AttachmentsFull("the room that one person may fill with files here is used up")
            self._shares.claim(writing.person, more)
        self._used_bytes = used + more
        writing.claimed += more

    def _release(self, writing: Writing, *, of_share: bool = True) -> None:
        self._used_bytes = max(0, (self._used_bytes or 0) - writing.claimed)
        if writing.person is not None and of_share:
            self._shares.claim(writing.person, -writing.claimed)
        writing.claimed = 0

    @contextmanager
    def _opened(self, attachment: Attachment) -> Iterator[int]:
        try:
            handle = os.open(self.path(attachment), READ)
        except (FileNotFoundError, ValueError) as error:
            raise AttachmentGone(f"{attachment.name} is not kept any more") from error
        try:
            if os.fstat(handle).st_size != attachment.size_bytes:
                raise AttachmentGone(f"{attachment.name} is damaged")
            yield handle
        finally:
            os.close(handle)


def _readable(size: int) -> str:
    return f"{size / _MEGABYTE:.3g} MB" if size >= _MEGABYTE else f"{size / 1000:.3g} kB"
