"""
What of the store each person has filled: nobody but the owner can leave no room for others.

    HOME/attachments/shares/<digest of the person>/<name of the file>    an empty file: it came from them

Theory of operation. Everybody but the owner shares one half of what all files together may take, and one half
of what is free on the disk. In that, a person may fill as much as is free after them: the first one a half,
a second one a half of the rest, so there is always room for one more. The other half takes files of the owner
alone. The marks survive restarts and contain no names. A file that two people have sent counts for both.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

__all__ = ["FOLDER", "Shares", "forget_share"]

FOLDER = "shares"


class Shares:
    """
    Who has filled how much. What touches the disk blocks.

    Args:
        max_total_bytes: What all files together may take.
    """

    def __init__(self, attachments: Path, max_total_bytes: int, least_bytes: int = 0) -> None:
        self._attachments = attachments
        self._folder = attachments / FOLDER
        self._guests_bytes = max_total_bytes // 2
        self._least_bytes = least_bytes
        self._used: dict[str, int] = {}

    def load(self) -> None:
        """Count what was marked, and remove marks of files that are not there any more."""
        self._used.clear()
        if not self._folder.is_dir():
            return
        for folder in self._folder.iterdir():
            sizes = [self._size_of(mark) for mark in folder.iterdir()]
            self._used[folder.name] = sum(sizes)
            if not any(sizes):
                with suppress(OSError):  # a mark was made meanwhile
                    folder.rmdir()

    def room(self, person: str, disk_free_bytes: int) -> int:
        """How many bytes more this person may fill."""
        free = min(self._guests_bytes - sum(self._used.values()), disk_free_bytes // 2)
        return max(0, (free - self._used.get(_digest(person), 0)) // 2)

    def claim(self, person: str, size: int) -> None:
        """Count bytes; negative ones are given back."""
        digest = _digest(person)
        self._used[digest] = max(0, self._used.get(digest, 0) + size)

    def add(self, person: str, name: str) -> bool:
        """Note that a file comes from a person. False: that was known."""
        folder = self._folder / _digest(person)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        return True

    def discard(self, name: str) -> list[str]:
        """Remove the marks of a file that is gone; returns the digests of those whose it was."""
        marks = list(self._folder.glob(f"*/{name}"))
        for mark in marks:
            mark.unlink(missing_ok=True)
        return [mark.parent.name for mark in marks]

    def give_back(self, digests: list[str], size: int) -> None:
        """A file of this size is not theirs any more."""
        for digest in digests:
            self._used[digest] = max(0, self._used.get(digest, 0) - size)

    def _size_of(self, mark: Path) -> int:
        try:
            size = (self._attachments / mark.name[:2] / mark.name).lstat().st_size
            return max(size, self._least_bytes)
        except OSError:
            mark.unlink(missing_ok=True)
            return 0


def forget_share(attachments: Path, person: str) -> None:
    """Remove all marks of a person."""
    shutil.rmtree(attachments / FOLDER / _digest(person), ignore_errors=True)


def _digest(person: str) -> str:
    return hashlib.sha256(person.encode("utf-8", "replace")).hexdigest()[:32]
