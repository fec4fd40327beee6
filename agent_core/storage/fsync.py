"""
Syncs an append-only file to disk, and knows how far it is durable.

After a failed fdatasync Linux takes what it could not write for written, and the next one succeeds without
it. So the bytes since the last good one are put into the cache again, the same at the same place, before the
next try.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agent_core.files import sync
from agent_core.storage.reverse_lines import BLOCK_BYTES


class Durability:
    """Tracks how far the file at ``path`` is durable; ``fdatasync`` can fail in tests."""

    def __init__(self, path: Path, fdatasync: Callable[[int], None]) -> None:
        self._path = path
        self._fdatasync = fdatasync
        # How far the file is on the disk; None until this process writes to it.
        self._sound_to: int | None = None
        self._doubtful = False
        self._names_durable = False

    def started_sync(self, size: int) -> None:
        """This process is about to write, for the first time or again; ``size`` is the file's length."""
        if self._sound_to is None:
            self._sound_to = size

    def sync(self, handle: int) -> None:
        """Return when everything in the file behind ``handle`` is on the disk, its name included."""
        if self._doubtful:
            self._write_again()
        end = os.fstat(handle).st_size
        try:
            self._fdatasync(handle)
        except OSError:
            self._doubtful = True
            raise
        self._doubtful, self._sound_to = False, end
        if not self._names_durable:
            sync(self._path.parent)
            self._names_durable = True

    def _write_again(self) -> None:
        """Put what is not on the disk for certain into the cache once more, unchanged."""
        handle = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            at = self._sound_to or 0
            while block := os.pread(handle, BLOCK_BYTES, at):
                at += os.pwrite(handle, block, at)
        finally:
            os.close(handle)
