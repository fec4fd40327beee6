"""
Attachments as files: below the home folder, or in a folder elsewhere, which another machine can mount as
well. Content appears by an atomic rename; one process of a home works, so nobody else writes. The folder
``attachments`` elsewhere is never created: if it is missing, nothing is mounted.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import secrets
import stat
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

import anyio.to_thread
import structlog

from agent_core.confined_files import READ
from agent_core.files import sync, write_all
from channels.attachments.attachment_pictures import HEAD_BYTES
from channels.attachments.attachment_storage import (
    FOLDER,
    PATH,
    Damaged,
    Storage,
    StorageUnreachable,
    StoredFile,
    check_path,
)

TEMPORARY = "tmp"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_log = structlog.get_logger(__name__)


class LocalFiles:
    """A storage of files below ``root/attachments``; one ``elsewhere`` must be there. Calls block."""

    def __init__(self, root: Path, *, elsewhere: bool = False) -> None:
        self._root = root
        self._folder = root / FOLDER
        self.temporary = self._folder / TEMPORARY
        """Where files are written before they have a name."""
        self.is_elsewhere = elsewhere
        self._lock = threading.Lock()
        self.name = f"the folder {self._folder}"

    def prepare(self) -> None:
        """Make the folders, and remove what a crash has left half-written."""
        self._check_mount()
        for folder in (self._folder, self.temporary):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.temporary.iterdir():
            left.unlink(missing_ok=True)
            _log.info("attachment.leftover_removed")

    def save(self, handle: int, temporary: Path, path: str, size: int) -> bool:
        """Store a content durably from a file that may be moved; False if it existed (now as new)."""
        final = self._root / check_path(path)
        self._check_mount()
        if not self.is_elsewhere:
            os.fsync(handle)
        final.parent.mkdir(mode=0o700, exist_ok=True)
        with self._lock:
            with suppress(FileNotFoundError):
                found = final.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_size == size:
                    os.utime(final)
                    return False
            (self._copied(handle) if self.is_elsewhere else temporary).replace(final)
        for folder in (final.parent, self._folder):
            sync(folder)
        return True

    def read(self, path: str, size: int, *, offset: int, max_bytes: int) -> bytes:
        """Read up to ``max_bytes`` from ``offset``. Raises FileNotFoundError, or Damaged (other size)."""
        try:
            handle = os.open(self._root / check_path(path), READ)
        except FileNotFoundError:
            self._check_mount()
            raise
        try:
            if os.fstat(handle).st_size != size:
                raise Damaged(path)
            return os.pread(handle, max(0, max_bytes), max(0, offset))
        finally:
            os.close(handle)

    def find(self, path: str) -> StoredFile | None:
        """Look a content up."""
        try:
            found = (self._root / check_path(path)).lstat()
        except FileNotFoundError:
            self._check_mount()
            return None
        return StoredFile(path, found.st_mtime, found.st_size) if stat.S_ISREG(found.st_mode) else None

    def list_files(self) -> Iterator[StoredFile]:
        """List all contents, in no particular order."""
        if not self._folder.is_dir():
            self._check_mount()
            return
        for folder in self._folder.iterdir():
            if len(folder.name) != 2 or not folder.is_dir():
                continue
            for file in folder.iterdir():
                path = f"{FOLDER}/{folder.name}/{file.name}"
                with suppress(FileNotFoundError):
                    found = file.lstat()
                    if stat.S_ISREG(found.st_mode) and PATH.fullmatch(path):
                        yield StoredFile(path, found.st_mtime, found.st_size)

    def remove(self, file: StoredFile) -> bool:
        """Remove a content unless it was saved again after it was listed."""
        final = self._root / check_path(file.path)
        try:
            with self._lock:
                if final.lstat().st_mtime != file.saved_at:
                    return False
                final.unlink()
        except FileNotFoundError:
            return False
        return True

    def erase(self, path: str) -> bool:
        """Remove a content, whenever it was saved. Returns whether it existed."""
        try:
            (self._root / check_path(path)).unlink()
        except FileNotFoundError:
            self._check_mount()
            return False
        return True

    def owner(self, wanted: str) -> str:
        """Return the squidbot that the storage belongs to: the first that asked."""
        self._check_mount()
        final, made = self._folder / "owner", self.temporary / secrets.token_hex(16)
        if not final.exists():
            self.temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.write_text(wanted, encoding="ascii")
            with suppress(FileExistsError):
                os.link(made, final)
            made.unlink()
        return final.read_text(encoding="ascii", errors="replace")

    def probe(self) -> None:
        """Write, read and remove a file."""
        self._check_mount()
        self.temporary.mkdir(mode=0o700, exist_ok=True)
        wanted = secrets.token_bytes(32)
        file, final = self.temporary / secrets.token_hex(16), self.temporary / secrets.token_hex(16)
        try:
            handle = os.open(file, _NEW, 0o600)
            try:
                os.write(handle, wanted)
                os.fsync(handle)
            finally:
                os.close(handle)
            file.rename(final)
            sync(self.temporary)
            if final.read_bytes() != wanted:
                raise StorageUnreachable(f"{self.name} returns something other than what was written")
        finally:
            for left in (file, final):
                left.unlink(missing_ok=True)

    def _copied(self, handle: int) -> Path:
        """A durable copy beside the files, on their file system."""
        self.temporary.mkdir(mode=0o700, exist_ok=True)
        copy, offset = self.temporary / secrets.token_hex(16), 0
        with open(os.open(copy, _NEW, 0o600), "wb") as out:  # noqa: PTH123 - it has a handle
            while block := os.pread(handle, BLOCK_BYTES, offset):
                out.write(block)
                offset += len(block)
            out.flush()
            os.fsync(out.fileno())
        return copy

    def _check_mount(self) -> None:
        if self.is_elsewhere and not self._folder.is_dir():
            raise StorageUnreachable(
                f"the folder {self._folder} does not exist: is it mounted? To create it: mkdir -m 700 "
                f"{self._folder}"
            )


def read_pieces(storage: Storage, path: str, size: int) -> Iterator[bytes]:
    """Yield a content, verified only after the last piece. Raises FileNotFoundError, Damaged."""
    digest = hashlib.sha256()
    offset = 0
    while offset < size or offset == 0:
        piece = storage.read(path, size, offset=offset, max_bytes=16 * BLOCK_BYTES)
        digest.update(piece)
        yield piece
        offset += 16 * BLOCK_BYTES
    if digest.hexdigest() != PurePosixPath(path).stem:
        raise Damaged(path)


BLOCK_BYTES = 256 * 1024


class Writing:
    """
    One file being written; blocks.

    ``head`` is its beginning, ``claimed`` the bytes counted, of at most ``most``.
    """

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self._handle: int | None = None
        self._closed = False
        self._closing = threading.Lock()
        self.hash = hashlib.sha256()
        self.head = bytearray()
        self.size = 0
        self.claimed = 0
        self.most: float = math.inf

    def write(self, block: bytes) -> None:
        """Append a block."""
        write_all(self._open(), block)
        self.hash.update(block)
        self.head += block[: HEAD_BYTES - len(self.head)]
        self.size += len(block)

    def finish(self, storage: Storage, path: str) -> bool:
        """Put it into the storage, durably. False: the content was there already."""
        with self._closing:
            handle = os.dup(self._open())
        try:
            return storage.save(handle, self._temporary, path, self.size)
        finally:
            os.close(handle)

    def discard(self) -> None:
        """Close the file and remove it if it has no name yet. Two quick calls that need no thread."""
        with self._closing:
            self._closed = True
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None
                with suppress(OSError):
                    self._temporary.unlink()

    def _open(self) -> int:
        if self._closed:
            raise FileNotFoundError(errno.ENOENT, "nobody is waiting for it any more")
        if self._handle is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(self._temporary, flags, 0o600)
        return self._handle


async def blocks(chunks: AsyncIterator[bytes] | bytes) -> AsyncGenerator[bytes, None]:
    """The same content in pieces that are large enough for a call to a worker thread."""
    if isinstance(chunks, bytes):
        for start in range(0, len(chunks), BLOCK_BYTES):
            yield chunks[start : start + BLOCK_BYTES]
        return
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        if len(waiting) >= BLOCK_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


async def from_handle(handle: int) -> AsyncIterator[bytes]:
    """The content of an open file, in blocks."""
    offset = 0
    while block := await anyio.to_thread.run_sync(os.pread, handle, BLOCK_BYTES, offset):
        yield block
        offset += len(block)


_S3 = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9!_.*'()-]+)*/?")


def place_problem(place: str) -> str | None:
    """Return what is wrong with a setting, or None."""
    bucket, slash, prefix = place.removeprefix(_S3).partition("/")
    path = Path(place)
    if place.startswith(_S3):
        if not _BUCKET.fullmatch(bucket):
            return (
                "a bucket's name consists of lower-case letters, digits, '-' and '.', as in "
                "s3://bucket/prefix"
            )
        if not _PREFIX.fullmatch(slash + prefix) or {".", ".."} & set(prefix.split("/")):
            return (
                "each part of the prefix consists of letters, digits, '-', '_' and '.', as in "
                "s3://bucket/prefix"
            )
    elif place and (not path.is_absolute() or ".." in path.parts or "://" in place):
        return "it must be s3://bucket/prefix or the absolute path of an existing folder"
    return None


def storage_at(home_root: Path, place: str = "", options: Mapping[str, str] | None = None) -> Storage:
    """The storage of a setting; it is not accessed yet."""
    if not place.startswith(_S3):
        return LocalFiles(Path(place), elsewhere=True) if place else LocalFiles(home_root)
    from channels.attachments.object_storage import ObjectFiles  # noqa: PLC0415 - not for files on a disk

    bucket, _, prefix = place.removeprefix(_S3).partition("/")
    return ObjectFiles(bucket, prefix.rstrip("/"), options=options or {})
