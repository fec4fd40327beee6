"""
Attachments as files: below the home folder, or in a folder that several machines share (NFS). No locks:
content appears by an atomic rename, and concurrent writers write the same. The sweeper renames a file away
and puts it back if it was saved again; a kill in between is repaired at the next use. The shared folder
``attachments`` is never created: if it is missing, nothing is mounted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

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
_SHARES = "shares"
_ASIDE = ".removing"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_log = structlog.get_logger(__name__)


class LocalFiles:
    """A storage of files below ``root/attachments``; ``is_shared``: by processes, must exist."""

    def __init__(self, root: Path, *, is_shared: bool = False) -> None:
        self._root = root
        self._folder = root / FOLDER
        self._shares = self._folder / _SHARES
        self._temporary = self._folder / TEMPORARY
        self.is_shared = is_shared
        self._alone = nullcontext() if is_shared else threading.Lock()
        """Of the threads of one process; in a shared folder a removal works without."""
        self.name = f"the folder {self._folder}"

    def prepare(self) -> None:
        """Make the folders; in a shared one, remove files that any process left half-written in a crash."""
        self._is_mounted()
        for folder in (self._folder, self._temporary):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._temporary.iterdir() if self.is_shared else ():
            with suppress(FileNotFoundError):
                is_old = time.time() - left.lstat().st_mtime > 86_400.0
                if is_old and left.suffix != _ASIDE:
                    left.unlink()
                    _log.info("attachment.leftover_removed")

    def save(self, handle: int, temporary: Path, path: str, size: int) -> bool:
        """Store a content durably under its name."""
        final = self._root / check_path(path)
        if not self.is_shared:
            os.fsync(handle)
        self._is_mounted()
        final.parent.mkdir(mode=0o700, exist_ok=True)
        with self._alone:
            with suppress(FileNotFoundError):
                found = final.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_size == size:
                    os.utime(final)
                    _saved_at(final)  # it is still there: a network's file system knows a file by two names
                    return False
            (self._copied(handle) if self.is_shared else temporary).replace(final)
        for folder in (final.parent, self._folder):
            sync(folder)
        return True

    def read(self, path: str, size: int, *, offset: int, max_bytes: int) -> bytes:
        """Read a part of a content; no link is followed."""
        final = self._root / check_path(path)
        try:
            handle = os.open(final, READ)
        except FileNotFoundError:
            self._is_mounted()
            if not self._put_back(final):
                raise
            handle = os.open(final, READ)
        try:
            if os.fstat(handle).st_size != size:
                raise Damaged(path)
            return os.pread(handle, max(0, max_bytes), max(0, offset))
        finally:
            os.close(handle)

    def find(self, path: str) -> StoredFile | None:
        """Look a content up."""
        final = self._root / check_path(path)
        try:
            found = final.lstat()
        except FileNotFoundError:
            self._is_mounted()
            return self.find(path) if self._put_back(final) else None
        return StoredFile(path, found.st_mtime, found.st_size) if stat.S_ISREG(found.st_mode) else None

    def list_files(self) -> Iterator[StoredFile]:
        """List all contents."""
        if not self._folder.is_dir():
            self._is_mounted()
            return
        for left in self._temporary.glob(f"*{_ASIDE}") if self.is_shared else ():
            self._put_back(self._folder / left.name[:2] / left.stem)
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
        """Remove a content unless it was saved again."""
        final = self._root / check_path(file.path)
        try:
            with self._alone:
                if final.lstat().st_mtime != file.saved_at:
                    return False
                if not self.is_shared:
                    final.unlink()
                    return True
            aside = self._aside(final)
            final.rename(aside)
            if _saved_at(aside) != file.saved_at:
                self._put_back(final)
                return False
            aside.unlink()
        except FileNotFoundError:
            return False
        return True

    def erase(self, path: str) -> bool:
        """Remove a content, also one that an interrupted removal left aside."""
        final = self._root / check_path(path)
        found = False
        for one in (self._aside(final), final) if self.is_shared else (final,):
            with suppress(FileNotFoundError):
                one.unlink()
                found = True
        if not found:
            self._is_mounted()
        return found

    def marks(self) -> Iterator[tuple[str, str, float]]:
        """List the files that each person's folder names."""
        if not self._shares.is_dir():
            return
        for folder in self._shares.iterdir():
            found = False
            for mark in folder.iterdir():
                found = True
                with suppress(FileNotFoundError):
                    yield folder.name, mark.name, mark.lstat().st_mtime
            if not found:
                with suppress(OSError):  # a mark was made meanwhile
                    folder.rmdir()

    def mark(self, whose: str, name: str) -> bool:
        """Note in an empty file that a content counts on a person's share."""
        folder = self._shares / whose
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(folder / name, _NEW, 0o600))
        except FileExistsError:
            return False
        return True

    def unmark(self, whose: str, name: str) -> None:
        """Remove that note."""
        (self._shares / whose / name).unlink(missing_ok=True)

    def forget(self, whose: str) -> None:
        """Remove a person's folder of notes."""
        shutil.rmtree(self._shares / whose, ignore_errors=True)

    def owner(self, wanted: str) -> str:
        """Read the owner's name from a small file, which the first call makes."""
        self._is_mounted()
        final, made = self._folder / "owner", self._temporary / secrets.token_hex(16)
        if not final.exists():
            self._temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.write_text(wanted, encoding="ascii")
            with suppress(FileExistsError):
                os.link(made, final)
            made.unlink()
        return final.read_text(encoding="ascii", errors="replace")

    def probe(self) -> None:
        """Write, read and remove a file."""
        self._is_mounted()
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        wanted = secrets.token_bytes(32)
        file, final = self._temporary / secrets.token_hex(16), self._temporary / secrets.token_hex(16)
        try:
            handle = os.open(file, _NEW, 0o600)
            try:
                os.write(handle, wanted)
                os.fsync(handle)
            finally:
                os.close(handle)
            file.rename(final)
            sync(self._temporary)
            if final.read_bytes() != wanted:
                raise StorageUnreachable(f"{self.name} returns something other than what was written")
        finally:
            for left in (file, final):
                left.unlink(missing_ok=True)

    def _copied(self, handle: int) -> Path:
        """A durable copy beside the files, on their file system."""
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        copy = self._temporary / secrets.token_hex(16)
        out = os.open(copy, _NEW, 0o600)
        try:
            offset = 0
            while block := os.pread(handle, 1 << 20, offset):
                write_all(out, block)
                offset += len(block)
            os.fsync(out)
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
        finally:
            os.close(out)
        return copy

    def _aside(self, final: Path) -> Path:
        """Return the path of a file while it is being removed."""
        return self._temporary / f"{final.name}{_ASIDE}"

    def _put_back(self, final: Path) -> bool:
        """Take back a removal, also one that was cut off; whether there was one."""
        aside = self._aside(final)
        try:
            with suppress(FileExistsError):  # it was saved again
                os.link(aside, final)
            aside.unlink()
        except FileNotFoundError:
            return False
        return True

    def _is_mounted(self) -> None:
        if self.is_shared and not self._folder.is_dir():
            raise StorageUnreachable(
                f"the folder {self._folder} does not exist: is it mounted? To create it: mkdir -m 700 "
                f"{self._folder}"
            )


