"""The implementation of `AttachmentStore`; the package's docstring says what it promises."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
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
    AttachmentsUnreachable,
    AttachmentTooLarge,
    Damaged,
    Storage,
    StorageUnreachable,
    StoredFile,
    check_path,
    disk_errors,
)
from channels.attachments.file_kinds import ending_of, media_type_of, safe_name
from channels.attachments.file_storage import BLOCK_BYTES, TEMPORARY, LocalFiles, Writing, blocks, from_handle
from channels.base import AttachmentRefused

_MEGABYTE = 1_000_000
_MAX_FILES = 500_000
"""There are never more: each counts as one part of so many at least. A disk gives small ones a block, too."""
_REMOTE_BLOCK_BYTES = 4 * 1024 * 1024
_REMOTE_LIMIT_S = 45.0
_PATIENCE_S = 5.0
"""A shared storage counts as away when it has not answered for so long; it is waited for nevertheless."""
_REMOTE_BYTES_PER_S = 200_000
_LIST_LIMIT_S = 600.0
_COUNT_EVERY_S = 600.0
_COUNT_SHARE = 100
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class AttachmentStore:
    """
    The attachments of one home folder, one instance per process; lazy.

    Args:
        max_file_bytes: The limit of each file.
        max_total_bytes: The limit of all.
        share_of: Returns whose share a message's file counts on; None: the owner's, unlimited.
        storage: Default: below the home folder.
    """

    def __init__(
        self,
        home_root: Path,
        *,
        max_file_bytes: int = 25_000_000,
        max_total_bytes: int = 2_000_000_000,
        share_of: Callable[[InboundMessage], str | None] = lambda message: message.sender.address,
        storage: Storage | None = None,
    ) -> None:
        self._home = home_root
        self._spool = home_root / FOLDER / TEMPORARY
        self._storage = storage or LocalFiles(home_root)
        self.max_file_bytes = max_file_bytes
        """The limit for one file: a channel need not begin to fetch what is larger."""
        self._max_total_bytes = max_total_bytes
        self._share_of = share_of
        self._least_bytes = max_total_bytes // _MAX_FILES
        self._shares = Shares(max_total_bytes)
        self._used_bytes: int | None = None
        self._finished: list[tuple[str | None, int, int]] | None = None
        """What was saved while the storage is being listed: whose, how much, and how much of their share."""
        self._in_flight: set[Writing] = set()
        self._getting_ready = anyio.Lock()
        self._threads: anyio.CapacityLimiter | None = None
        """Of a shared storage: what hangs there holds up nobody else's files."""
        self._away: str | None = None
        self._was_asked = self._is_told = False
        self._gone = anyio.Event()
        self._blocked = ""
        self.on_blocked: Callable[[str], None] = lambda _: None
        """Is told why disk or storage take no files, once until they work again."""

    @property
    def is_shared(self) -> bool:
        """Return True if the storage is on another machine, so that requests may take long."""
        return self._storage.is_shared

    @property
    def is_unreachable(self) -> bool:
        """Return True if a shared storage did not respond to the last request."""
        return self._away is not None

    async def wait_unavailable(self) -> None:
        """Wait until a shared storage is known to be away."""
        await self._gone.wait()

    async def ready(self) -> None:
        """Count the stored files and test an absent storage. Raises `AttachmentsUnavailable`."""
        await self._ready()
        if self._away is not None:
            with disk_errors():
                await self._asked(self._storage.prepare)

    async def count_until_cancelled(self) -> None:
        """Count regularly what other processes add, until cancelled, so that no save waits for a listing."""
        pause_s = 0.0
        while self._storage.is_shared:
            await anyio.sleep(pause_s)
            began = time.monotonic()
            with suppress(AttachmentsUnavailable), disk_errors():
                if self._used_bytes is None:
                    await self._ready()
                else:
                    await self._count()
            pause_s = max(_COUNT_EVERY_S, _COUNT_SHARE * (time.monotonic() - began))

    def state(self) -> dict[str, Any]:
        """Return for operators why messages with files wait, if so, and the name of a shared storage."""
        if self._blocked:
            waits = f"messages with files wait: {self._blocked}"
            return {"attachments": {"store": self._storage.name, "away": waits, "asked": True}}
        if not self._storage.is_shared:
            return {}
        return {"attachments": {"store": self._storage.name, "away": self._away, "asked": self._was_asked}}

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
            AttachmentsUnavailable: The disk or (`AttachmentsUnreachable`) the storage fails for now.
        """
        limit = self.max_file_bytes if limit_bytes is None else min(limit_bytes, self.max_file_bytes)
        await self._ready()
        writing = Writing(self._spool / secrets.token_hex(16))
        self._in_flight.add(writing)
        person = self._share_of(message) if message is not None else None
        try:
            if person is not None:
                await self._count_for(writing, person)
            await self._write_all(writing, chunks, limit)
            picture = picture_in(bytes(writing.head))
            stored_type = media_type_of(name, media_type, picture)
            ending = ending_of(name, picture)
            digest = writing.hash.hexdigest()
            path = f"{FOLDER}/{digest[:2]}/{digest}{ending}"
            marked, is_new = await self._mark_and_store(writing, path)
        except BaseException as error:
            self._release(writing)
            self._note_disk(error)
            raise
        finally:
            writing.discard()
            self._in_flight.discard(writing)
        self._note_disk(None)
        of_share = writing.claimed if is_new or marked else 0
        if not is_new:
            self._release(writing, of_share=not marked)
        if self._finished is not None:
            self._finished.append((writing.person, writing.claimed, of_share))
        return Attachment(
            name=safe_name(name, fallback=f"file{ending}"),
            media_type=stored_type,
            size_bytes=writing.size,
            path=path,
            sha256=digest,
        )

    def _note_disk(self, error: BaseException | None) -> None:
        """Note how a save ended: with an error of the disk, for which it waits, or well (None)."""
        is_disk = isinstance(error, AttachmentsUnavailable) and not isinstance(error, AttachmentsUnreachable)
        if is_disk and not self._blocked:
            self.on_blocked(str(error))
        if is_disk or error is None:
            self._blocked = str(error or "")

    async def _count_for(self, writing: Writing, person: str) -> None:
        """Count a file for a person's share of the free disk."""
        writing.person = digest_of(person)
        with disk_errors():
            disk = await anyio.to_thread.run_sync(shutil.disk_usage, self._spool)
        writing.disk_free = disk.free

    async def _write_all(self, writing: Writing, chunks: AsyncIterator[bytes] | bytes, limit: int) -> None:
        async with aclosing(blocks(chunks)) as pieces:
            async for block in pieces:
                self._claim(writing, len(block), limit)
                with disk_errors():
                    await anyio.to_thread.run_sync(writing.write, block)
        self._claim(writing, max(0, self._least_bytes - writing.size), self._max_total_bytes)

    async def _mark_and_store(self, writing: Writing, path: str) -> tuple[bool, bool]:
        """First the mark of whose it is: a crash leaves no file without one. Return whether each is new."""
        marked = False
        with disk_errors():
            if writing.person is not None:
                mark = partial(self._storage.mark, writing.person, PurePosixPath(path).name)
                marked = await self._asked(mark)
            limit_s = _REMOTE_LIMIT_S + writing.size / _REMOTE_BYTES_PER_S
            return marked, await self._asked(partial(writing.finish, self._storage, path), limit_s)

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
        """Return a part of the content, verified if shared. Raises AttachmentGone, or OSError."""
        if not self._storage.is_shared:
            return await self._part(attachment, offset=offset, max_bytes=max_bytes)
        first, end, here = max(0, offset), max(0, offset) + max(0, max_bytes), 0
        found = bytearray()
        async with aclosing(self._whole(attachment)) as pieces:
            async for piece in pieces:
                found += piece[max(0, first - here) : max(0, end - here)]
                here += len(piece)
        return bytes(found)

    async def chunks(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """The whole content in pieces, the last one only if all were undamaged. Raises like `read`."""
        if self._storage.is_shared:
            async with aclosing(self._whole(attachment)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        for offset in range(0, attachment.size_bytes, BLOCK_BYTES):
            yield await self._part(attachment, offset=offset, max_bytes=BLOCK_BYTES)

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
        if not self._storage.is_shared:
            return True
        wanted = digest_of(f"owner of attachments {database}")
        with disk_errors():
            return await self._asked(partial(self._storage.owner, wanted)) == wanted

    async def list_files(self) -> list[StoredFile]:
        """List all files, in no particular order."""
        with disk_errors():
            return await self._asked(lambda: list(self._storage.list_files()), _LIST_LIMIT_S)

    async def remove(self, files: Sequence[StoredFile]) -> int:
        """Remove files unless they were saved again after their listing; return the number removed."""
        if not files:
            return 0
        names = {PurePosixPath(file.path).name: list[str]() for file in files}
        removed = 0
        with disk_errors():
            for whose, name, _ in await self._asked(lambda: list(self._storage.marks()), _LIST_LIMIT_S):
                if name in names:
                    names[name].append(whose)
            for file in files:
                name = PurePosixPath(file.path).name
                if await self._asked(partial(self._storage.remove, file)):
                    removed += 1
                    await self._uncount(file, name, names[name])
        return removed

    async def _uncount(self, file: StoredFile, name: str, whose: Sequence[str]) -> None:
        counted = max(file.size_bytes, self._least_bytes)
        if self._used_bytes is not None:
            self._used_bytes -= counted
        for one in whose:
            await self._asked(partial(self._storage.unmark, one, name))
            if self._used_bytes is not None:
                self._shares.claim(one, -counted)

    # ── inside ──

    async def _asked(self, do: Callable[[], _T], limit_s: float = _REMOTE_LIMIT_S) -> _T:
        """Call the storage in a thread; a shared one with a deadline and threads of its own."""
        if not self._storage.is_shared:
            return await anyio.to_thread.run_sync(do)
        self._threads = self._threads or anyio.CapacityLimiter(8)
        why: str | None = None
        patience_s = _PATIENCE_S + max(0.0, limit_s - _REMOTE_LIMIT_S)
        slow: asyncio.TimerHandle | None = None
        try:
            with anyio.fail_after(limit_s):
                async with self._threads:
                    why_slow = f"{self._storage.name} has not answered for {patience_s:.0f} s"
                    slow = asyncio.get_running_loop().call_later(patience_s, self._note_storage, why_slow)
                    return await self._in_thread(do)
        except (FileNotFoundError, Damaged):
            raise
        except StorageUnreachable as error:
            why = error.strerror
            raise
        except TimeoutError as error:
            why = f"{self._storage.name} has not answered for {limit_s:.0f} s"
            raise StorageUnreachable(why) from error
        except OSError as error:
            why = f"{self._storage.name} cannot be used: {error.strerror or type(error).__name__}"
            raise StorageUnreachable(why) from error
        except anyio.get_cancelled_exc_class():
            why = self._away  # nothing was learned
            raise
        finally:
            if slow is not None:
                slow.cancel()
            self._note_storage(why)
            if why is None:
                self._is_told = False
            elif not self._is_told:
                self._is_told = True
                self.on_blocked(why)

    async def _in_thread(self, do: Callable[[], _T]) -> _T:
        return await anyio.to_thread.run_sync(do, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))

    def _note_storage(self, away: str | None) -> None:
        if (away is None) != (self._away is None):
            if away is not None:
                _log.warning("attachment.storage_away", reason=away)
                self._gone.set()
            else:
                _log.info("attachment.storage_back")
                self._gone = anyio.Event()
        self._away = away
        self._was_asked = True

    async def _part(self, attachment: Attachment, *, offset: int, max_bytes: int) -> bytes:
        try:
            path, size = check_path(attachment.path), attachment.size_bytes
            read = partial(self._storage.read, path, size, offset=offset, max_bytes=max_bytes)
            return await self._asked(read)
        except (FileNotFoundError, ValueError) as error:
            raise AttachmentGone(f"{attachment.name} is no longer kept") from error
        except Damaged as error:
            raise AttachmentDamaged(f"{attachment.name} is damaged") from error

    async def _whole(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the content, the last piece only if the hash fits; a bad start is fetched once more."""
        size = attachment.size_bytes
        last = max(0, size - 1) // _REMOTE_BLOCK_BYTES * _REMOTE_BLOCK_BYTES
        for tries_left in reversed(range(2)):
            digest = hashlib.sha256()
            for offset in range(0, last + 1, _REMOTE_BLOCK_BYTES):
                piece = await self._part(attachment, offset=offset, max_bytes=_REMOTE_BLOCK_BYTES)
                digest.update(piece)
                if offset < last:
                    yield piece
                elif digest.hexdigest() == PurePosixPath(attachment.path).stem:
                    yield piece
                    return
            if last or not tries_left:
                break
        _log.error("attachment.damaged", path=attachment.path)
        raise AttachmentDamaged(f"{attachment.name} is damaged")

    async def _ready(self) -> None:
        """Count what is there, at the first use."""
        if self._used_bytes is not None:
            return
        async with self._getting_ready:
            if self._used_bytes is None:
                with disk_errors():
                    await anyio.to_thread.run_sync(self._make_spool)
                    await self._asked(self._storage.prepare)  # one that hangs is known as such soon
                    await self._count()

    async def _count(self) -> None:
        finished: list[tuple[str | None, int, int]] = []
        self._finished = finished
        try:
            used, shares = await self._asked(self._counted, _LIST_LIMIT_S)
        finally:
            self._finished = None
        meanwhile = [(writing.person, writing.claimed, writing.claimed) for writing in self._in_flight]
        meanwhile += finished
        self._used_bytes = used + sum(size for _, size, _ in meanwhile)
        self._shares.load(shares)
        for person, _, of_share in meanwhile:
            if person is not None:
                self._shares.claim(person, of_share)

    def _make_spool(self) -> None:
        """Make the folder for what is being written, and remove what a crash has left there."""
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._spool.iterdir():
            left.unlink()
            _log.info("attachment.leftover_removed")

    def _counted(self) -> tuple[int, list[tuple[str, int]]]:
        """Return the total bytes and each person's; marks of missing files are removed."""
        marks = list(self._storage.marks())
        marked = {name for _, name, _ in marks}
        total, sizes = 0, dict[str, int]()
        for file in self._storage.list_files():
            size = max(file.size_bytes, self._least_bytes)
            total += size
            if (name := PurePosixPath(file.path).name) in marked:
                sizes[name] = size
        shares = []
        for whose, name, at in marks:
            if name in sizes:
                shares.append((whose, sizes[name]))
            elif not self._storage.is_shared or time.time() - at > 86_400.0:
                self._storage.unmark(whose, name)
        return total, shares

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
        if writing.person is not None:
            if more > self._shares.free_bytes(writing.person, writing.disk_free - writing.claimed):
                _log.warning("attachment.share_full")
                raise AttachmentsFull("this person's space for files here is used up")
            self._shares.claim(writing.person, more)
        self._used_bytes = used + more
        writing.claimed += more

    def _release(self, writing: Writing, *, of_share: bool = True) -> None:
        self._used_bytes = max(0, (self._used_bytes or 0) - writing.claimed)
        if writing.person is not None and of_share:
            self._shares.claim(writing.person, -writing.claimed)
        writing.claimed = 0


def _readable(size: int) -> str:
    return f"{size / _MEGABYTE:.3g} MB" if size >= _MEGABYTE else f"{size / 1000:.3g} kB"


class Shares:
    """
    The use of the storage by each person, of ``max_total_bytes`` in all, so that only the owner can fill it.

    Everybody but the owner shares one half of what all files may take, and of what is free on the disk. A
    person may fill as much as is free after them: the first one a half, a second one a half of the rest. A
    file that two people have sent counts for both. Marks (`Storage.mark`) survive restarts, without names.
    """

    def __init__(self, max_total_bytes: int) -> None:
        self._guests_bytes = max_total_bytes // 2
        self._used: dict[str, int] = {}

    def load(self, sizes: Iterable[tuple[str, int]]) -> None:
        """Count the marked files by person and size."""
        self._used.clear()
        for whose, size in sizes:
            self._used[whose] = self._used.get(whose, 0) + size

    def free_bytes(self, whose: str, disk_free_bytes: int) -> int:
        """Return the bytes that this person may still store."""
        free = min(self._guests_bytes - sum(self._used.values()), disk_free_bytes // 2)
        return max(0, (free - self._used.get(whose, 0)) // 2)

    def claim(self, whose: str, size: int) -> None:
        """Count bytes for a person; negative ones are given back."""
        self._used[whose] = max(0, self._used.get(whose, 0) + size)


def digest_of(person: str) -> str:
    """The name of a person in a mark."""
    return hashlib.sha256(person.encode("utf-8", "replace")).hexdigest()[:32]
