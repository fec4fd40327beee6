"""The implementation of `AttachmentStore`; the package's docstring says what it promises."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import structlog

from agent_core.confined_files import Identity, identity_of, open_below
from agent_core.messages import Attachment, InboundMessage
from channels.attachments.attachment_pictures import HEAD_BYTES, Picture, picture_in
from channels.attachments.attachment_storage import (
    FOLDER,
    AttachmentDamaged,
    AttachmentGone,
    AttachmentsFull,
    AttachmentsUnavailable,
    AttachmentTooLarge,
    Damaged,
    Storage,
    StorageUnreachable,
    StoredFile,
    check_path,
    disk_errors,
)
from channels.attachments.file_kinds import ending_of, media_type_of, safe_name
from channels.attachments.file_storage import BLOCK_BYTES, LocalFiles, Writing, blocks, from_handle
from channels.base import AttachmentRefused

_MEGABYTE = 1_000_000
_MAX_FILES = 500_000
"""There are never more: each counts as one part of so many at least. A disk gives small ones a block, too."""
_LIMIT_S = 45.0
_THREADS = 8
"""For a storage outside of the home, which may hang: twice as many at most hang there."""
_BYTES_PER_S = 200_000
_LIST_LIMIT_S = 600.0
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class AttachmentStore:
    """
    The attachments of one home folder, one instance per process; lazy.

    Args:
        max_file_bytes: The limit of each file.
        max_total_bytes: The limit of all.
        is_guest: Returns False for the owner's messages. Of what is left of one half, a file of anybody else
            takes at most a half, so that only the owner can fill it.
        storage: Default: below the home folder.
    """

    def __init__(
        self,
        home_root: Path,
        *,
        max_file_bytes: int = 25_000_000,
        max_total_bytes: int = 2_000_000_000,
        is_guest: Callable[[InboundMessage], bool] = lambda _: True,
        storage: Storage | None = None,
    ) -> None:
        self._home = home_root
        self._home_files = LocalFiles(home_root)
        self._storage: Storage = storage or self._home_files
        self.max_file_bytes = max_file_bytes
        """The limit for one file: a channel need not begin to fetch what is larger."""
        self._max_total_bytes = max_total_bytes
        self._is_guest = is_guest
        self._least_bytes = max_total_bytes // _MAX_FILES
        self._used_bytes: int | None = None
        self._getting_ready = anyio.Lock()
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._working: set[object] = set()
        """Calls to a storage outside of the home, those that hang for ever included."""
        self._blocked = ""
        self.on_blocked: Callable[[str], None] = lambda _: None
        """Is told why disk or storage take no files, once until they work again."""

    async def ready(self) -> None:
        """Count the stored files, at the first use. Raises `AttachmentsUnavailable`."""
        try:
            await self._prepare()
        except AttachmentsUnavailable as error:
            self._note_disk(error)
            raise

    async def _prepare(self) -> None:
        if self._blocked and self._storage.is_elsewhere:
            with disk_errors():
                await self._asked(self._storage.probe)
        if self._used_bytes is not None:
            return
        async with self._getting_ready:
            if self._used_bytes is None:
                with disk_errors():
                    await anyio.to_thread.run_sync(self._home_files.prepare)
                    if self._storage is not self._home_files:
                        await self._asked(self._storage.prepare)
                    files = await self._asked(lambda: list(self._storage.list_files()), _LIST_LIMIT_S)
                self._used_bytes = sum(max(file.size_bytes, self._least_bytes) for file in files)

    def state(self) -> dict[str, Any]:
        """Return for operators why messages with files wait; nothing if they do not."""
        return {"attachments": f"messages with files wait: {self._blocked}"} if self._blocked else {}

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
        Store a file durably.

        Args:
            name: The sender's name for it; any text.
            media_type: The sender's claim; the content decides where it can.
            chunks: The content, read no further than the limit.
            limit_bytes: A limit below `max_file_bytes`.
            message: Its message; None: one of the bot's own.

        Raises:
        AttachmentTooLarge, AttachmentsFull: It is not stored.
            AttachmentsUnavailable: The disk or the storage fails for now.
        """
        limit = self.max_file_bytes if limit_bytes is None else min(limit_bytes, self.max_file_bytes)
        await self.ready()
        writing = Writing(self._home_files.temporary / secrets.token_hex(16))
        try:
            if message is not None and self._is_guest(message):
                writing.most = await self._guest_bytes()
            await self._write_all(writing, chunks, limit)
            picture = picture_in(bytes(writing.head))
            stored_type = media_type_of(name, media_type, picture)
            ending = ending_of(name, picture)
            digest = writing.hash.hexdigest()
            path = f"{FOLDER}/{digest[:2]}/{digest}{ending}"
            limit_s = _LIMIT_S + writing.size / _BYTES_PER_S
            with disk_errors():
                is_new = await self._asked(partial(writing.finish, self._storage, path), limit_s)
        except BaseException as error:
            self._release(writing)
            self._note_disk(error)
            raise
        finally:
            writing.discard()
        self._note_disk(None)
        if not is_new:
            self._release(writing)
        return Attachment(
            name=safe_name(name, fallback=f"file{ending}"),
            media_type=stored_type,
            size_bytes=writing.size,
            path=path,
            sha256=digest,
        )

    def _note_disk(self, error: BaseException | None) -> None:
        """Note how a save ended: with an error of the disk, for which it waits, or well (None)."""
        is_disk = isinstance(error, AttachmentsUnavailable)
        if is_disk and not self._blocked:
            self.on_blocked(str(error))
        if is_disk or error is None:
            self._blocked = str(error or "")

    async def _guest_bytes(self) -> int:
        """Return the most bytes of a file that is not the owner's."""
        with disk_errors():
            disk = await anyio.to_thread.run_sync(shutil.disk_usage, self._home_files.temporary)
        return max(0, min(self._max_total_bytes // 2 - (self._used_bytes or 0), disk.free // 2) // 2)

    async def _write_all(self, writing: Writing, chunks: AsyncIterator[bytes] | bytes, limit: int) -> None:
        async with aclosing(blocks(chunks)) as pieces:
            async for block in pieces:
                self._claim(writing, len(block), limit)
                with disk_errors():
                    await anyio.to_thread.run_sync(writing.write, block)
        self._claim(writing, max(0, self._least_bytes - writing.size), self._max_total_bytes)

    async def keep_file(self, folder: Path, path: str, *, max_bytes: int) -> Attachment:
        """Keep a copy of a file below ``folder``; see `agent_core.ports.AttachmentPort.keep_file`."""
        limit = min(max_bytes, self.max_file_bytes)
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
        """Return the file's path in its folder, also after removal. Raises ValueError for a foreign path."""
        return self._home / check_path(attachment.path)

    async def read(self, attachment: Attachment, *, max_bytes: int, offset: int = 0) -> bytes:
        """Return a part of the content. Raises AttachmentGone, or OSError."""
        try:
            path, size = check_path(attachment.path), attachment.size_bytes
            read = partial(self._storage.read, path, size, offset=offset, max_bytes=max_bytes)
            return await self._asked(read)
        except (FileNotFoundError, ValueError) as error:
            raise AttachmentGone(f"{attachment.name} is no longer kept") from error
        except Damaged as error:
            raise AttachmentDamaged(f"{attachment.name} is damaged") from error

    async def chunks(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """The whole content in pieces. Raises like `read`."""
        piece = BLOCK_BYTES * (16 if self._storage.is_elsewhere else 1)
        for offset in range(0, attachment.size_bytes, piece):
            yield await self.read(attachment, offset=offset, max_bytes=piece)

    async def read_picture_header(self, attachment: Attachment) -> Picture | None:
        """Type and size of a picture, None if the file is not one. Raises like `read`."""
        return picture_in(await self.read(attachment, max_bytes=HEAD_BYTES))

    async def picture(
        self, attachment: Attachment, *, max_bytes: int, max_pixels: int, max_side: int
    ) -> tuple[str, bytes] | None:
        """Media type and content of a picture; see `agent_core.ports.AttachmentPort.picture`."""
        content = await self.read(attachment, max_bytes=max_bytes + 1)
        found = picture_in(content[:HEAD_BYTES])
        if found is None:
            return None
        if len(content) > max_bytes:
            raise ValueError("its file is too large")
        if max(found.width, found.height) > max_side or found.width * found.height > max_pixels:
            raise ValueError(f"it has {found.width} × {found.height} pixels, which is too large")
        return found.media_type, content

    # ── for the sweeper ──

    async def belongs_to(self, database: str) -> bool:
        """
        Return True if the storage belongs to the squidbot with this database (any distinguishing text).

        Files of another squidbot must not be judged by our messages. The home's own folder is always ours.
        """
        if not self._storage.is_elsewhere:
            return True
        wanted = hashlib.sha256(f"owner of attachments {database}".encode()).hexdigest()[:32]
        with disk_errors():
            return await self._asked(partial(self._storage.owner, wanted)) == wanted

    async def list_files(self) -> list[StoredFile]:
        """List all files, in no particular order."""
        with disk_errors():
            return await self._asked(lambda: list(self._storage.list_files()), _LIST_LIMIT_S)

    async def remove(self, files: Sequence[StoredFile]) -> int:
        """Remove files unless they were saved again after their listing; return the number removed."""
        removed = 0
        with disk_errors():
            for file in files:
                if await self._asked(partial(self._storage.remove, file)):
                    removed += 1
                    if self._used_bytes is not None:
                        self._used_bytes -= max(file.size_bytes, self._least_bytes)
        return removed

    # ── inside ──

    async def _asked(self, do: Callable[[], _T], limit_s: float = _LIMIT_S) -> _T:
        """Call the storage in a thread; one outside of the home with a deadline and threads of its own."""
        if not self._storage.is_elsewhere:
            return await anyio.to_thread.run_sync(do)

        def work() -> _T:
            self._working.add(call := object())
            try:
                return do()
            finally:
                self._working.discard(call)

        if len(self._working) >= 2 * _THREADS:
            raise StorageUnreachable(f"{self._storage.name} does not answer")
        try:
            with anyio.fail_after(limit_s):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError as error:
            raise StorageUnreachable(f"{self._storage.name} has not answered for {limit_s:.0f} s") from error

    def _private_but(self, folder: Path) -> frozenset[Identity]:
        """The home folder and what is in it, but ``folder``: no other path leads there."""
        with suppress(FileNotFoundError), os.scandir(self._home) as entries:
            inside = [entry.stat() for entry in entries if entry.is_dir(follow_symlinks=False)]
            private = frozenset(map(identity_of, [self._home.stat(), *inside]))
            # The workspace is one of them, by its own path.
            own = {identity_of(folder.stat())} if folder.is_relative_to(self._home) else set()
            return private - own
        return frozenset()

    def _claim(self, writing: Writing, more: int, limit: int) -> None:
        """Count a block before it is written, or refuse it."""
        if writing.claimed + more > limit:
            raise AttachmentTooLarge(f"it is larger than {_readable(limit)}", limit_bytes=limit)
        used = self._used_bytes or 0
        if used + more > self._max_total_bytes:
            _log.error("attachment.store_full", max_total_bytes=self._max_total_bytes)
            raise AttachmentsFull("there is no room for more files here", limit_bytes=self._max_total_bytes)
        is_guest = writing.most < math.inf
        if writing.claimed + more > writing.most or (is_guest and used + more > self._max_total_bytes // 2):
            _log.warning("attachment.share_full")
            raise AttachmentsFull("this person's space for files here is used up")
        self._used_bytes = used + more
        writing.claimed += more

    def _release(self, writing: Writing) -> None:
        self._used_bytes = max(0, (self._used_bytes or 0) - writing.claimed)
        writing.claimed = 0


def _readable(size: int) -> str:
    return f"{size / _MEGABYTE:.3g} MB" if size >= _MEGABYTE else f"{size / 1000:.3g} kB"
