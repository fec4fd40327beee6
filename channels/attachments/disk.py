"""How a file gets onto the disk, and how one of somebody else's is opened. Mostly for worker threads."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

from agent_core.files import sync, write_all
from channels.attachments.pictures import HEAD_BYTES

__all__ = ["BLOCK_BYTES", "READ_FLAGS", "Writing", "blocks", "from_handle", "open_below"]

BLOCK_BYTES = 256 * 1024
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Writing:
    """
    One file on its way to the disk. Everything here blocks.

    ``head`` is its beginning, ``claimed`` how many bytes the store has counted for it, ``person`` on whose
    share, if on anybody's, and ``disk_free`` what was free on the disk when it began.
    """

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self._handle: int | None = None
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

    def finish(self, path: Path) -> bool:
        """Give it its name, durably. False: the content was there already."""
        os.fsync(self._open())
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size == self.size:
                os.utime(path)
                return False
        self._temporary.replace(path)
        for folder in (path.parent, path.parent.parent):
            sync(folder)
        return True

    def discard(self) -> None:
        """Close it, and remove what has not got its name. Two quick calls that need no thread."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            with suppress(OSError):
                self._temporary.unlink()

    def _open(self) -> int:
        if self._handle is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(self._temporary, flags, 0o600)
        return self._handle


async def blocks(chunks: AsyncIterator[bytes] | bytes) -> AsyncGenerator[bytes, None]:
    """The same content in pieces of a size that is worth a visit to a worker thread."""
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


def open_below(folder: Path, path: str) -> int:
    """Open a regular file step by step, so that no link leads elsewhere, whoever changes it meanwhile."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError("it must be the path of a file inside the folder, without '..'")
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            following = _open_part(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, here)
            os.close(here)
            here = following
        handle = _open_part(parts[-1], READ_FLAGS, here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is no file")
    return handle


def _open_part(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError as error:
        raise LookupError("there is no such file") from error
    except OSError as error:
        raise ValueError(f"it cannot be opened: {error.strerror}; links are not followed") from error
