"""
Reads, appends to and syncs files; the place where an OSError becomes `StorageUnavailable`. After a failed
fdatasync Linux counts the lost bytes as written and the next sync succeeds, so all bytes since the last good
sync are written again first. Replacing is in `agent_core.files`. Everything here blocks and is called in
worker threads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agent_core import files
from agent_core.errors import StorageUnavailable
from agent_core.files import sync
from agent_core.storage.history_paging import BLOCK_BYTES

NO_FILE = {errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EINVAL}
"""What is in the place of a file (see `read`) and stays there until a person moves it."""

_FILE_MODE = 0o600
_LOCK_TRIES = 45
_LOCK_PAUSES_S = (0.001, 0.05)


@contextlib.contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Translate the operating system's errors inside the block into `StorageUnavailable`."""
    try:
        yield
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        name = errno.errorcode.get(exc.errno or 0, "")
        raise StorageUnavailable(
            f"cannot {action} {path}: {reason}", action=action, path=str(path), reason=reason, errno=name
        ) from exc


def is_file_or_nothing(path: Path) -> bool:
    """Return True if ``path`` is a regular file, a link to one, or free."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return not path.is_symlink()
    except OSError as exc:
        if exc.errno in NO_FILE:
            return False
        raise


def read(path: Path) -> bytes:
    """Read a file. Only a regular file is read; opening a pipe would block for ever."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def open_regular(path: Path, flags: int = 0) -> int:
    """Open a regular file for reading; anything else is refused without blocking."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def append(handle: int, data: bytes) -> None:
    """Append to a file opened with O_APPEND; a torn last line is closed first."""
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        data = b"\n" + data
    files.write_all(handle, data)


@contextlib.contextmanager
def exclusive(path: Path, *, sync: bool = False) -> Iterator[int]:
    """Lock ``path`` for reading and appending; with ``sync``, appended data is durable at the end."""
    new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    try:
        lock(handle)
        yield handle
        if sync:
            os.fsync(handle)
            if new:
                files.sync(path.parent)
    finally:
        os.close(handle)


def lock(handle: int) -> None:
    """Wait up to two seconds for an exclusive lock on the file, which holds until it is closed."""
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt == _LOCK_TRIES - 1:
                raise
            shortest, longest = _LOCK_PAUSES_S
            time.sleep(min(longest, shortest * 2**attempt))
        else:
            return


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
        """Note that this process is about to write, first or again; ``size`` is the file's length."""
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
