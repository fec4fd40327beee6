"""Writes a file durably to disk. Most functions are for worker threads."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

from agent_core.files import write_all
from channels.attachments.attachment_pictures import HEAD_BYTES
from channels.attachments.attachment_storage import Storage

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