def _saved_at(path: Path) -> float:
    """Return a file's modification time; opening it makes a network file system ask its server."""
    handle = os.open(path, READ)
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)


BLOCK_BYTES = 256 * 1024


class Writing:
    """
    One file being written; blocks.

    ``head`` is its beginning, ``claimed`` the bytes counted, on ``person``'s share if any; ``disk_free`` is
    from the start.
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
        self.person: str | None = None
        self.disk_free = 0

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


_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()-]+(?:/[A-Za-z0-9!_.*'()-]+)*")
_S3 = "s3://"


def place_problem(place: str) -> str | None:
    """Return what is wrong with a setting, or None."""
    if not place:
        return None
    if place.startswith(_S3):
        bucket, _, prefix = place.removeprefix(_S3).partition("/")
        prefix = prefix.rstrip("/")
        if not _BUCKET.fullmatch(bucket):
            return (
                "a bucket's name consists of lower-case letters, digits, '-' and '.', as in "
                "s3://bucket/prefix"
            )
        if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/"))):
            return (
                "each part of the prefix consists of letters, digits, '-', '_' and '.', as in "
                "s3://bucket/prefix"
            )
        return None
    path = Path(place)
    if not path.is_absolute() or ".." in path.parts or "://" in place:
        return "it must be s3://bucket/prefix or the absolute path of an existing folder"
    return None


def storage_at(home_root: Path, place: str = "", options: Mapping[str, str] | None = None) -> Storage:
    """The storage of a setting; it is not accessed yet."""
    if not place:
        return LocalFiles(home_root)
    if not place.startswith(_S3):
        return LocalFiles(Path(place), is_shared=True)
    from channels.attachments.object_storage import ObjectFiles  # noqa: PLC0415 - not for files on a disk

    bucket, _, prefix = place.removeprefix(_S3).partition("/")
    return ObjectFiles(bucket, prefix.rstrip("/"), options=options or {})
