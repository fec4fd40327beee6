"""
What the files of the workspace hold, each known by the hash of its content. A file is read again when its
inode's marks (number, size, times) change. Writes through a mapped page may not change these (never on
tmpfs), so on a disk that does not show them, and while a command runs, nothing is remembered. Blocks.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from agent_core.workspace import is_of_prompt

_MAX_ENTRIES = 20_000
_MAX_HASHED_BYTES = 1_000_000_000
_TICK_NS = 50_000_000
"""Two changes of a file that are closer together may bear the same time."""
FOLDER = "folder"
"""The identity of every folder: its name is all that there is to read."""

_Marks = tuple[int, ...]


class TooMuchError(Exception):
    """More than is looked at."""


class ScannedFile(NamedTuple):
    """A file: ``identity`` stands for what it holds, "" if nobody can say; ``is_ours``: this user owns it."""

    identity: str
    is_ours: bool


class WorkspaceContents:
    """The workspace in the folder ``top`` as commands can read it. One thread at a time."""

    def __init__(self, top: str) -> None:
        self.top = top
        self._cache: dict[str, tuple[_Marks, str]] = {}
        self._telling_device: int | None = None

    def scan(self, *, remember: bool, with_skills: bool = False) -> dict[str, ScannedFile]:
        """
        Return every file and folder by its path; ``remember`` while no command runs.

        Raises TooMuchError, or OSError for a folder that cannot be read. What was read until then is
        remembered, so the next scan comes further.
        """
        left = [_MAX_ENTRIES, _MAX_HASHED_BYTES]
        found: dict[str, ScannedFile] = {}
        if self._telling_device is None:
            self._telling_device = _telling_device(self.top)
        if len(self._cache) > 2 * _MAX_ENTRIES:
            self._cache.clear()
        for path, status in _walk(self.top, left, with_skills=with_skills):
            identity = self._identity(path, status, left, remember=remember)
            found[path] = ScannedFile(identity, status.st_uid == os.getuid())
        self._cache = {path: known for path, known in self._cache.items() if path in found}
        return found

    def _identity(self, path: str, status: os.stat_result, left: list[int], *, remember: bool) -> str:
        full = f"{self.top}/{path}"
        if not stat.S_ISREG(status.st_mode):
            return identity_of_name(full, status)
        known = self._cache.get(path)
        if known is not None and known[0] == _marks(status):
            return known[1]
        identity = digest_of_file(full, left)
        with suppress(OSError):
            now = os.stat(full, follow_symlinks=False)  # noqa: PTH116
            # What was changed a moment ago can be changed once more and look the same.
            is_settled = time.time_ns() - now.st_ctime_ns >= _TICK_NS and _marks(now) == _marks(status)
            if remember and identity and is_settled and now.st_dev == self._telling_device:
                self._cache[path] = _marks(now), identity
        return identity


def identity_of_name(path: str, status: os.stat_result, *, folder: int | None = None) -> str:
    """Return the identity of a folder or a link, of which only names can be read; "" for anything else."""
    if stat.S_ISDIR(status.st_mode):
        return FOLDER
    if stat.S_ISLNK(status.st_mode):
        with suppress(OSError):
            target = os.readlink(path, dir_fd=folder)
            return "link " + hashlib.sha256(os.fsencode(target)).hexdigest()
    return ""


def digest_of_file(path: str, left: list[int]) -> str:
    """Return the hash of a regular file's content, else "". Raises TooMuchError past ``left[1]`` bytes."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode):
                left[1] -= status.st_size
                if left[1] < 0:
                    raise TooMuchError("too much to read")
                return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def _walk(top: str, left: list[int], *, with_skills: bool) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the entries below by path; no links or prompt files. Raises TooMuchError past ``left[0]``."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(f"{top}/{folder}" if folder else top) as entries:
            for entry in entries:
                kept = is_of_prompt(entry.name) and not (with_skills and entry.name == "skills")
                if not folder and (kept or entry.name == "memory"):
                    continue
                left[0] -= 1
                if left[0] < 0:
                    raise TooMuchError("too many files")
                path = f"{folder}/{entry.name}" if folder else entry.name
                with suppress(FileNotFoundError):
                    status = os.stat(entry.path, follow_symlinks=False)  # noqa: PTH116
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(path)
                    yield path, status


def _telling_device(folder: str) -> int:
    """Return the device of a folder if writes through mapped pages change the marks of its files, else -1."""
    with suppress(OSError, ValueError):
        handle = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+b"):
            os.ftruncate(handle, 1)
            with mmap.mmap(handle, 1) as page:
                before, first = os.fstat(handle), page[0]
                time.sleep(_TICK_NS / 1e9)
                page[0] = first
                return before.st_dev if _marks(os.fstat(handle)) != _marks(before) else -1
    return -1


def _marks(status: os.stat_result) -> _Marks:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
